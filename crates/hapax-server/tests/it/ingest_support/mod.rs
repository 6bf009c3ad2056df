//! `hapax serve --ingest`, the workers whose streams it reads, and what it has routed.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Arc;

use hapax::log::LogEntry;
use hapax::{Key, Store, StoreConfig, Tenant};
use hapax_testkit::free_port;
use serde_json::{Value, json};

use crate::cli_support::{hapax, run};
use crate::support::server::{Server, Setup};
use crate::support::store::TestStore;
use crate::support::{KillOnDrop, WAIT_TIMEOUT};

/// How the ingest processes of one test are started, repeatedly on the same store.
pub(crate) struct Ingest {
    /// The same for all, because the name of the consumer is made of it.
    address: String,
    store: String,
    redis: String,
    flags: Vec<String>,
    _file: Option<TestStore>,
}

impl Ingest {
    /// On a file of its own, reading from this Redis.
    pub(crate) fn new(redis: &str, flags: &[&str]) -> Self {
        let file = TestStore::sqlite();
        Self { store: file.url(), _file: Some(file), ..Self::redis_alone(redis, flags) }
    }

    /// On the Redis that it reads from.
    pub(crate) fn redis_alone(redis: &str, flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let address = format!("127.0.0.1:{}", free_port());
        Self { address, store: redis.into(), redis: redis.into(), flags, _file: None }
    }

    pub(crate) fn start(&self) -> Server {
        let flags: Vec<_> = self.flags.iter().map(String::as_str).collect();
        let stores = ["--store", &self.store, "--ingest-from", &self.redis];
        Setup::at(&self.address).flags(&stores).flags(&flags).start()
    }

    /// The store, as this process sees it.
    pub(crate) fn open(&self) -> Arc<dyn Store> {
        let patient = StoreConfig::default().timeout(WAIT_TIMEOUT);
        hapax::open(&self.store, &patient).unwrap()
    }

    pub(crate) fn queue(&self, arguments: &[&str]) -> String {
        let mut command = hapax();
        command.arg("queue").args(arguments).args(["--store", &self.store]);
        // A busy machine must not fail a store call.
        run(command.env("HAPAX_STORE_TIMEOUT", "20s")).ok()
    }

    pub(crate) fn dead(&self) -> Vec<Value> {
        let page = self.queue(&["dead", "ingest", "--limit", "1000", "--json"]);
        let page: Value = serde_json::from_str(&page).unwrap();
        page["items"].as_array().unwrap().clone()
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

pub(crate) async fn entries(store: &Arc<dyn Store>, job: &str) -> Vec<LogEntry> {
    let key = Key::job(&Tenant::default(), "scan", job).unwrap();
    let attached =
        store.attach(&key, &hapax::log::PageRequest::new(0, 1000).with_state()).await.unwrap();
    attached.map(|attached| attached.entries).unwrap_or_default()
}

/// The workers' own program.
pub(crate) struct Workers(KillOnDrop);

impl Workers {
    pub(crate) fn start(redis: &str, arguments: &[&str]) -> Self {
        let advice =
            "HAPAX_TEST_PYTHON is not set; run ./test.sh, which installs what the tests need";
        let python = hapax_testkit::python().expect(advice);
        let harness = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/ingest_support/harness.py");
        let child = Command::new(python)
            .arg(harness)
            .arg(redis)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("Python starts");
        Self(KillOnDrop(child))
    }

    pub(crate) fn are_done(&mut self) -> bool {
        self.0.0.try_wait().unwrap().is_some()
    }

    /// Waits for their end, which must be a success.
    pub(crate) fn finish(mut self) {
        let mut said = String::new();
        self.0.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let status = self.0.0.wait().unwrap();
        assert!(status.success(), "{said}");
    }
}
