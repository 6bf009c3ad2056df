//! Where a store keeps its data: one server for each kind, with room for several subjects.

use std::sync::Arc;

use hapax_bench::Processes;
use hapax_core::Store;
use hapax_testkit::{Postgres, Redis};
use tempfile::TempDir;

use crate::arena::{Engine, redis_version};

/// Connections of hapax's pool, and of the raw one.
pub(crate) const POOL: usize = 8;

pub(crate) enum Place {
    Memory,
    Sqlite(TempDir),
    Redis(Redis),
    Postgres(Postgres),
}

impl Place {
    pub(crate) fn start(engine: Engine) -> anyhow::Result<Self> {
        Ok(match engine {
            Engine::Memory => Self::Memory,
            Engine::Sqlite => Self::Sqlite(tempfile::tempdir()?),
            Engine::Redis => Self::Redis(Redis::with(&["--appendonly", "no"])),
            Engine::Postgres => Self::Postgres(Postgres::start()),
        })
    }

    /// Where a new store of this name is, for itself alone save on Redis, where no two runs have a key in common.
    pub(crate) fn url(&self, name: &str) -> String {
        match self {
            Self::Memory => "memory:".into(),
            Self::Sqlite(folder) => {
                format!("sqlite:{}", folder.path().join(format!("{name}.db")).display())
            }
            Self::Redis(server) => server.url(),
            Self::Postgres(server) => server.database(name),
        }
    }

    /// hapax's store of this name.
    pub(crate) async fn store(&self, name: &str) -> anyhow::Result<Arc<dyn Store>> {
        self.store_at(&self.url(name)).await
    }

    /// hapax's store at a URL of this place.
    pub(crate) async fn store_at(&self, url: &str) -> anyhow::Result<Arc<dyn Store>> {
        let store: Arc<dyn Store> = match self {
            Self::Postgres(_) => {
                let config = hapax_postgres::PostgresConfig::new(url).max_connections(POOL);
                Arc::new(hapax_postgres::PostgresStore::open(config)?)
            }
            _ => hapax::open(url, &hapax::StoreConfig::default()).await?,
        };
        store.ping().await?;
        Ok(store)
    }

    pub(crate) fn processes(&self) -> Processes {
        let pid = match self {
            Self::Memory | Self::Sqlite(_) => None,
            Self::Redis(server) => server.pid(),
            Self::Postgres(server) => server.pid(),
        };
        Processes::new(pid.map(i32::cast_unsigned))
    }

    pub(crate) fn description(&self) -> String {
        match self {
            Self::Memory => "memory of the process itself".into(),
            Self::Sqlite(_) => format!(
                "SQLite {} (in the process itself; WAL, synchronous=FULL)",
                hapax_sqlite::rusqlite::version()
            ),
            Self::Redis(_) => format!("Redis {} (appendonly no: not durable)", redis_version()),
            Self::Postgres(server) => format!(
                "PostgreSQL {} (fsync and synchronous_commit on)",
                // Debian adds its own version in brackets.
                server.psql("SHOW server_version").split(' ').next().unwrap_or_default()
            ),
        }
    }
}
