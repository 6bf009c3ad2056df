//! The suite that every store passes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hapax_conformance::{StoreUnderTest, check, check_histories};
use hapax_core::{ManualClock, Store};
use hapax_sqlite::{SqliteConfig, SqliteStore};
use tempfile::TempDir;

struct File {
    folder: TempDir,
    clock: Arc<ManualClock>,
}

impl File {
    fn path(&self) -> PathBuf {
        self.folder.path().join("hapax.db")
    }
}

#[async_trait::async_trait]
impl StoreUnderTest for File {
    async fn open(&self) -> Arc<dyn Store> {
        // A minute: this suite is about laws, and a busy machine must not break them.
        let config = SqliteConfig::new(self.path()).timeout(Duration::from_secs(60));
        Arc::new(SqliteStore::open(config.clock(self.clock.clone())).unwrap())
    }

    fn is_private(&self) -> bool {
        true
    }

    async fn advance(&self, time: Duration) {
        self.clock.advance(time);
    }
}

async fn subject() -> Arc<dyn StoreUnderTest> {
    Arc::new(File { folder: tempfile::tempdir().unwrap(), clock: Arc::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn store_keeps_every_law() {
    check(subject).await;
}

#[test]
fn store_histories_agree_with_the_model() {
    check_histories(subject);
}
