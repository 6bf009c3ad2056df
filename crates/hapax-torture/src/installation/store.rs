//! The store under test, with all its servers.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use hapax_testkit::{PgBouncer, Postgres, PostgresStandby, Redis, RedisCluster, RedisSentinel};

use crate::random::SeededRandom;

/// Where the data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum StoreKind {
    /// A SQLite file.
    Sqlite,
    /// One Redis with an append-only file that is synced with every write.
    Redis,
    /// One Redis that forgets everything when it is killed: the checker has to notice.
    ForgetfulRedis,
    /// A Redis master with a replica, watched by three sentinels.
    RedisSentinel,
    /// A Redis Cluster of three masters with a replica each.
    RedisCluster,
    /// One PostgreSQL.
    Postgres,
    /// PostgreSQL with a synchronous hot standby.
    PostgresStandby,
    /// PostgreSQL with an asynchronous hot standby.
    PostgresStandbyAsync,
    /// One PostgreSQL behind PgBouncer in transaction mode.
    Pgbouncer,
}

impl StoreKind {
    /// Its name on the command line and in histories.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::ForgetfulRedis => "forgetful-redis",
            Self::RedisSentinel => "redis-sentinel",
            Self::RedisCluster => "redis-cluster",
            Self::Postgres => "postgres",
            Self::PostgresStandby => "postgres-standby",
            Self::PostgresStandbyAsync => "postgres-standby-async",
            Self::Pgbouncer => "pgbouncer",
        }
    }

    /// Whether a failover may lose what was acknowledged.
    pub fn loses_at_failover(self) -> bool {
        matches!(self, Self::RedisSentinel | Self::RedisCluster | Self::PostgresStandbyAsync)
    }

    /// Whether the fences of all keys come from one sequence. On Redis each key has its own.
    pub(crate) fn has_one_sequence(self) -> bool {
        match self {
            Self::Sqlite
            | Self::Postgres
            | Self::PostgresStandby
            | Self::PostgresStandbyAsync
            | Self::Pgbouncer => true,
            Self::Redis | Self::ForgetfulRedis | Self::RedisSentinel | Self::RedisCluster => false,
        }
    }

    /// Whether another server can take over.
    pub fn has_failover(self) -> bool {
        self.loses_at_failover() || self == Self::PostgresStandby
    }
}

pub(crate) enum RunningStore {
    Sqlite(PathBuf),
    Redis(Redis),
    Sentinel(RedisSentinel),
    Cluster(RedisCluster),
    Postgres(Postgres),
    Standby(PostgresStandby),
    // Fields are dropped in this order.
    Pooled(PgBouncer, Postgres),
}

