//! A Redis master with a replica, monitored by sentinels.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::certificates::SharedCertificates;
use crate::redis::{MASTER_NAME, Redis, Role, agreed, server_binary};
use crate::wait::{START_TIMEOUT, wait_or_explain};

const SENTINELS: usize = 3;
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// A Redis master and a replica, and three sentinels (two of which have to agree) that promote
/// the replica when the master is gone. The master's name is `hapax`.
pub struct RedisSentinel {
    servers: Vec<Redis>,
    sentinels: Vec<Redis>,
    /// The master from which that of [`Self::wait_for_new_master`] has to differ.
    last_master: Mutex<u16>,
}

impl RedisSentinel {
    /// Starts all servers, and returns when the sentinels know the replica and one another, so that a failover can begin
    /// at any time.
    pub fn start() -> Self {
        Self::launch(None)
    }

    /// Like [`start`](Self::start), with servers and sentinels that speak TLS only, to clients and to one another; all
    /// certificates are signed by the authority in [`ca_path`](Self::ca_path).
    pub fn tls() -> Self {
        Self::launch(Some(Arc::new(SharedCertificates::make())))
    }

    fn launch(certificates: Option<Arc<SharedCertificates>>) -> Self {
        let binary = server_binary();
        let server = |role| Redis::launch(&binary, role, certificates.as_ref(), &[]);
        let master = server(Role::Plain);
        let replica = server(Role::ReplicaOf(master.port()));
        let master_port = master.port();
        let mut all = Self {
            servers: vec![master, replica],
            sentinels: Vec::new(),
            last_master: Mutex::new(master_port),
        };
        // A sentinel asks the master for its replicas at its start, and then only every ten seconds.
        all.wait("the replica follows the master", || {
            let status = all.servers[1].info(&["INFO", "replication"], "master_link_status");
            (status.as_deref() == Some("up")).then_some(())
        });
        all.sentinels = (0..SENTINELS)
            .map(|_| server(Role::SentinelOf(master_port)))
            .inspect(shorten_periods)
            .collect();
        all.wait("the sentinels are ready for a failover", || {
            all.sentinels.iter().all(is_ready).then_some(())
        });
        // On a busy machine the sentinels may have replaced the first master already.
        *all.last_master() = all.master_port();
        all
    }

    /// `redis+sentinel://127.0.0.1:A,127.0.0.1:B,127.0.0.1:C/hapax` with the three sentinels, or `rediss+sentinel://…`
    /// for TLS.
    pub fn url(&self) -> String {
        let address = |port: &u16| format!("127.0.0.1:{port}");
        let addresses: Vec<String> = self.sentinel_ports().iter().map(address).collect();
        let server = self.servers[0].url();
        let scheme = server.split(':').next().expect("a URL has a scheme");
        format!("{scheme}+sentinel://{}/{MASTER_NAME}", addresses.join(","))
    }

    /// The certificate of the authority that has signed those of the servers, as a PEM file.
    ///
    /// # Panics
    ///
    /// When the servers were not started by [`tls`](Self::tls).
    pub fn ca_path(&self) -> &Path {
        self.servers[0].ca_path()
    }

    /// The ports of the three sentinels.
    pub fn sentinel_ports(&self) -> Vec<u16> {
        self.sentinels.iter().map(Redis::port).collect()
    }

