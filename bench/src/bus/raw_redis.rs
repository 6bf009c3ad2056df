//! A usual worker script alone: no router behind it, no offsets, no conflicts, no epochs.

use async_trait::async_trait;
use hapax_workload::BenchError;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script};

use super::publishing::BenchEvent;
use super::publishing::EventPublisher;
use crate::raw::engine;

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

pub(super) struct RawRedisPublisher {
    connection: MultiplexedConnection,
    script: Script,
}

impl RawRedisPublisher {
    pub(super) async fn connect(url: &str) -> anyhow::Result<Self> {
        // The driver's own limits are for one call; many at once on a busy machine need more.
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(std::time::Duration::from_secs(10)));
        let client = Client::open(url)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Self { connection, script: Script::new(SCRIPT) })
    }
}

#[async_trait]
impl EventPublisher for RawRedisPublisher {
    async fn publish(&self, task: usize, event: BenchEvent) -> Result<(), BenchError> {
        let published: u8 = self
            .script
            .key(format!("scan:events:{}", task % SHARDS))
            .key(format!("scan:state:{}", event.job))
            .key(format!("published:{}:{}:{}", event.job, event.stage, event.seq))
            .arg(event.for_raw())
            .arg(3600)
            .arg(7200)
            .invoke_async(&mut self.connection.clone())
            .await
            .map_err(engine)?;
        match published {
            1 => Ok(()),
            _ => Err(BenchError::Unexpected("a new event was published before")),
        }
    }
}