/// One server of a store.
pub(crate) enum TorturedServer<'a> {
    Redis(&'a Redis),
    Postgres(&'a Postgres),
    PgBouncer(&'a PgBouncer),
}

/// Calls the method of whichever server it is.
macro_rules! each_server {
    ($(#[doc = $doc:literal] $method:ident;)*) => {
        $(#[doc = $doc]
        pub(crate) fn $method(&self) {
            match self {
                Self::Redis(redis) => redis.$method(),
                Self::Postgres(postgres) => postgres.$method(),
                Self::PgBouncer(pooler) => pooler.$method(),
            }
        })*
    };
}

impl TorturedServer<'_> {
    each_server! {
        #[doc = "SIGKILL."] kill;
        #[doc = "Starts it again, and waits until it answers."] restart;
        #[doc = "SIGSTOP."] stop;
        #[doc = "SIGCONT."] cont;
    }
}

/// How a failover begins.
#[derive(Clone, Copy, Debug)]
enum MasterEnd {
    Killed,
    Paused,
    Demoted,
}

impl RunningStore {
    /// Starts it with its data in this folder; most have their own.
    pub(super) fn start(kind: StoreKind, folder: &Path) -> Self {
        let dir = folder.display().to_string();
        match kind {
            StoreKind::Sqlite => Self::Sqlite(folder.join("hapax.db")),
            StoreKind::Redis => Self::Redis(Redis::with(&["--dir", &dir])),
            StoreKind::ForgetfulRedis => Self::Redis(Redis::with(&["--appendonly", "no"])),
            StoreKind::RedisSentinel => {
                let servers = RedisSentinel::start();
                servers.set_down_after(Duration::from_millis(1500));
                Self::Sentinel(servers)
            }
            StoreKind::RedisCluster => Self::Cluster(RedisCluster::start()),
            StoreKind::Postgres => Self::Postgres(Postgres::start()),
            StoreKind::PostgresStandby => Self::Standby(PostgresStandby::start(true)),
            StoreKind::PostgresStandbyAsync => Self::Standby(PostgresStandby::start(false)),
            StoreKind::Pgbouncer => {
                let postgres = Postgres::start();
                Self::Pooled(
                    PgBouncer::before(&postgres, &[("pool_mode", "transaction")]),
                    postgres,
                )
            }
        }
    }

    /// The ports before which proxies can break connections. Sentinels and Cluster nodes tell clients their own ports.
    pub(super) fn ports_for_proxies(&self) -> Vec<u16> {
        match self {
            Self::Sqlite(_) | Self::Sentinel(_) | Self::Cluster(_) => Vec::new(),
            Self::Redis(redis) => vec![redis.port()],
            Self::Postgres(postgres) => vec![postgres.port()],
            Self::Standby(pair) => pair.ports().to_vec(),
            Self::Pooled(pooler, _) => vec![pooler.port()],
        }
    }

    /// The URL for `hapax`, through these ports in place of [those](Self::ports_for_proxies) of the servers.
    pub(super) fn url_through(&self, ports: &[u16]) -> String {
        match (self, ports) {
            (Self::Sqlite(file), _) => format!("sqlite:{}", file.display()),
            (Self::Sentinel(servers), _) => servers.url(),
            (Self::Cluster(nodes), _) => nodes.url(),
            (Self::Standby(pair), [one, other]) => pair.url_through([*one, *other]),
            (Self::Redis(redis), [port]) => replace_port(&redis.url(), redis.port(), *port),
            (Self::Pooled(pooler, _), [port]) => {
                replace_port(&pooler.url(), pooler.port(), *port) + "?pgbouncer=true"
            }
            (Self::Postgres(postgres), [port]) => {
                replace_port(&postgres.url(), postgres.port(), *port)
            }
            (_, _) => self.url(),
        }
    }

    /// The URL for the run's own clients of the store, without a proxy in between.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Sqlite(file) => format!("sqlite:{}", file.display()),
            Self::Redis(redis) => redis.url(),
            Self::Sentinel(servers) => servers.url(),
            Self::Cluster(nodes) => nodes.url(),
            Self::Postgres(postgres) | Self::Pooled(_, postgres) => postgres.url(),
            Self::Standby(pair) => pair.url(),
        }
    }

    /// All servers that a fault may kill or pause.
    pub(crate) fn servers(&self) -> Vec<TorturedServer<'_>> {
        match self {
            Self::Sqlite(_) => Vec::new(),
            Self::Redis(redis) => vec![TorturedServer::Redis(redis)],
            Self::Sentinel(all) => {
                all.ports().iter().map(|port| TorturedServer::Redis(all.node(*port))).collect()
            }
            Self::Cluster(all) => {
                all.ports().iter().map(|port| TorturedServer::Redis(all.node(*port))).collect()
            }
            Self::Postgres(postgres) => vec![TorturedServer::Postgres(postgres)],
            Self::Standby(pair) => {
                vec![
                    TorturedServer::Postgres(pair.primary()),
                    TorturedServer::Postgres(pair.standby()),
                ]
            }
            Self::Pooled(pooler, postgres) => {
                vec![TorturedServer::PgBouncer(pooler), TorturedServer::Postgres(postgres)]
            }
        }
    }

    /// Replaces a master by its replica, and returns when the old master follows the new one; what was done. `None`
    /// without a replica.
    pub(crate) fn fail_over(&self, random: &mut SeededRandom) -> Option<String> {
        let how = *random.pick(&[MasterEnd::Killed, MasterEnd::Paused, MasterEnd::Demoted]);
        // Two of three replicas lack what was written last.
        let behind = (!random.one_in(3)).then(|| random.millis(50, 500));
        let alone = random.millis(0, 700);
        let how = match self {
            Self::Sentinel(servers) => fail_over_sentinel(servers, how, behind, alone),
            Self::Cluster(nodes) => {
                let (master, _) = *random.pick(&nodes.masters());
                fail_over_cluster(nodes, master, how, behind, alone)
            }
            Self::Standby(pair) => fail_over_postgres(pair, how, behind, alone),
            _ => return None,
        };
        let lag = if behind.is_some() { ", the replica was behind" } else { "" };
        Some(format!("{how:?}{lag}"))
    }

    /// Moves slots of a Cluster from the master with the most to the one with the fewest.
    pub(crate) fn reshard(&self, random: &mut SeededRandom) -> Option<String> {
        let Self::Cluster(nodes) = self else { return None };
        let mut masters = nodes.masters();
        masters.sort_by_key(|(_, slots)| *slots);
        let (to, from) = (masters.first()?.0, masters.last()?.0);
        // Each slot takes several rounds of all nodes, which are slow on a busy machine.
        let slots = 20 + random.below(100) as u32;
        if !nodes.reshard(from, to, slots) {
            nodes.repair();
        }
        nodes.wait_until_ok();
        Some(format!("{slots} slots from {from} to {to}"))
    }
}

