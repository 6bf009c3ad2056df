//! Signed webhooks to `hapax line`, and a bot behind it that does nothing.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use async_trait::async_trait;
use axum::Router;
use axum::routing::post;
use hapax_line::ChannelSecrets;
use hapax_line::simulator::{WebhookSender, events};
use hapax_workload::{BenchError, BenchOperation, BenchPlan, BenchSpan, Measurement, measure};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::WARM_UP;
use crate::process::{ServerProcess, hapax_command};
use crate::store_server::StoreServer;

const SECRET: &str = "bench";
/// How long the last event may take to be handled.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A gateway with a bot behind it.
pub(super) struct LineBot {
    gateway: ServerProcess,
    handled: Arc<AtomicU64>,
    serving: JoinHandle<()>,
    _folder: TempDir,
}

impl LineBot {
    pub(super) async fn start(hapax: &Path, store: &str) -> anyhow::Result<Self> {
        let handled = Arc::new(AtomicU64::new(0));
        let count = handled.clone();
        let answer = move || {
            count.fetch_add(1, Ordering::Relaxed);
            async {}
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let upstream = format!("http://{}/", listener.local_addr()?);
        let app = Router::new().route("/", post(answer));
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        let folder = tempfile::tempdir()?;
        let mut command = hapax_command(Command::new(hapax), "line", store, folder.path());
        command
            .args(["--upstream", &upstream])
            .envs([("LINE_CHANNEL_SECRET", SECRET), ("LINE_CHANNEL_ACCESS_TOKEN", "bench")]);
        let gateway = ServerProcess::start_announced(&mut command)?;
        Ok(Self { gateway, handled, serving, _folder: folder })
    }

    /// Measures webhooks, and the rate at which the bot gets their events.
    pub(super) async fn measure(
        &self,
        server: &StoreServer,
        connections: usize,
        time: Duration,
    ) -> anyhow::Result<(Measurement, f64)> {
        let url = format!("http://{}/line/webhook", self.gateway.address());
        let sent = Arc::new(AtomicU64::new(0));
        let sender = WebhookSender::new(&url, &ChannelSecrets::new(SECRET)?, "Uf00dbot")?;
        let taps = Arc::new(WebhookOperation { sender, sent: sent.clone() });
        let plan = BenchPlan::new(connections, BenchSpan::Time(time))
            .warm_up(WARM_UP)
            .servers([self.gateway.processes(), server.processes()]);
        let since = Instant::now();
        let measured = measure(taps, &plan).await?;
        while self.handled.load(Ordering::Relaxed) < sent.load(Ordering::Relaxed) {
            ensure!(since.elapsed() < time + TIMEOUT, "events are missing");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let handled = self.handled.load(Ordering::Relaxed) as f64 / since.elapsed().as_secs_f64();
        Ok((measured, handled))
    }
}

impl Drop for LineBot {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

struct WebhookOperation {
    sender: WebhookSender,
    sent: Arc<AtomicU64>,
}

#[async_trait]
impl BenchOperation for WebhookOperation {
    async fn run(&self, task: usize, turn: u64) -> Result<(), BenchError> {
        let tap = events::text(&format!("Uf00d{task}-{turn}"), "hello");
        match self.sender.send(&[tap]).await {
            Ok(delivered) if delivered.status == 200 => {
                self.sent.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Ok(delivered) => Err(BenchError::Engine(format!("answered {}", delivered.status))),
            Err(_) => Err(BenchError::Unexpected("no answer to a webhook")),
        }
    }
}
