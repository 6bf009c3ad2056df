//! Publishers without hapax.

use std::sync::Arc;

use async_trait::async_trait;
use deadpool_postgres::Pool;
use hapax_workload::BenchError;
use redis::Script;
use redis::aio::MultiplexedConnection;

use super::publishing::{BenchEvent, EventPublisher};
use crate::raw::sqlite::{BATCH, RawSqliteFile};
use crate::raw::{engine, postgres, redis as raw_redis, sqlite};
use crate::store_server::{Engine, StoreServer};

/// The publisher of a store's server; memory has none.
pub(super) async fn publisher(
    server: &StoreServer,
) -> anyhow::Result<Option<Arc<dyn EventPublisher>>> {
    let url = server.url("raw");
    Ok(match server.engine() {
        Engine::Memory => None,
        Engine::Sqlite => {
            Some(Arc::new(RawSqlitePublisher(RawSqliteFile::open(&url, SQLITE_TABLE)?)))
        }
        Engine::Redis => {
            let connection = raw_redis::connect(&url).await?;
            Some(Arc::new(RawRedisPublisher { connection, script: Script::new(SCRIPT) }))
        }
        Engine::Postgres => {
            let pool = postgres::open_pool(&url, POSTGRES_TABLE).await?;
            Some(Arc::new(RawPostgresPublisher(pool)))
        }
    })
}

const POSTGRES_TABLE: &str = "CREATE TABLE raw_events (job text COLLATE \"C\", \
    stage text COLLATE \"C\", seq bigint, payload text NOT NULL, PRIMARY KEY (job, stage, seq))";
const POSTGRES_INSERT: &str =
    "INSERT INTO raw_events VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";

/// One durable insert for each event, in a prepared statement.
struct RawPostgresPublisher(Pool);

#[async_trait]
impl EventPublisher for RawPostgresPublisher {
    async fn publish(&self, _task: usize, events: &[BenchEvent]) -> Result<(), BenchError> {
        let client = self.0.get().await.map_err(engine)?;
        for event in events {
            let (seq, payload) = (event.seq.cast_signed(), event.for_raw());
            let values: &[&(dyn tokio_postgres::types::ToSql + Sync)] =
                &[&event.job, &event.stage, &seq, &payload];
            postgres::change_row(&client, POSTGRES_INSERT, values).await?;
        }
        Ok(())
    }
}

const SQLITE_TABLE: &str = "CREATE TABLE raw_events (job TEXT, stage TEXT, seq INTEGER, \
    payload TEXT NOT NULL, PRIMARY KEY (job, stage, seq)) STRICT, WITHOUT ROWID";
const SQLITE_INSERT: &str = "INSERT INTO raw_events VALUES (?1, ?2, ?3, ?4)";

/// One connection, and as many inserts in a commit as there are tasks to ask for them.
struct RawSqlitePublisher(RawSqliteFile);

#[async_trait]
impl EventPublisher for RawSqlitePublisher {
    async fn publish(&self, _task: usize, events: &[BenchEvent]) -> Result<(), BenchError> {
        self.0.commit(events, |tx, event| {
            let values = (&event.job, event.stage, event.seq.cast_signed(), event.for_raw());
            sqlite::change_row(tx, SQLITE_INSERT, values)
        })
    }

    fn batch(&self, tasks: usize) -> usize {
        tasks.min(BATCH)
    }
}

/// `IDEMPOTENT_XADD`, word for word.
const SCRIPT: &str = "
local stream_key = KEYS[1]
local state_key = KEYS[2]
local publish_key = KEYS[3]
local event_data = ARGV[1]
local state_ttl = tonumber(ARGV[2])
local publish_ttl = tonumber(ARGV[3])

if redis.call('EXISTS', publish_key) == 1 then
    return 0
end

redis.call('XADD', stream_key, 'MAXLEN', '~', '10000', '*', 'data', event_data)
redis.call('SETEX', state_key, state_ttl, event_data)
redis.call('SETEX', publish_key, publish_ttl, '1')

return 1
";
const SHARDS: usize = 4;

/// A usual worker script alone: no router behind it, no offsets, no conflicts, no epochs.
struct RawRedisPublisher {
    connection: MultiplexedConnection,
    script: Script,
}

#[async_trait]
impl EventPublisher for RawRedisPublisher {
    async fn publish(&self, task: usize, events: &[BenchEvent]) -> Result<(), BenchError> {
        for event in events {
            let mut publish = self.script.key(format!("scan:events:{}", task % SHARDS));
            publish
                .key(format!("scan:state:{}", event.job))
                .key(format!("published:{}:{}:{}", event.job, event.stage, event.seq))
                .arg(event.for_raw())
                .arg(3600)
                .arg(7200);
            let published = publish.invoke_async(&mut self.connection.clone()).await;
            if !published.map_err(engine)? {
                return Err(BenchError::Unexpected("a new event was published before"));
            }
        }
        Ok(())
    }
}
