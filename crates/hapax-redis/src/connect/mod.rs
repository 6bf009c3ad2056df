//! Connections to a single server, to the master behind Sentinel, and to a Cluster.

mod address;
mod cluster_node;
mod shared;

use std::time::Duration;

use hapax_core::{StoreError, StoreResult};
use redis::aio::{MultiplexedConnection, PubSub};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{
    MultipleNodeRoutingInfo, Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr,
};
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, Pipeline, RedisConnectionInfo, RedisError, RedisResult, TlsCertificates,
    TlsMode, Value,
};
use tokio::sync::Mutex;

use crate::error::UNCONFIRMED;
use cluster_node::ClusterNode;

pub(crate) use address::{Login, RedisAddress, ReplicaWait, Topology};
pub(crate) use shared::SharedConnection;

/// The timeout of one attempt to connect. Its steps have timeouts of their own, but a Cluster's client makes
/// as many steps as there are nodes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// A multiplexed connection: many calls share it at the same time.
#[derive(Clone)]
pub(crate) enum RedisConnection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection<ClusterNode>),
}

/// A write that follows a script on the same connection, and the number of replicas that must confirm it.
///
/// `WAIT` is about the last write of its connection, and the script may have had nothing to write.
#[derive(Clone, Copy)]
pub(crate) struct ReplicaBarrier<'a> {
    pub(crate) key: &'a str,
    pub(crate) wait: ReplicaWait,
}

impl RedisConnection {
    /// Sends a command, followed by the barrier if there is one.
    pub(crate) async fn send_with_barrier(
        &mut self,
        cmd: &Cmd,
        barrier: Option<ReplicaBarrier<'_>>,
    ) -> RedisResult<Value> {
        match barrier {
            None => self.send(cmd).await,
            Some(barrier) => Box::pin(self.send_confirmed(cmd, barrier)).await,
        }
    }

    async fn send_confirmed(
        &mut self,
        cmd: &Cmd,
        barrier: ReplicaBarrier<'_>,
    ) -> RedisResult<Value> {
        let ReplicaBarrier { key, wait } = barrier;
        let mut pipeline = Pipeline::with_capacity(3);
        pipeline.add_command(cmd.clone());
        pipeline.cmd("SET").arg(key).arg(1);
        pipeline.cmd("WAIT").arg(wait.replicas).arg(wait.timeout.as_millis().max(1) as u64);
        let [reply, barrier, confirmed] = self.send_together(pipeline, key).await?;
        let reply = reply.extract_error()?;
        barrier.extract_error()?;
        let confirmed: u64 = redis::from_redis_value(confirmed.extract_error()?)?;
        if confirmed < u64::from(wait.replicas) {
            return Err(RedisError::from((ErrorKind::Client, UNCONFIRMED)));
        }
        Ok(reply)
    }

    /// The value under a key and its TTL in ms; `None` where the key does not exist or never expires.
    pub(crate) async fn read_with_ttl(&mut self, key: &str) -> RedisResult<Option<(Vec<u8>, u64)>> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("GET").arg(key);
        pipeline.cmd("PTTL").arg(key);
        let [value, ttl] = self.send_together(pipeline, key).await?;
        let value = redis::from_redis_value::<Option<Vec<u8>>>(value.extract_error()?)?;
        let ttl = redis::from_redis_value::<i64>(ttl.extract_error()?)?;
        Ok(value.zip(u64::try_from(ttl).ok()))
    }

    /// The value under a key, its TTL in ms (negative without one), and then the first bytes of the value again.
    pub(crate) async fn read_with_ttl_and_head(
        &mut self,
        key: &str,
        head_bytes: usize,
    ) -> RedisResult<(Option<Vec<u8>>, i64, Vec<u8>)> {
        let mut pipeline = Pipeline::with_capacity(3);
        pipeline.cmd("GET").arg(key);
        pipeline.cmd("PTTL").arg(key);
        pipeline.cmd("GETRANGE").arg(key).arg(0).arg(head_bytes - 1);
        let [value, ttl, head] = self.send_together(pipeline, key).await?;
        let value = redis::from_redis_value(value.extract_error()?)?;
        let ttl = redis::from_redis_value(ttl.extract_error()?)?;
        let head = redis::from_redis_value(head.extract_error()?)?;
        Ok((value, ttl, head))
    }

    /// Sends commands about one key in one piece, and returns their replies, errors among them.
    async fn send_together<const N: usize>(
        &mut self,
        commands: Pipeline,
        key: &str,
    ) -> RedisResult<[Value; N]> {
        let replies = match self {
            Self::Server(connection) => connection.send_packed_commands(&commands, 0, N).await?,
            Self::Cluster(connection) => {
                let master = Route::with_key(key, SlotAddr::Master);
                let master = SingleNodeRoutingInfo::SpecificNode(master);
                // Boxed, so that the futures of calls to a single server stay small.
                Box::pin(connection.route_pipeline(commands, 0, N, master)).await?
            }
        };
        let wrong_number = |_| RedisError::from((ErrorKind::Parse, "another number of replies"));
        <[Value; N]>::try_from(replies).map_err(wrong_number)
    }

    pub(crate) async fn send(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Server(connection) => connection.send_packed_command(cmd).await?.extract_error(),
            // Boxed, so that the futures of calls to a single server stay small.
            Self::Cluster(connection) => Box::pin(cmd.query_async(connection)).await,
        }
    }

    /// Sends a command to every master, and returns each address with its reply. The address of a single
    /// server is empty.
    pub(crate) async fn send_to_masters(&mut self, cmd: &Cmd) -> RedisResult<Vec<(String, Value)>> {
        let Self::Cluster(connection) = self else {
            return Ok(vec![(String::new(), self.send(cmd).await?)]);
        };
        let masters = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        match connection.route_command(cmd.clone(), masters).await?.extract_error()? {
            Value::Map(replies) => replies
                .into_iter()
                .map(|(address, a)| Ok((redis::from_redis_value(address)?, a.extract_error()?)))
                .collect(),
            other => Ok(vec![(String::new(), other)]),
        }
    }

    /// Sends a command to the master at an address that [`RedisConnection::send_to_masters`] returned.
    pub(crate) async fn send_to(&mut self, address: &str, cmd: &Cmd) -> RedisResult<Value> {
        let address = address.rsplit_once(':').and_then(|(h, p)| Some((h, p.parse().ok()?)));
        match (&mut *self, address) {
            (Self::Cluster(connection), Some((host, port))) => {
                let host = host.to_owned();
                let node = SingleNodeRoutingInfo::ByAddress { host, port };
                let node = RoutingInfo::SingleNode(node);
                connection.route_command(cmd.clone(), node).await?.extract_error()
            }
            _ => self.send(cmd).await,
        }
    }

    /// Whether the driver replaces broken connections by itself.
    pub(crate) fn reconnects_itself(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}

