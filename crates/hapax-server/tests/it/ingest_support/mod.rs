//! `hapax serve --ingest`, the workers whose streams it reads, and what it has routed.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use hapax::log::LogEntry;
use hapax::{Key, Store, StoreConfig, Tenant};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::http::HttpRequest;
use crate::support::{HapaxProcess, PATIENCE};

/// `hapax serve --ingest`, killed when dropped.
pub(crate) struct Router(HapaxProcess);

/// How the ingest processes of one test are started, repeatedly on the same store.
pub(crate) struct Setup {
    pub(crate) store: String,
    redis: String,
    flags: Vec<String>,
    folder: TempDir,
}

impl Setup {
    /// On a file of its own, reading from this Redis.
    pub(crate) fn new(redis: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("sqlite:{}", folder.path().join("hapax.db").display());
        Self::on(&store, redis, flags, folder)
    }

    /// On the Redis that it reads from.
    pub(crate) fn redis_alone(redis: &str, flags: &[&str]) -> Self {
        Self::on(redis, redis, flags, tempfile::tempdir().unwrap())
    }

    fn on(store: &str, redis: &str, flags: &[&str], folder: TempDir) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Self { store: store.into(), redis: redis.into(), flags, folder }
    }

    pub(crate) fn hapax(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
        command.env_clear().current_dir(self.folder.path()).stdin(Stdio::null());
        // A busy machine must not fail a store call; tests of the timeout set a flag.
        command.env("HAPAX_STORE_TIMEOUT", "20s");
        command
    }

    pub(crate) fn start(&self) -> Router {
        let log = File::options().create(true).append(true).open(self.folder.path().join("log"));
        let mut command = self.hapax();
        command.args(["serve", "--listen", "127.0.0.1:0", "--store", &self.store]);
        command.args(["--ingest-from", &self.redis]).args(&self.flags);
        Router(HapaxProcess::start_with_log(&mut command, log.unwrap()))
    }

    pub(crate) fn log(&self) -> String {
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        // Leave out the request lines.
        log.lines().filter(|line| !line.contains("INFO request")).collect::<Vec<_>>().join("\n")
    }

    /// The store, as this process sees it.
    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        let patient = StoreConfig::default().timeout(PATIENCE);
        hapax::open(&self.store, &patient).unwrap()
    }

    /// `hapax queue …` on the store.
    pub(crate) fn queue(&self, arguments: &[&str]) -> String {
        let mut command = self.hapax();
        command.arg("queue").args(arguments).args(["--store", &self.store]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The dead letters of ingest.
    pub(crate) fn dead(&self) -> Vec<Value> {
        let page = self.queue(&["dead", "ingest", "--limit", "1000", "--json"]);
        let page: Value = serde_json::from_str(&page).unwrap();
        page["items"].as_array().unwrap().clone()
    }
}

impl Router {
    pub(crate) fn kill(mut self) {
        self.0.kill();
    }

    /// The status and the body of a page.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let answer = HttpRequest::new(&self.0.address(), "GET", path).send();
        (answer.status, answer.text())
    }

    /// The value of a metric.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics").1;
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    }
}

/// A worker's event, as its JSON.
pub(crate) fn event(job: &str, stage: &str, seq: u64) -> String {
    json!({
        "job_id": job, "domain": "scan", "stage": stage, "seq": seq,
        "data": {"n": seq}, "timestamp": "2025-12-29T10:00:00.123456",
    })
    .to_string()
}

/// Every entry of a job's log.
pub(crate) async fn entries(store: &Arc<dyn Store>, job: &str) -> Vec<LogEntry> {
    let key = Key::job(&Tenant::default(), "scan", job).unwrap();
    let attached = store.attach(&key, 0, 1000).await.unwrap();
    attached.map(|attached| attached.entries).unwrap_or_default()
}

/// Waits until it holds.
pub(crate) async fn eventually(what: &str, setup: &Setup, mut holds: impl AsyncFnMut() -> bool) {
    let limit = tokio::time::Instant::now() + PATIENCE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < limit, "never: {what}\n{}", setup.log());
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

/// The workers' own program.
pub(crate) struct Workers(Child);

impl Workers {
    pub(crate) fn start(redis: &str, arguments: &[&str]) -> Self {
        let python: PathBuf = hapax_testkit::python().expect(
            "HAPAX_TEST_PYTHON is not set; run ./test.sh, which installs what the tests need",
        );
        let harness = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/ingest_support/harness.py");
        let child = Command::new(python)
            .arg(harness)
            .arg(redis)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("Python starts");
        Self(child)
    }

    pub(crate) fn are_done(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Waits for their end, which must be a success.
    pub(crate) fn finish(mut self) {
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{said}");
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
