//! Shared by the tests.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod victim;

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use hapax_core::log::LogEvent;
use hapax_core::{
    ClaimRequest, Claimed, Claims, Fingerprint, Key, Operation, StoreError, StoreResult, Tenant,
    Ticket,
};
use hapax_sqlite::{SqliteConfig, SqliteStore};
use rusqlite::Connection;
use tempfile::TempDir;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// A timeout that does not fail on a busy machine.
pub(crate) const PATIENT: Duration = Duration::from_secs(60);

/// A file that does not exist yet, in a folder of its own.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A place, and a store on its file.
    pub(crate) fn with_store() -> (Self, SqliteStore) {
        let place = Self::new();
        let store = place.store();
        (place, store)
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.path().join("hapax.db")
    }

    pub(crate) fn config(&self) -> SqliteConfig {
        SqliteConfig::new(self.file()).timeout(PATIENT)
    }

    pub(crate) fn store(&self) -> SqliteStore {
        SqliteStore::open(self.config()).unwrap()
    }

    /// Waits until this process has closed the file: the threads of a dropped store end a moment
    /// later. The last one removes the -wal and -shm files, unless two end at the same moment.
    pub(crate) async fn closed(&self) {
        let open = || {
            let files = std::fs::read_dir("/proc/self/fd").unwrap();
            let mut targets = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
            targets.any(|target| target.starts_with(self.0.path()))
        };
        let limit = std::time::Instant::now() + PATIENT;
        while open() {
            assert!(std::time::Instant::now() < limit, "the file stays open");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Removes the closed database, and what may be left beside it.
    pub(crate) fn remove_files(&self) {
        std::fs::remove_file(self.file()).unwrap();
        for end in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(self.0.path().join(format!("hapax.db{end}")));
        }
    }

    /// A connection that is not hapax's.
    pub(crate) fn stranger(&self) -> Connection {
        Connection::open(self.file()).unwrap()
    }
}

/// A user's database, with hapax's tables beside the user's own.
pub(crate) fn shop(place: &Place) -> Connection {
    let shop = place.stranger();
    shop.busy_timeout(PATIENT).unwrap();
    shop.pragma_update(None, "journal_mode", "WAL").unwrap();
    hapax_sqlite::migrate(&shop).unwrap();
    shop.execute_batch("CREATE TABLE IF NOT EXISTS orders (item TEXT)").unwrap();
    shop
}

/// Starts an ignored test of this binary in a process of its own, on the file of `place`.
pub(crate) fn start_process(mut command: Command, test: &str, place: &Place) -> Child {
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("HAPAX_TEST_FILE", place.file())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

pub(crate) fn this_binary() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

/// The lines that a process prints.
pub(crate) fn lines_of(process: &mut Child) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(process.stdout.take().unwrap()).lines()
}

/// The file of the process that started this one.
pub(crate) fn inherited() -> SqliteStore {
    let file = std::env::var("HAPAX_TEST_FILE").unwrap();
    SqliteStore::open(SqliteConfig::new(file).timeout(PATIENT)).unwrap()
}

pub(crate) fn beside(file: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", file.display()))
}

pub(crate) fn command(name: &str) -> Key {
    Key::command(&Tenant::default(), Operation("pay"), name).unwrap()
}

pub(crate) fn record(name: &str) -> Key {
    Key::record(&Tenant::default(), name).unwrap()
}

pub(crate) fn job(name: &str) -> Key {
    Key::job(&Tenant::default(), "scan", name).unwrap()
}

/// An event that says its own number.
pub(crate) fn event(name: &str, seq: u64) -> LogEvent {
    let payload = seq.to_string();
    LogEvent {
        job: job(name),
        stage: "vision".into(),
        seq,
        fingerprint: Fingerprint::of(&[payload.as_bytes()]),
        payload: payload.into(),
        closes: false,
    }
}

pub(crate) fn ask() -> ClaimRequest {
    ClaimRequest::new(HOUR).retention(HOUR)
}

pub(crate) fn ticket(answer: StoreResult<Claimed>) -> Ticket {
    match answer {
        Ok(Claimed::Granted { ticket, .. }) => ticket,
        other => panic!("expected a grant, got {other:?}"),
    }
}

/// Calls a store that has a short timeout, and repeats the call if it timed out, as it may on a busy
/// machine.
pub(crate) async fn retry_timeouts<T>(call: impl AsyncFn() -> StoreResult<T>) -> StoreResult<T> {
    for _ in 0..10 {
        match call().await {
            Err(StoreError::Timeout { .. }) => {}
            answer => return answer,
        }
    }
    panic!("the call timed out ten times");
}

/// Claims and settles, so that there is something to replay.
pub(crate) async fn settled(store: &SqliteStore, key: &Key, value: &'static str) {
    let ticket = ticket(store.claim(key, &ask()).await);
    assert!(store.settle(key, &ticket.token, value.into()).await.is_ok());
}