/// Makes connections to the servers of an address.
///
/// TCP_NODELAY stays off, as the driver has it: concurrent calls share packets, which was measured to save
/// 10 to 25 % of the CPU time of 64 to 256 calls, and a call that is alone on its connection is not delayed.
pub(crate) struct RedisConnector {
    target: Target,
    timeout: Duration,
    max_in_flight: usize,
}

enum Target {
    Single(Client),
    /// The client keeps its connections to the sentinels and needs `&mut self`, hence the lock.
    Sentinel(Mutex<SentinelClient>),
    Cluster {
        client: ClusterClient,
        seeds: Vec<Client>,
    },
}

impl RedisConnector {
    /// Whether sentinels or Cluster nodes say which server is a master.
    pub(crate) fn finds_masters(&self) -> bool {
        !matches!(self.target, Target::Single(_))
    }

    pub(crate) fn new(
        address: &RedisAddress,
        timeout: Duration,
        max_in_flight: usize,
    ) -> StoreResult<Self> {
        let certificates = certificates(address)?;
        let target =
            target(address, certificates, timeout).map_err(|error| StoreError::Incompatible {
                reason: format!("the driver refused the configuration: {error}"),
            })?;
        Ok(Self { target, timeout, max_in_flight })
    }

    pub(crate) async fn connect(&self) -> RedisResult<RedisConnection> {
        let attempt = tokio::time::timeout(CONNECT_TIMEOUT, self.attempt());
        attempt.await.map_err(|_| timed_out())?
    }

