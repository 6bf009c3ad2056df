//! One store and its raw engine, on a server of their own.

use std::any::Any;
use std::process::Command;
use std::sync::Arc;

use clap::ValueEnum;
use hapax_bench::Processes;
use hapax_core::Store;
use hapax_core::memory::MemoryStore;
use hapax_postgres::PostgresStore;
use hapax_redis::{RedisConfig, RedisStore};
use hapax_sqlite::SqliteStore;
use hapax_testkit::{Postgres, Redis, find_binary};

use crate::place::POOL;
use crate::raw::{Raw, postgres::RawPostgres, redis::RawRedis, sqlite::RawSqlite};

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

pub(crate) struct Arena {
    pub(crate) title: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) raw: Option<Box<dyn Raw>>,
    pub(crate) servers: Processes,
    /// The server, or the folder: gone with the arena.
    _server: Box<dyn Any + Send + Sync>,
}

impl Arena {
    pub(crate) async fn open(engine: Engine) -> anyhow::Result<Self> {
        let arena = match engine {
            Engine::Memory => Self::memory(),
            Engine::Sqlite => Self::sqlite()?,
            Engine::Redis => Self::redis().await?,
            Engine::Postgres => Self::postgres().await?,
        };
        arena.store.ping().await?;
        Ok(arena)
    }

    fn memory() -> Self {
        Self {
            title: "memory (this process; nothing to compare with)".into(),
            store: Arc::new(MemoryStore::default()),
            raw: None,
            servers: Processes::default(),
            _server: Box::new(()),
        }
    }

    fn sqlite() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let raw = RawSqlite::open(&folder.path().join("raw.db"))?;
        Ok(Self {
            title: format!(
                "SQLite {} (in this process; both WAL, synchronous=FULL; raw: one thread, up to \
                 {} operations in a commit)",
                hapax_sqlite::rusqlite::version(),
                crate::raw::sqlite::BATCH
            ),
            store: Arc::new(SqliteStore::open(folder.path().join("hapax.db"))?),
            raw: Some(Box::new(raw)),
            servers: Processes::default(),
            _server: Box::new(folder),
        })
    }

    async fn redis() -> anyhow::Result<Self> {
        let server = Redis::with(&["--appendonly", "no"]);
        Ok(Self {
            title: format!(
                "Redis {} (appendonly no: not durable, so that the disk does not hide \
                 the rest; raw: SET NX PX, DEL, SET, GET over one multiplexed connection)",
                redis_version()
            ),
            store: Arc::new(RedisStore::open(RedisConfig::new(&server.url())?)?),
            raw: Some(Box::new(RawRedis::open(&server.url()).await?)),
            servers: Processes::new(server.pid().map(i32::cast_unsigned)),
            _server: Box::new(server),
        })
    }

    async fn postgres() -> anyhow::Result<Self> {
        let server = Postgres::start();
        let version = server.psql("SHOW server_version");
        let config =
            hapax_postgres::PostgresConfig::new(server.database("hapax")).max_connections(POOL);
        Ok(Self {
            title: format!(
                "PostgreSQL {version} (fsync and synchronous_commit on; both {POOL} connections; \
                 raw: one prepared statement, one commit each)"
            ),
            store: Arc::new(PostgresStore::open(config)?),
            raw: Some(Box::new(RawPostgres::open(&server.database("raw"), POOL).await?)),
            servers: Processes::new(server.pid().map(i32::cast_unsigned)),
            _server: Box::new(server),
        })
    }
}

pub(crate) fn redis_version() -> String {
    let said = find_binary("redis-server")
        .ok()
        .and_then(|path| Command::new(path).arg("--version").output().ok())
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    said.and_then(|text| {
        text.split_whitespace().find_map(|word| Some(word.strip_prefix("v=")?.to_owned()))
    })
    .unwrap_or_else(|| "of unknown version".into())
}
