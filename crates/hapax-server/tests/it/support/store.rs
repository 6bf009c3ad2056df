//! Stores of one test's own, and tests that run on several of them.

use hapax_testkit::{Postgres, Redis, RedisCluster};
use tempfile::TempDir;

/// A store that ends with the test.
pub(crate) enum TestStore {
    Memory,
    Sqlite(TempDir),
    Redis(Redis),
    RedisCluster(RedisCluster),
    Postgres(Postgres),
}

impl TestStore {
    pub(crate) fn memory() -> Self {
        Self::Memory
    }

    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().expect("a temporary folder"))
    }

    /// A file for a `hapax` without a server. Each store call has 2 s there, and a disk that is busy
    /// with other things may take longer to sync: in memory, if the machine has such a folder.
    pub(crate) fn quick_sqlite() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self::Sqlite(folder.expect("a temporary folder"))
    }

    pub(crate) fn redis() -> Self {
        Self::Redis(Redis::start())
    }

    pub(crate) fn redis_cluster() -> Self {
        Self::RedisCluster(RedisCluster::start())
    }

    pub(crate) fn postgres() -> Self {
        Self::Postgres(Postgres::start())
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Memory => "memory:".to_owned(),
            Self::Sqlite(folder) => format!("sqlite:{}/hapax.db", folder.path().display()),
            Self::Redis(redis) => redis.url(),
            Self::RedisCluster(cluster) => cluster.url(),
            Self::Postgres(postgres) => postgres.url(),
        }
    }
}

/// Runs an async function of a [`TestStore`] on several stores, with a test for each.
macro_rules! tests_on_stores {
    ($check:expr; $($name:ident on $store:ident),+ $(,)?) => { $(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            let check = $check;
            check($crate::support::store::TestStore::$store()).await;
        }
    )+ };
}
pub(crate) use tests_on_stores;
