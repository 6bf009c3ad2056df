//! The suite that every store passes.

use std::sync::Arc;
use std::time::Duration;

use hapax_conformance::{StoreUnderTest, WallClock, check, check_histories};
use hapax_core::{ManualClock, Store};
use hapax_sqlite::{SqliteConfig, SqliteStore};
use tempfile::TempDir;

struct File {
    config: SqliteConfig,
    clock: Arc<ManualClock>,
    _folder: TempDir,
}

#[async_trait::async_trait]
impl StoreUnderTest for File {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(SqliteStore::open(self.config.clone()).unwrap())
    }

    fn is_private(&self) -> bool {
        true
    }

    async fn advance(&self, time: Duration) {
        self.clock.advance(time);
    }

    fn wall_clock(&self) -> Option<Arc<dyn WallClock>> {
        Some(self.clock.clone())
    }
}

async fn subject() -> Arc<dyn StoreUnderTest> {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Arc::new(ManualClock::default()));
    // A minute: this suite is about laws, and a busy machine must not break them.
    let config = SqliteConfig::new(folder.path().join("hapax.db"));
    let config = config.timeout(Duration::from_secs(60)).clock(clock.clone());
    Arc::new(File { config, clock, _folder: folder })
}

#[tokio::test(flavor = "multi_thread")]
async fn store_keeps_every_law() {
    check(subject).await;
}

#[test]
fn store_histories_agree_with_the_model() {
    check_histories(subject);
}
