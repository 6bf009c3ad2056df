//! Connections to Redis, for the sink and the source.

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

/// The longest that connecting may take.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct RedisSinkConnection {
    pub(crate) connection: MultiplexedConnection,
    is_lost: Arc<AtomicBool>,
}

impl LiveConnection for RedisSinkConnection {
    fn is_alive(&self) -> bool {
        !self.is_lost.load(Ordering::Relaxed)
    }
}

pub(crate) fn client(url: &str) -> Result<Client, EndpointConfigError> {
    // The process has one TLS provider; an earlier choice stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let malformed =
        |_| EndpointConfigError::new("a Redis URL such as redis://host:6379/0 is expected");
    let info = url.into_connection_info().map_err(malformed)?;
    // Only RESP3 reports a lost connection.
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Client::open(info.set_redis_settings(settings)).map_err(malformed)
}

pub(crate) async fn connect(client: &Client) -> RedisResult<RedisSinkConnection> {
    let is_lost = Arc::new(AtomicBool::new(false));
    let lost = is_lost.clone();
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None)
        .set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                lost.store(true, Ordering::Relaxed);
            }
            Ok::<_, redis::aio::SendError>(())
        });
    let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    Ok(RedisSinkConnection { connection, is_lost })
}
