//! How a connection is made, for each topology.

use std::time::Duration;

use hapax_core::StoreError;
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

use crate::address::{Address, Login, Topology};
use crate::calls::Wait;
use crate::fault::UNCONFIRMED;
use crate::node::Node;

/// Each step of an attempt has a limit of its own, but a Cluster's client takes one per node.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(30);

/// A connection over which many calls go at once.
#[derive(Clone)]
pub(crate) enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection<Node>),
}

/// What is written behind a call, and how many replicas must have it.
#[derive(Clone, Copy)]
pub(crate) struct Barrier<'a> {
    pub(crate) key: &'a str,
    pub(crate) wait: Wait,
}

impl Connection {
    /// Asks, and where there is a barrier waits for it, over the same connection in one go.
    pub(crate) async fn send(
        &mut self,
        cmd: &Cmd,
        barrier: Option<Barrier<'_>>,
    ) -> RedisResult<Value> {
        match barrier {
            None => self.ask(cmd).await,
            Some(barrier) => Box::pin(self.ask_confirmed(cmd, barrier)).await,
        }
    }

    async fn ask_confirmed(&mut self, cmd: &Cmd, barrier: Barrier<'_>) -> RedisResult<Value> {
        let Barrier { key, wait } = barrier;
        let mut pipeline = Pipeline::with_capacity(3);
        pipeline.add_command(cmd.clone());
        pipeline.cmd("SET").arg(key).arg(1);
        pipeline.cmd("WAIT").arg(wait.replicas).arg(wait.within.as_millis().max(1) as u64);
        let answers = match self {
            Self::Server(connection) => connection.send_packed_commands(&pipeline, 0, 3).await?,
            Self::Cluster(connection) => {
                let master = Route::with_key(key, SlotAddr::Master);
                let master = SingleNodeRoutingInfo::SpecificNode(master);
                connection.route_pipeline(pipeline, 0, 3, master).await?
            }
        };
        let [answer, barrier, confirmed] = <[Value; 3]>::try_from(answers)
            .map_err(|_| RedisError::from((ErrorKind::Parse, "not three answers")))?;
        let answer = answer.extract_error()?;
        barrier.extract_error()?;
        let confirmed: u64 = redis::from_redis_value(confirmed.extract_error()?)?;
        if confirmed < u64::from(wait.replicas) {
            return Err(RedisError::from((ErrorKind::Client, UNCONFIRMED)));
        }
        Ok(answer)
    }

    pub(crate) async fn ask(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Server(connection) => connection.send_packed_command(cmd).await?.extract_error(),
            // In a box, so that calls to a single server do not carry the room for it about.
            Self::Cluster(connection) => Box::pin(cmd.query_async(connection)).await,
        }
    }

    /// Asks every master; with each answer comes the address, empty where there is but one server.
    pub(crate) async fn ask_all(&mut self, cmd: &Cmd) -> RedisResult<Vec<(String, Value)>> {
        let Self::Cluster(connection) = self else {
            return Ok(vec![(String::new(), self.ask(cmd).await?)]);
        };
        let masters = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        match connection.route_command(cmd.clone(), masters).await?.extract_error()? {
            Value::Map(answers) => answers
                .into_iter()
                .map(|(address, a)| Ok((redis::from_redis_value(address)?, a.extract_error()?)))
                .collect(),
            other => Ok(vec![(String::new(), other)]),
        }
    }

    /// Asks the server at an address that [`Connection::ask_all`] gave.
    pub(crate) async fn ask_at(&mut self, address: &str, cmd: &Cmd) -> RedisResult<Value> {
        let place = address.rsplit_once(':').and_then(|(h, p)| Some((h, p.parse().ok()?)));
        match (&mut *self, place) {
            (Self::Cluster(connection), Some((host, port))) => {
                let host = host.to_owned();
                let node = SingleNodeRoutingInfo::ByAddress { host, port };
                let node = RoutingInfo::SingleNode(node);
                connection.route_command(cmd.clone(), node).await?.extract_error()
            }
            _ => self.ask(cmd).await,
        }
    }

    /// Whether the driver replaces its broken connections by itself.
    pub(crate) fn heals(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}

/// Makes connections to what a URL names.
///
/// TCP_NODELAY stays off, as the driver has it: calls that are made at once share packets, which
/// was measured to take a tenth to a quarter off the CPU time of 64 to 256 of them, and a call that
/// is alone on its connection waits for nothing.
pub(crate) struct Connector {
    target: Target,
    limit: Duration,
    in_flight: usize,
}

enum Target {
    Single(Client),
    /// Keeps its connections to the sentinels, hence the lock.
    Sentinel(Mutex<SentinelClient>),
    Cluster {
        client: ClusterClient,
        seeds: Vec<Client>,
    },
}

