//! The client's log lines and metrics, which contain no personal data. The test needs a process of
//! its own, because logs and metrics are global to the process.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_line::simulator::{ApiEndpoint, ApiFault, SimulatedApi};
use hapax_line::{LineClient, LineMessage};
use metrics_exporter_prometheus::PrometheusBuilder;
use uuid::Uuid;

const USER: &str = "Uf00d0123456789";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn client_logs_and_metrics_hold_no_personal_data() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let recorder = PrometheusBuilder::new().install_recorder().unwrap();

    let api = SimulatedApi::start("127.0.0.1:0", "secret-token").await.unwrap();
    let client = LineClient::new(&api.base(), "secret-token").unwrap();
    let client = client.timeout(Duration::from_secs(60));
    let text = [LineMessage::text("蛋 🥚")];
    let key = Uuid::new_v4();
    for fault in
        [ApiFault::Status(401), ApiFault::Status(400), ApiFault::Status(500), ApiFault::Cut]
    {
        api.inject(ApiEndpoint::Reply, fault);
        let failed = client.reply("reply-token", &text).await.unwrap_err();
        assert!(!format!("{failed} {failed:?}").contains("reply-token"));
    }
    api.inject(ApiEndpoint::Push, ApiFault::CutAfter);
    client.push(USER, &text, key).await.unwrap();
    client.show_loading(USER, 5).await.unwrap();
    client.reply("reply-token", &[]).await.unwrap_err();

    let (log, counts) = (log.0.lock().unwrap().clone(), recorder.render());
    let log = String::from_utf8(log).unwrap();
    for (what, result, count) in [
        ("reply", "refused", 2),
        ("reply", "uncertain", 2),
        ("reply", "not_tried", 1),
        ("push", "before", 1),
        ("loading", "accepted", 1),
    ] {
        let line =
            format!("hapax_line_sent_total{{what=\"{what}\",result=\"{result}\"}} {count}\n");
        assert!(counts.contains(&line), "{line}{counts}");
    }
    assert!(log.contains("status=401") && log.contains("check the channel access token"), "{log}");
    assert!(log.contains("status=400") && log.contains("status=500"), "{log}");
    for private in [USER, "🥚", "reply-token", "secret-token", &key.to_string()] {
        assert!(!log.contains(private) && !counts.contains(private), "{private}: {log}");
    }
}
