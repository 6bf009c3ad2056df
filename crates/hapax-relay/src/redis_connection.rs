//! Connections to Redis, for the sink and the source.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, IntoConnectionInfo, ProtocolVersion,
    PushInfo, PushKind, RedisError, RedisResult, TlsCertificates,
};
use tokio::time::timeout;

use crate::DeliveryError;
use crate::broker_ca::{self, UNTRUSTED};
use crate::shared_connection::{LiveConnection, SinkConnection};
use crate::sinks::EndpointConfigError;

/// The longest that connecting may take.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Error codes that concern the server, not the command.
const SERVER_ERRORS: &[&str] = &[
    "OOM",
    "MISCONF",
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "NOREPLICAS",
    "BUSY",
    "TRYAGAIN",
    "NOAUTH",
    "WRONGPASS",
];

/// A server, and the connection to it that many callers share.
pub(crate) struct RedisLink {
    client: Client,
    connection: SinkConnection<RedisConnection>,
}

#[derive(Clone)]
struct RedisConnection {
    connection: MultiplexedConnection,
    is_lost: Arc<AtomicBool>,
}

impl LiveConnection for RedisConnection {
    fn is_alive(&self) -> bool {
        !self.is_lost.load(Ordering::Relaxed)
    }
}

impl RedisLink {
    /// A link that connects when it is first used.
    pub(crate) fn new(url: &str) -> Result<Self, EndpointConfigError> {
        // The process has one TLS provider; an earlier choice stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let malformed =
            |_| EndpointConfigError::new("a Redis URL such as redis://host:6379/0 is expected");
        let (url, ca) = broker_ca::take_ca(url)?;
        if ca.is_some() && !url.starts_with("rediss:") {
            return Err(broker_ca::ca_without_tls("rediss://"));
        }
        let info = url.into_connection_info().map_err(malformed)?;
        // Only RESP3 reports a lost connection.
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_redis_settings(settings);
        let client = match ca {
            Some(ca) => {
                let root_cert = Some(ca.pem.into_bytes());
                Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert })
            }
            None => Client::open(info),
        };
        let client = client.map_err(malformed)?;
        Ok(Self { client, connection: SinkConnection::new() })
    }

    /// Connects anew, even if there is a connection.
    pub(crate) async fn reconnect(&self) -> Result<(), DeliveryError> {
        self.connection.reconnect(|| self.connect()).await.map(drop)
    }

    pub(crate) async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T, DeliveryError> {
        self.run(async |connection| cmd.query_async(connection).await).await
    }

    /// As [`RedisLink::run`], for at most this time.
    pub(crate) async fn run_within<T>(
        &self,
        limit: Duration,
        call: impl AsyncFnOnce(&mut MultiplexedConnection) -> RedisResult<T>,
    ) -> Result<T, DeliveryError> {
        let timed_out = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
        self.run(async |open| timeout(limit, call(open)).await.unwrap_or_else(timed_out)).await
    }

    /// Runs a call over the connection, which is discarded after an error that is not Redis's own
    /// answer: a firewall may have dropped it.
    pub(crate) async fn run<T>(
        &self,
        call: impl AsyncFnOnce(&mut MultiplexedConnection) -> RedisResult<T>,
    ) -> Result<T, DeliveryError> {
        // Boxed: connecting is rare, and its large future would be part of every message's future.
        let connect = || Box::pin(self.connect());
        let (number, mut open) = self.connection.get_or_connect(connect).await?;
        let error = match call(&mut open.connection).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        Err(match error.code() {
            Some(code) if SERVER_ERRORS.contains(&code) => {
                DeliveryError::unreachable(format!("Redis takes nothing now ({code})"))
            }
            Some(code) => DeliveryError::refused(format!("Redis refused it ({code})")),
            None => {
                self.connection.discard(number).await;
                DeliveryError::disconnected(describe("answer", &error))
            }
        })
    }

    async fn connect(&self) -> Result<RedisConnection, DeliveryError> {
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
        match self.client.get_multiplexed_async_connection_with_config(&config).await {
            Ok(connection) => Ok(RedisConnection { connection, is_lost }),
            Err(error) if broker_ca::is_untrusted(&error) => {
                Err(DeliveryError::unreachable(UNTRUSTED))
            }
            Err(error) => Err(DeliveryError::unreachable(describe("connect", &error))),
        }
    }
}

/// Describes an error by its category, because the driver's full text may name the server's
/// address.
fn describe(what: &str, error: &RedisError) -> String {
    format!("Redis did not {what}: {}", error.category())
}