    async fn attempt(&self) -> RedisResult<RedisConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            // Every call has a timeout already, and a second timer costs CPU time.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(self.max_in_flight);
        match &self.target {
            Target::Single(client) => client
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .map(RedisConnection::Server),
            Target::Sentinel(client) => {
                let mut client = client.lock().await;
                client.get_async_connection_with_config(&config).await.map(RedisConnection::Server)
            }
            Target::Cluster { client, .. } => {
                client.get_async_generic_connection().await.map(RedisConnection::Cluster)
            }
        }
    }

    /// Opens a connection for pub/sub, to any server that receives the messages of the one in use.
    pub(crate) async fn subscribe(&self) -> RedisResult<PubSub> {
        match &self.target {
            Target::Single(client) => self.subscribe_to(client).await,
            Target::Sentinel(client) => {
                let client = client.lock().await.async_get_client().await?;
                self.subscribe_to(&client).await
            }
            // The nodes of a Cluster forward published messages to each other.
            Target::Cluster { seeds, .. } => {
                let mut last = RedisError::from((ErrorKind::Io, "no node to subscribe to"));
                for seed in seeds {
                    match self.subscribe_to(seed).await {
                        Ok(subscription) => return Ok(subscription),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    async fn subscribe_to(&self, client: &Client) -> RedisResult<PubSub> {
        let subscribing = tokio::time::timeout(self.timeout, client.get_async_pubsub());
        subscribing.await.map_err(|_| timed_out())?
    }
}

fn timed_out() -> RedisError {
    RedisError::from((ErrorKind::Io, "no reply in time"))
}

fn target(
    address: &RedisAddress,
    certificates: Option<TlsCertificates>,
    timeout: Duration,
) -> RedisResult<Target> {
    let servers = address.nodes.iter().map(|(host, port)| server(host, *port, address.tls));
    match &address.topology {
        Topology::Single => {
            let node = servers.into_iter().next();
            let node = node.ok_or((ErrorKind::InvalidClientConfig, "no server"))?;
            client(node, address, certificates.as_ref()).map(Target::Single)
        }
        Topology::Sentinel { master } => {
            let client = sentinel(servers.collect(), master, address, certificates)?;
            Ok(Target::Sentinel(Mutex::new(client)))
        }
        Topology::Cluster => {
            let seeds: Vec<Client> = servers
                .map(|node| client(node, address, certificates.as_ref()))
                .collect::<RedisResult<_>>()?;
            let client = cluster(&seeds, address, certificates, timeout)?;
            Ok(Target::Cluster { client, seeds })
        }
    }
}

fn client(
    node: ConnectionAddr,
    address: &RedisAddress,
    certificates: Option<&TlsCertificates>,
) -> RedisResult<Client> {
    let Login { user, password } = &address.login;
    let settings = RedisConnectionInfo::default().set_db(address.database);
    let settings = with(settings, user, |settings, user| settings.set_username(user));
    let settings = with(settings, password, |settings, password| settings.set_password(password));
    let info = node.into_connection_info()?.set_redis_settings(settings);
    match certificates {
        Some(certificates) => Client::build_with_tls(info, certificates.clone()),
        None => Client::open(info),
    }
}

fn sentinel(
    sentinels: Vec<ConnectionAddr>,
    master: &str,
    address: &RedisAddress,
    certificates: Option<TlsCertificates>,
) -> RedisResult<SentinelClient> {
    let builder = SentinelClientBuilder::new(sentinels, master, SentinelServerType::Master)?
        .set_client_to_redis_db(address.database);
    let Login { user, password } = &address.login;
    let builder = with(builder, user, |b, user| b.set_client_to_redis_username(user));
    let builder = with(builder, password, |b, password| b.set_client_to_redis_password(password));
    let Login { user, password } = &address.sentinel_login;
    let builder = with(builder, user, |b, user| b.set_client_to_sentinel_username(user));
    let mut builder =
        with(builder, password, |b, password| b.set_client_to_sentinel_password(password));
    if address.tls {
        builder = builder
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_sentinel_tls_mode(TlsMode::Secure);
    }
    if let Some(certificates) = certificates {
        builder = builder
            .set_client_to_redis_certificates(certificates.clone())
            .set_client_to_sentinel_certificates(certificates);
    }
    builder.build()
}

fn cluster(
    seeds: &[Client],
    address: &RedisAddress,
    certificates: Option<TlsCertificates>,
    timeout: Duration,
) -> RedisResult<ClusterClient> {
    let seeds: Vec<ConnectionInfo> =
        seeds.iter().map(|s| s.get_connection_info().clone()).collect();
    // The driver repeats redirected and refused commands, for a part of the call's timeout.
    let builder = ClusterClientBuilder::new(seeds)
        .retries(6)
        .min_retry_wait(10)
        .max_retry_wait(200)
        .retry_wait_formula(10, 2)
        .connection_timeout(timeout)
        .response_timeout(timeout)
        .overall_response_timeout(None);
    let Login { user, password } = &address.login;
    let builder = with(builder, user, |b, user| b.username(user));
    let mut builder = with(builder, password, |b, password| b.password(password));
    if address.tls {
        builder = builder.tls(TlsMode::Secure);
    }
    if let Some(certificates) = certificates {
        builder = builder.certs(certificates);
    }
    builder.build()
}

/// Sets a part of a login on one of the driver's builders, if it is given.
fn with<B>(builder: B, part: &Option<String>, set: impl FnOnce(B, &str) -> B) -> B {
    match part {
        Some(part) => set(builder, part),
        None => builder,
    }
}

fn server(host: &str, port: u16, tls: bool) -> ConnectionAddr {
    let host = host.to_owned();
    if tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

/// The certificates to trust instead of the system's; `None` for the system's, and without TLS.
fn certificates(address: &RedisAddress) -> StoreResult<Option<TlsCertificates>> {
    if !address.tls {
        return Ok(None);
    }
    // Fails if the program has chosen a provider already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let Some(path) = &address.ca_file else {
        return Ok(None);
    };
    let unusable =
        |what: String| StoreError::Incompatible { reason: format!("the `ca` file {what}") };
    let pem = std::fs::read(path).map_err(|error| unusable(format!("cannot be read: {error}")))?;
    if !pem.windows(17).any(|part| part == b"BEGIN CERTIFICATE") {
        return Err(unusable("holds no certificate".into()));
    }
    Ok(Some(TlsCertificates { client_tls: None, root_cert: Some(pem) }))
}