    /// The ports of the master and the replica, whichever is which by now.
    pub fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(Redis::port).collect()
    }

    /// The server or the sentinel on that port.
    ///
    /// # Panics
    ///
    /// When neither has that port.
    pub fn node(&self, port: u16) -> &Redis {
        self.servers
            .iter()
            .chain(&self.sentinels)
            .find(|node| node.port() == port)
            .unwrap_or_else(|| panic!("no server and no sentinel has port {port}"))
    }

    /// The port of the master, according to the sentinels that are awake; waits until they agree.
    pub fn master_port(&self) -> u16 {
        self.wait("the sentinels agree on a master", || self.agreed_master())
    }

    /// Kills the master (SIGKILL), and returns the port it had.
    pub fn kill_master(&self) -> u16 {
        let port = self.master_port();
        *self.last_master() = port;
        self.node(port).kill();
        port
    }

    /// Pauses the master (SIGSTOP), and returns its port.
    pub fn stop_master(&self) -> u16 {
        let port = self.master_port();
        *self.last_master() = port;
        self.node(port).stop();
        port
    }

    /// Has a sentinel replace the master although it works, and returns when that is done. Writes that have not reached the
    /// replica are lost.
    pub fn demote_master(&self) {
        let old = self.master_port();
        *self.last_master() = old;
        self.wait(&format!("{old} is no longer the master"), || {
            if self.agreed_master().is_some_and(|port| port != old) {
                return Some(());
            }
            // Declined while the replica cannot be promoted, and while another failover is under way.
            let command = ["SENTINEL", "FAILOVER", MASTER_NAME];
            let _ = self.awake_sentinels().next()?.try_cli(&command, QUERY_TIMEOUT);
            std::thread::sleep(Duration::from_millis(200));
            None
        });
        self.wait_for_new_master();
    }

    /// Has the sentinels take a master for dead after this time without an answer, three seconds by default.
    pub fn set_down_after(&self, time: Duration) {
        let time = time.as_millis().to_string();
        for sentinel in &self.sentinels {
            let set = ["SENTINEL", "SET", MASTER_NAME, "down-after-milliseconds", &time];
            assert_eq!(sentinel.cli(&set), "OK");
        }
    }

    /// Waits until the sentinels agree on another master than the one that was killed or returned here last, and that
    /// server reports the role; returns its port.
    pub fn wait_for_new_master(&self) -> u16 {
        let old = *self.last_master();
        let new = self.wait(&format!("another server than {old} is the master"), || {
            let port = self.agreed_master()?;
            let role = self.node(port).info(&["INFO", "replication"], "role")?;
            (port != old && role == "master").then_some(port)
        });
        *self.last_master() = new;
        new
    }

    /// Waits until the master has a replica that has caught up and that every awake sentinel knows; for after a failover
    /// and the old master's restart.
    pub fn wait_for_replica(&self) {
        self.wait("the master has a replica again", || {
            let master = self.node(self.agreed_master()?);
            let first_replica = master.info(&["INFO", "replication"], "slave0")?;
            let known = self.awake_sentinels().all(is_ready);
            (first_replica.contains("state=online") && known).then_some(())
        });
    }

    fn agreed_master(&self) -> Option<u16> {
        agreed(self.awake_sentinels().map(|sentinel| {
            let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME];
            let answer = sentinel.try_cli(&question, QUERY_TIMEOUT).ok()?;
            answer.lines().nth(1)?.parse().ok()
        }))
    }

    fn awake_sentinels(&self) -> impl Iterator<Item = &Redis> {
        self.sentinels.iter().filter(|sentinel| sentinel.is_awake())
    }

    fn last_master(&self) -> MutexGuard<'_, u16> {
        self.last_master.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn wait<T>(&self, what: &str, probe: impl FnMut() -> Option<T>) -> T {
        wait_or_explain(what, START_TIMEOUT, probe, || self.log_tail())
    }

    /// The ends of all servers' logs, for messages.
    pub fn log_tail(&self) -> String {
        let all = self.servers.iter().chain(&self.sentinels);
        let tails: Vec<String> = all.map(Redis::log_tail).collect();
        tails.join("\n")
    }
}

/// Shortens a sentinel's periods of several seconds, so that tests need not wait for them.
///
/// By default the ping period equals the down-after time, so that a new master that was not pinged yet is taken for dead
/// and replaced repeatedly. The ping period must not be too short either: a replica without news for five periods cannot
/// be promoted, and while the master is down there is news once a second. After its own machine was slow, a sentinel does
/// nothing for a tilt period, half a minute by default.
fn shorten_periods(sentinel: &Redis) {
    let periods = "PING-PERIOD 400 INFO-PERIOD 500 PUBLISH-PERIOD 200 TILT-PERIOD 1000";
    let command: Vec<_> = ["SENTINEL", "DEBUG"].into_iter().chain(periods.split(' ')).collect();
    let answer = sentinel.cli(&command);
    assert_eq!(answer, "OK", "the tests with sentinels need Redis 7");
}

/// Whether a sentinel knows the others, and a replica that it can promote.
fn is_ready(sentinel: &Redis) -> bool {
    let ask = |question: &str| {
        let command = ["SENTINEL", question, MASTER_NAME];
        sentinel.try_cli(&command, QUERY_TIMEOUT).unwrap_or_default()
    };
    let (master, replica) = (ask("MASTER"), ask("REPLICAS"));
    has_field(&master, "flags", "master")
        && has_field(&master, "num-other-sentinels", &(SENTINELS - 1).to_string())
        && has_field(&replica, "flags", "slave")
        && has_field(&replica, "master-link-status", "ok")
}

/// Searches the answer of `redis-cli`, which prints names and values alternately, a line each.
fn has_field(answer: &str, name: &str, value: &str) -> bool {
    let lines: Vec<&str> = answer.lines().map(str::trim_end).collect();
    lines.chunks_exact(2).any(|pair| pair == [name, value])
}