impl Connector {
    pub(crate) fn new(
        address: &Address,
        limit: Duration,
        in_flight: usize,
    ) -> Result<Self, StoreError> {
        let certificates = certificates(address)?;
        let target = target(address, certificates, limit).map_err(|error| {
            StoreError::Incompatible { reason: format!("the driver refused the settings: {error}") }
        })?;
        Ok(Self { target, limit, in_flight })
    }

    /// One attempt, which comes to an end.
    pub(crate) async fn connect(&self) -> RedisResult<Connection> {
        let attempt = tokio::time::timeout(LONGEST_ATTEMPT, self.attempt());
        attempt.await.map_err(|_| no_answer())?
    }

    async fn attempt(&self) -> RedisResult<Connection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limit))
            // Every call has its limit already; a second timer for each is not free.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(self.in_flight);
        match &self.target {
            Target::Single(client) => client
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .map(Connection::Server),
            Target::Sentinel(client) => {
                let mut client = client.lock().await;
                client.get_async_connection_with_config(&config).await.map(Connection::Server)
            }
            Target::Cluster { client, .. } => {
                client.get_async_generic_connection().await.map(Connection::Cluster)
            }
        }
    }

    /// A connection for listening, to any server that hears what is published on the one in use.
    pub(crate) async fn listen(&self) -> RedisResult<PubSub> {
        match &self.target {
            Target::Single(client) => self.listen_to(client).await,
            Target::Sentinel(client) => {
                let client = client.lock().await.async_get_client().await?;
                self.listen_to(&client).await
            }
            // The nodes of a Cluster pass on what is published to all of them.
            Target::Cluster { seeds, .. } => {
                let mut last = RedisError::from((ErrorKind::Io, "no node to listen to"));
                for seed in seeds {
                    match self.listen_to(seed).await {
                        Ok(listener) => return Ok(listener),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    async fn listen_to(&self, client: &Client) -> RedisResult<PubSub> {
        let listening = tokio::time::timeout(self.limit, client.get_async_pubsub());
        listening.await.map_err(|_| no_answer())?
    }
}

fn no_answer() -> RedisError {
    RedisError::from((ErrorKind::Io, "no answer in time"))
}

fn target(
    address: &Address,
    certificates: Option<TlsCertificates>,
    limit: Duration,
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
            let client = cluster(&seeds, address, certificates, limit)?;
            Ok(Target::Cluster { client, seeds })
        }
    }
}

fn client(
    node: ConnectionAddr,
    address: &Address,
    certificates: Option<&TlsCertificates>,
) -> RedisResult<Client> {
    let mut settings = RedisConnectionInfo::default().set_db(address.database);
    if let Some(user) = &address.login.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &address.login.password {
        settings = settings.set_password(password);
    }
    let info = node.into_connection_info()?.set_redis_settings(settings);
    match certificates {
        Some(certificates) => Client::build_with_tls(info, certificates.clone()),
        None => Client::open(info),
    }
}

fn sentinel(
    sentinels: Vec<ConnectionAddr>,
    master: &str,
    address: &Address,
    certificates: Option<TlsCertificates>,
) -> RedisResult<SentinelClient> {
    let mut builder = SentinelClientBuilder::new(sentinels, master, SentinelServerType::Master)?
        .set_client_to_redis_db(address.database);
    let Login { user, password } = &address.login;
    if let Some(user) = user {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = password {
        builder = builder.set_client_to_redis_password(password);
    }
    let Login { user, password } = &address.sentinel_login;
    if let Some(user) = user {
        builder = builder.set_client_to_sentinel_username(user);
    }
    if let Some(password) = password {
        builder = builder.set_client_to_sentinel_password(password);
    }
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
    address: &Address,
    certificates: Option<TlsCertificates>,
    limit: Duration,
) -> RedisResult<ClusterClient> {
    let seeds: Vec<ConnectionInfo> =
        seeds.iter().map(|s| s.get_connection_info().clone()).collect();
    // Redirections and refusals are tried again by the driver, for a part of the limit.
    let mut builder = ClusterClientBuilder::new(seeds)
        .retries(6)
        .min_retry_wait(10)
        .max_retry_wait(200)
        .retry_wait_formula(10, 2)
        .connection_timeout(limit)
        .response_timeout(limit)
        .overall_response_timeout(None);
    let Login { user, password } = &address.login;
    if let Some(user) = user {
        builder = builder.username(user);
    }
    if let Some(password) = password {
        builder = builder.password(password);
    }
    if address.tls {
        builder = builder.tls(TlsMode::Secure);
    }
    if let Some(certificates) = certificates {
        builder = builder.certs(certificates);
    }
    builder.build()
}

fn server(host: &str, port: u16, tls: bool) -> ConnectionAddr {
    let host = host.to_owned();
    if tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

/// `None` without TLS, and where the system's own certificates are trusted.
fn certificates(address: &Address) -> Result<Option<TlsCertificates>, StoreError> {
    if !address.tls {
        return Ok(None);
    }
    // The program may have chosen another one before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let Some(path) = &address.authority else {
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
