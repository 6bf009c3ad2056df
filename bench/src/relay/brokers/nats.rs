//! NATS JetStream, a stream in a file.

use std::sync::Arc;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, Context, stream};
use async_trait::async_trait;
use hapax_relay::Sink;
use hapax_relay::sinks::NatsSink;
use hapax_testkit::Nats;
use hapax_workload::{BenchError, BenchOperation, ProcessGroup};

use super::Broker;
use crate::raw::engine;
use crate::relay::rows::{TOPIC, message};

pub(super) fn start() -> anyhow::Result<Box<dyn Broker>> {
    Ok(Box::new(JetStream(Nats::start())))
}

/// Opens the stream, and creates it the first time.
pub(in crate::relay) async fn stream(url: &str) -> anyhow::Result<(Context, stream::Stream)> {
    let context = jetstream::new(async_nats::connect(url).await?);
    let subjects = vec![TOPIC.to_owned()];
    let config = stream::Config { name: TOPIC.into(), subjects, ..Default::default() };
    let stream = context.get_or_create_stream(config).await?;
    Ok((context, stream))
}

struct JetStream(Nats);

#[async_trait]
impl Broker for JetStream {
    fn name(&self) -> &'static str {
        "NATS"
    }

    fn processes(&self) -> ProcessGroup {
        ProcessGroup::new(self.0.pid().map(i32::cast_unsigned))
    }

    fn sink(&self) -> anyhow::Result<Arc<dyn Sink>> {
        Ok(Arc::new(NatsSink::new(&self.0.url())?))
    }

    async fn client(&self) -> anyhow::Result<Arc<dyn BenchOperation>> {
        let (context, _) = stream(&self.0.url()).await?;
        Ok(Arc::new(NatsPublish(context)))
    }

    async fn clear(&self) -> anyhow::Result<()> {
        stream(&self.0.url()).await?.1.purge().await?;
        Ok(())
    }
}

pub(in crate::relay) struct NatsPublish(pub(in crate::relay) Context);

#[async_trait]
impl BenchOperation for NatsPublish {
    async fn run(&self, task: usize, _turn: u64) -> Result<(), BenchError> {
        let item = message(task);
        let mut headers = HeaderMap::new();
        headers.insert(async_nats::header::NATS_MESSAGE_ID, item.id.to_string());
        let published = self.0.publish_with_headers(TOPIC, headers, item.payload).await;
        published.map_err(engine)?.await.map_err(engine)?;
        Ok(())
    }
}
