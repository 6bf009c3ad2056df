//! Redis Streams over one multiplexed connection.

use std::sync::Arc;

use async_trait::async_trait;
use hapax_relay::Sink;
use hapax_relay::sinks::RedisStreamSink;
use hapax_testkit::Redis;
use hapax_workload::{BenchError, BenchOperation, ProcessGroup};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, cmd};

use super::Broker;
use crate::raw::engine;
use crate::relay::rows::{TOPIC, message};

pub(super) fn start() -> anyhow::Result<Box<dyn Broker>> {
    Ok(Box::new(Streams(Redis::with(&["--appendonly", "no"]))))
}

struct Streams(Redis);

#[async_trait]
impl Broker for Streams {
    fn name(&self) -> &'static str {
        "Redis"
    }

    fn processes(&self) -> ProcessGroup {
        ProcessGroup::new(self.0.pid().map(i32::cast_unsigned))
    }

    fn sink(&self) -> anyhow::Result<Arc<dyn Sink>> {
        Ok(Arc::new(RedisStreamSink::new(&self.0.url())?))
    }

    async fn client(&self) -> anyhow::Result<Arc<dyn BenchOperation>> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(std::time::Duration::from_secs(10)));
        let client = Client::open(self.0.url())?;
        Ok(Arc::new(Add(client.get_multiplexed_async_connection_with_config(&config).await?)))
    }

    async fn clear(&self) -> anyhow::Result<()> {
        self.0.cli(&["DEL", TOPIC]);
        Ok(())
    }
}

struct Add(MultiplexedConnection);

#[async_trait]
impl BenchOperation for Add {
    async fn run(&self, task: usize, _turn: u64) -> Result<(), BenchError> {
        let item = message(task);
        let mut add = cmd("XADD");
        add.arg(TOPIC).arg("*").arg("id").arg(item.id.to_string());
        add.arg("payload").arg(&item.payload[..]).arg("content_type").arg("application/json");
        add.query_async::<()>(&mut self.0.clone()).await.map_err(engine)
    }
}
