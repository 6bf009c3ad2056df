//! Each store beside its raw engine.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::Store;
use hapax_core::memory::MemoryStore;
use hapax_postgres::PostgresStore;
use hapax_redis::{RedisConfig, RedisStore};
use hapax_sqlite::SqliteStore;
use hapax_testkit::{Postgres, Redis};
use hapax_workload::{
    BenchError, BenchPlan, BenchSpan, MarkdownTable, ProcessGroup, Workload, measure_on_store,
};

use crate::raw::{RawEngine, postgres::RawPostgres, redis::RawRedis, sqlite::RawSqlite};
use crate::store_server::{Engine, POOL, redis_version};
use crate::turns::{self, PARTS, take_turns};
use crate::{progress, say};

/// The warm-up before each part.
const WARM_UP: Duration = Duration::from_millis(150);
/// The warm-up before the first line, so that files have grown to their final size.
const FIRST_WARM_UP: Duration = Duration::from_millis(1_500);

pub(crate) async fn compare(
    engines: &[Engine],
    tasks: &[usize],
    seconds: Duration,
) -> anyhow::Result<()> {
    for engine in engines {
        let comparison = StoreComparison::open(*engine).await?;
        say(&format!("## {}\n", comparison.title))?;
        let table = measure_all(&comparison, tasks, seconds).await?;
        say(&table.to_string())?;
    }
    Ok(())
}

async fn measure_all(
    comparison: &StoreComparison,
    tasks: &[usize],
    time: Duration,
) -> Result<MarkdownTable, BenchError> {
    let mut table = turns::table("workload");
    warm_up(comparison, tasks).await?;
    for workload in Workload::ALL {
        for tasks in tasks {
            let plan = BenchPlan::new(*tasks, BenchSpan::Time(time / PARTS))
                .warm_up(WARM_UP)
                .servers([comparison.servers.clone()]);
            let hapax = async || measure_on_store(comparison.store.clone(), workload, &plan).await;
            let raw =
                comparison.raw.as_ref().map(|raw| async || raw.measure(workload, &plan).await);
            let (hapax, raw) = take_turns(hapax, raw).await?;
            table.row(turns::row(workload.name(), *tasks, &hapax, raw.as_ref()));
            progress(".");
        }
    }
    progress("\n");
    Ok(table)
}

async fn warm_up(comparison: &StoreComparison, tasks: &[usize]) -> Result<(), BenchError> {
    let most = tasks.iter().copied().max().unwrap_or(1);
    let plan = BenchPlan::new(most, BenchSpan::Time(FIRST_WARM_UP));
    measure_on_store(comparison.store.clone(), Workload::Command, &plan).await?;
    if let Some(raw) = &comparison.raw {
        raw.measure(Workload::Command, &plan).await?;
    }
    Ok(())
}

pub(crate) struct StoreComparison {
    pub(crate) title: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) raw: Option<Box<dyn RawEngine>>,
    pub(crate) servers: ProcessGroup,
    /// The server or the folder, which is removed with the comparison.
    _server: Box<dyn Any + Send + Sync>,
}

impl StoreComparison {
    pub(crate) async fn open(engine: Engine) -> anyhow::Result<Self> {
        let comparison = match engine {
            Engine::Memory => Self::memory(),
            Engine::Sqlite => Self::sqlite()?,
            Engine::Redis => Self::redis().await?,
            Engine::Postgres => Self::postgres().await?,
        };
        comparison.store.ping().await?;
        Ok(comparison)
    }

    fn memory() -> Self {
        Self {
            title: "memory (this process; nothing to compare with)".into(),
            store: Arc::new(MemoryStore::default()),
            raw: None,
            servers: ProcessGroup::default(),
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
            servers: ProcessGroup::default(),
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
            servers: ProcessGroup::new(server.pid().map(i32::cast_unsigned)),
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
            servers: ProcessGroup::new(server.pid().map(i32::cast_unsigned)),
            _server: Box::new(server),
        })
    }
}
