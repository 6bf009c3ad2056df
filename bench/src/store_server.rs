//! A server for one kind of store, with room for several stores.

use std::process::Command;
use std::sync::Arc;

use clap::ValueEnum;
use hapax_core::Store;
use hapax_testkit::{Postgres, Redis, find_binary};
use hapax_workload::ProcessGroup;
use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    Memory,
    Sqlite,
    Redis,
    Postgres,
}

impl Engine {
    pub(crate) const ALL: [Self; 4] = [Self::Memory, Self::Sqlite, Self::Redis, Self::Postgres];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "SQLite",
            Self::Redis => "Redis",
            Self::Postgres => "PostgreSQL",
        }
    }
}

/// Connections of hapax's pool, and of the raw one.
pub(crate) const POOL: usize = 8;

pub(crate) enum StoreServer {
    Memory,
    Sqlite(TempDir),
    Redis(Redis),
    Postgres(Postgres),
}

impl StoreServer {
    pub(crate) fn start_all(engines: impl Iterator<Item = Engine>) -> anyhow::Result<Vec<Self>> {
        engines.map(Self::start).collect()
    }

    pub(crate) fn start(engine: Engine) -> anyhow::Result<Self> {
        Ok(match engine {
            Engine::Memory => Self::Memory,
            Engine::Sqlite => Self::Sqlite(tempfile::tempdir()?),
            Engine::Redis => Self::Redis(Redis::with(&["--appendonly", "no"])),
            Engine::Postgres => Self::Postgres(Postgres::start()),
        })
    }

    pub(crate) fn engine(&self) -> Engine {
        match self {
            Self::Memory => Engine::Memory,
            Self::Sqlite(_) => Engine::Sqlite,
            Self::Redis(_) => Engine::Redis,
            Self::Postgres(_) => Engine::Postgres,
        }
    }

    /// The URL of a new store of this name. On Redis all stores share one database; no two runs share a key.
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

    /// Opens hapax's store of this name.
    pub(crate) async fn store(&self, name: &str) -> anyhow::Result<Arc<dyn Store>> {
        self.store_at(&self.url(name)).await
    }

    /// Opens hapax's store at a URL of this server.
    pub(crate) async fn store_at(&self, url: &str) -> anyhow::Result<Arc<dyn Store>> {
        let store: Arc<dyn Store> = match self {
            Self::Postgres(_) => {
                let config = hapax_postgres::PostgresConfig::new(url).max_connections(POOL);
                Arc::new(hapax_postgres::PostgresStore::open(config)?)
            }
            _ => hapax::open(
                url,
                &hapax::StoreConfig::default()
                    .redis_verbatim(["processing:*", "user:*:last_transaction"]),
            )?,
        };
        store.ping().await?;
        Ok(store)
    }

    pub(crate) fn processes(&self) -> ProcessGroup {
        let pid = match self {
            Self::Memory | Self::Sqlite(_) => None,
            Self::Redis(server) => server.pid(),
            Self::Postgres(server) => server.pid(),
        };
        ProcessGroup::new(pid.map(i32::cast_unsigned))
    }

    pub(crate) fn description(&self) -> String {
        match self {
            Self::Memory => "memory of the process itself".into(),
            Self::Sqlite(_) => format!(
                "SQLite {} (in the process itself; WAL, synchronous=FULL)",
                hapax_sqlite::rusqlite::version()
            ),
            Self::Redis(_) => {
                let version = redis_version().unwrap_or_else(|| "of unknown version".into());
                format!("Redis {version} (appendonly no: not durable)")
            }
            Self::Postgres(server) => format!(
                "PostgreSQL {} (fsync and synchronous_commit on)",
                // Debian adds its own version in brackets.
                server.psql("SHOW server_version").split(' ').next().unwrap_or_default()
            ),
        }
    }
}

fn redis_version() -> Option<String> {
    let output = Command::new(find_binary("redis-server").ok()?).arg("--version").output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout);
    said.split_whitespace().find_map(|word| Some(word.strip_prefix("v=")?.to_owned()))
}
