//! Connections to Redis, as sink and consumer use them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind,
    RedisResult,
};

use crate::shared_connection::LiveConnection;
use crate::sinks::EndpointConfigError;

/// Connecting may take this long; a question has the asker's own limit.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct RedisConnection {
    pub(crate) connection: MultiplexedConnection,
    gone: Arc<AtomicBool>,
}

impl LiveConnection for RedisConnection {
    fn is_alive(&self) -> bool {
        !self.gone.load(Ordering::Relaxed)
    }
}

pub(crate) fn client(url: &str) -> Result<Client, EndpointConfigError> {
    // One provider of TLS for the whole process; whoever chose one first is right.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let malformed =
        |_| EndpointConfigError::new("a Redis URL such as redis://host:6379/0 is expected");
    let info = url.into_connection_info().map_err(malformed)?;
    // Only this protocol tells of a connection that was lost.
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Client::open(info.set_redis_settings(settings)).map_err(malformed)
}

pub(crate) async fn connect(client: &Client) -> RedisResult<RedisConnection> {
    let gone = Arc::new(AtomicBool::new(false));
    let notice = gone.clone();
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT))
        .set_response_timeout(None)
        .set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                notice.store(true, Ordering::Relaxed);
            }
            Ok::<_, redis::aio::SendError>(())
        });
    let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    Ok(RedisConnection { connection, gone })
}
