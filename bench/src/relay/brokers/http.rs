//! A webhook: axum in a process of its own, which answers and does nothing.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Bytes;
use hapax_relay::Sink;
use hapax_relay::sinks::{WebhookConfig, WebhookSink};
use hapax_workload::{BenchError, BenchOperation, ProcessGroup};
use http_body_util::{BodyExt, Full};
use hyper::{Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::Broker;
use crate::process::ServerProcess;
use crate::raw::engine;
use crate::relay::rows::message;

pub(super) fn start() -> anyhow::Result<Box<dyn Broker>> {
    let server = crate::http::handler(None)?;
    let url = format!("http://{}/orders", server.address());
    Ok(Box::new(Hook { url, server }))
}

struct Hook {
    url: String,
    server: ServerProcess,
}

#[async_trait]
impl Broker for Hook {
    fn name(&self) -> &'static str {
        "HTTP"
    }

    fn processes(&self) -> ProcessGroup {
        self.server.processes()
    }

    fn sink(&self) -> anyhow::Result<Arc<dyn Sink>> {
        let settings = WebhookConfig::new().allow_private(true);
        Ok(Arc::new(WebhookSink::new(&self.url, &settings)?))
    }

    async fn client(&self) -> anyhow::Result<Arc<dyn BenchOperation>> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Arc::new(Post { client, uri: self.url.parse()? }))
    }

    async fn clear(&self) -> anyhow::Result<()> {
        Ok(())
    }
}

struct Post {
    client: Client<HttpConnector, Full<Bytes>>,
    uri: Uri,
}

#[async_trait]
impl BenchOperation for Post {
    async fn run(&self, task: usize, _turn: u64) -> Result<(), BenchError> {
        let item = message(task);
        let request = Request::post(self.uri.clone())
            .header("content-type", "application/json")
            .header("idempotency-key", item.id.to_string())
            .body(Full::new(item.payload))
            .map_err(engine)?;
        let answer = self.client.request(request).await.map_err(engine)?;
        let taken = answer.status().is_success();
        // Read the body to its end, so that the connection can be used again.
        answer.into_body().collect().await.map_err(engine)?;
        if taken { Ok(()) } else { Err(BenchError::Unexpected("the webhook refuses a message")) }
    }
}