fn replace_port(url: &str, old: u16, new: u16) -> String {
    url.replace(&format!(":{old}/"), &format!(":{new}/"))
}

/// Cuts a replica off for this time, in which the master acknowledges what the replica never gets. It has to be continued.
fn keep_behind(master: &Redis, replica: &Redis, time: Duration) {
    replica.stop();
    // What is on the way would arrive later.
    master.cli(&["CLIENT", "KILL", "TYPE", "replica"]);
    thread::sleep(time);
}

fn fail_over_sentinel(
    servers: &RedisSentinel,
    how: MasterEnd,
    behind: Option<Duration>,
    alone: Duration,
) -> MasterEnd {
    let old = servers.master_port();
    let other = servers.ports().into_iter().find(|port| *port != old).unwrap_or(old);
    if let Some(time) = behind {
        keep_behind(servers.node(old), servers.node(other), time);
    }
    match how {
        MasterEnd::Killed => drop(servers.kill_master()),
        MasterEnd::Paused => drop(servers.stop_master()),
        MasterEnd::Demoted => {}
    }
    if behind.is_some() {
        servers.node(other).cont();
    }
    match how {
        MasterEnd::Demoted => servers.demote_master(),
        _ => drop(servers.wait_for_new_master()),
    }
    thread::sleep(alone);
    match how {
        MasterEnd::Killed => servers.node(old).restart(),
        MasterEnd::Paused => servers.node(old).cont(),
        MasterEnd::Demoted => {}
    }
    servers.wait_for_replica();
    how
}

fn fail_over_cluster(
    nodes: &RedisCluster,
    old: u16,
    how: MasterEnd,
    behind: Option<Duration>,
    alone: Duration,
) -> MasterEnd {
    let replica = nodes.replica_of(old);
    if let Some(time) = behind {
        keep_behind(nodes.node(old), nodes.node(replica), time);
    }
    match how {
        MasterEnd::Killed => nodes.kill_node(old),
        MasterEnd::Paused => nodes.stop_node(old),
        MasterEnd::Demoted => {}
    }
    if behind.is_some() {
        nodes.node(replica).cont();
    }
    if matches!(how, MasterEnd::Demoted) {
        nodes.take_over(old);
    }
    nodes.wait_until_replaced(old);
    thread::sleep(alone);
    match how {
        MasterEnd::Killed => nodes.restart_node(old),
        MasterEnd::Paused => nodes.node(old).cont(),
        MasterEnd::Demoted => {}
    }
    nodes.wait_until_ok();
    how
}

/// PostgreSQL has no safe way to demote a primary under load: it is killed or paused, and never goes on by itself.
fn fail_over_postgres(
    pair: &PostgresStandby,
    how: MasterEnd,
    behind: Option<Duration>,
    alone: Duration,
) -> MasterEnd {
    // A standby that has not caught up may not be promoted, synchronous or not.
    pair.wait_for_standby();
    if let Some(time) = behind {
        pair.standby().stop();
        // What is on the way would arrive later.
        pair.primary().psql("SELECT pg_terminate_backend(pid) FROM pg_stat_replication");
        thread::sleep(time);
    }
    let how = if matches!(how, MasterEnd::Paused) { how } else { MasterEnd::Killed };
    match how {
        MasterEnd::Paused => pair.primary().stop(),
        _ => pair.primary().kill(),
    }
    if behind.is_some() {
        pair.standby().cont();
    }
    pair.promote_standby();
    thread::sleep(alone);
    pair.rejoin();
    how
}
