//! Plain Redis commands over one multiplexed connection.

use std::time::Duration;

use async_trait::async_trait;
use hapax_workload::BenchError;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Value, cmd};

use super::{RawEngine, RawStep, TOKEN, VALUE, engine};

/// The TTL in milliseconds of keys that are not read again, so that they do not pile up.
const SHORT_TTL: u32 = 10_000;
/// The TTL of keys that are read during the whole run.
const LONG_TTL: u32 = 86_400_000;

pub(crate) async fn connect(url: &str) -> anyhow::Result<MultiplexedConnection> {
    // The driver's default, 500 ms for each call, is too short for many calls at once on a busy machine.
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
    Ok(Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

pub(super) struct RawRedis(MultiplexedConnection);

impl RawRedis {
    pub(super) async fn connect(url: &str) -> anyhow::Result<Self> {
        Ok(Self(connect(url).await?))
    }

    async fn send(&self, command: &Cmd) -> Result<(), BenchError> {
        match command.query_async(&mut self.0.clone()).await.map_err(engine)? {
            Value::Nil => Err(BenchError::Unexpected("a fresh key was taken, or a value is gone")),
            _ => Ok(()),
        }
    }

    async fn set(&self, key: &str, ttl: u32) -> Result<(), BenchError> {
        self.send(cmd("SET").arg(key).arg(VALUE).arg("PX").arg(ttl)).await
    }
}

#[async_trait]
impl RawEngine for RawRedis {
    async fn run(&self, step: RawStep, keys: &[String]) -> Result<(), BenchError> {
        for key in keys {
            match step {
                RawStep::Claim => {
                    self.send(cmd("SET").arg(key).arg(TOKEN).arg(&["NX", "PX", "30000"])).await?;
                }
                RawStep::Settle => self.set(key, SHORT_TTL).await?,
                RawStep::Release => self.send(cmd("DEL").arg(key)).await?,
                RawStep::Create => self.set(key, LONG_TTL).await?,
                RawStep::Read => self.send(cmd("GET").arg(key)).await?,
                RawStep::Update => {
                    self.send(cmd("GET").arg(key)).await?;
                    self.set(key, LONG_TTL).await?;
                }
            }
        }
        Ok(())
    }
}
