//! A Redis master with a replica, guarded by sentinels.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::redis::{MASTER_NAME, Redis, Role, server_binary};
use crate::wait::{READY, wait_or_explain};

const SENTINELS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(5);

/// A Redis master and a replica, and three sentinels (two of which have to agree) that promote
/// the replica when the master is gone. The master's name is `hapax`.
pub struct RedisSentinel {
    servers: Vec<Redis>,
    sentinels: Vec<Redis>,
    /// Which one [`Self::wait_for_new_master`] has to differ from.
    last_master: Mutex<u16>,
}

impl RedisSentinel {
    /// Starts everything, and returns when the sentinels know the replica and one another, so
    /// that a failover can begin at any time.
    pub fn start() -> Self {
        let binary = server_binary();
        let master = Redis::launch(&binary, Role::Plain, &[]);
        let replica = Redis::launch(&binary, Role::ReplicaOf(master.port()), &[]);
        let master_port = master.port();
        let mut all = Self {
            servers: vec![master, replica],
            sentinels: Vec::new(),
            last_master: Mutex::new(master_port),
        };
        // A sentinel asks the master for its replicas at once, and then every ten seconds: the
        // replica had better be there before.
        all.wait("the replica follows the master", || {
            let status = all.servers[1].info(&["INFO", "replication"], "master_link_status");
            (status.as_deref() == Some("up")).then_some(())
        });
        all.sentinels = (0..SENTINELS)
            .map(|_| Redis::launch(&binary, Role::SentinelOf(master_port), &[]))
            .inspect(hurry)
            .collect();
        all.wait("the sentinels are ready for a failover", || {
            all.sentinels.iter().all(is_ready).then_some(())
        });
        // On a machine that stood still they may have replaced the first one already.
        *all.last_master() = all.master_port();
        all
    }

    /// `redis+sentinel://127.0.0.1:A,127.0.0.1:B,127.0.0.1:C/hapax` with the three sentinels.
    pub fn url(&self) -> String {
        let address = |port: &u16| format!("127.0.0.1:{port}");
        let addresses: Vec<String> = self.sentinel_ports().iter().map(address).collect();
        format!("redis+sentinel://{}/{MASTER_NAME}", addresses.join(","))
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

    /// The port of the master, as the sentinels that are awake see it; waits until they agree.
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

    /// Waits until the sentinels agree on another master than before, and that accepts the role;
    /// returns its port. "Before" is the master that was killed last, or that this function
    /// returned last.
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

    /// Waits until the master has a replica that has caught up, and every sentinel that is awake
    /// knows it: for after a failover and the old master's restart.
    pub fn wait_for_replica(&self) {
        self.wait("the master has a replica again", || {
            let master = self.node(self.agreed_master()?);
            let first_replica = master.info(&["INFO", "replication"], "slave0")?;
            let known = self.awake_sentinels().all(is_ready);
            (first_replica.contains("state=online") && known).then_some(())
        });
    }

    fn agreed_master(&self) -> Option<u16> {
        let answers: Option<Vec<u16>> = self
            .awake_sentinels()
            .map(|sentinel| {
                let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME];
                let answer = sentinel.try_cli(&question, PATIENCE).ok()?;
                answer.lines().nth(1)?.parse().ok()
            })
            .collect();
        let answers = answers?;
        let port = *answers.first()?;
        answers.iter().all(|&other| other == port).then_some(port)
    }

    fn awake_sentinels(&self) -> impl Iterator<Item = &Redis> {
        self.sentinels.iter().filter(|sentinel| sentinel.is_awake())
    }

    fn last_master(&self) -> MutexGuard<'_, u16> {
        self.last_master.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn wait<T>(&self, what: &str, probe: impl FnMut() -> Option<T>) -> T {
        wait_or_explain(what, READY, probe, || self.log_tail())
    }

    /// The ends of everyone's logs, for messages.
    pub fn log_tail(&self) -> String {
        let everyone = self.servers.iter().chain(&self.sentinels);
        let tails: Vec<String> = everyone.map(Redis::log_tail).collect();
        tails.join("\n")
    }
}

/// Makes a sentinel look around more often than every few seconds, which tests have no time for.
///
/// The pings are needed beyond that: by default a server is pinged as often as its time to be
/// declared down is long, so that a new master, not pinged yet, is taken for dead and replaced
/// over and over. Not too often, though: a replica that was not heard of for five of these
/// periods cannot be promoted, and while the master is down it is heard of once a second. And
/// after its own machine was slow, a sentinel does nothing for half a minute.
fn hurry(sentinel: &Redis) {
    let answer = sentinel.cli(&[
        "SENTINEL",
        "DEBUG",
        "PING-PERIOD",
        "400",
        "INFO-PERIOD",
        "500",
        "PUBLISH-PERIOD",
        "200",
        "TILT-PERIOD",
        "1000",
    ]);
    assert_eq!(answer, "OK", "the tests with sentinels need Redis 7");
}

/// Knows the others, and a replica that it could promote.
fn is_ready(sentinel: &Redis) -> bool {
    let ask = |question: &str| {
        sentinel
            .try_cli(&["SENTINEL", question, MASTER_NAME], PATIENCE)
            .map(|answer| fields(&answer))
            .unwrap_or_default()
    };
    let master = ask("MASTER");
    let replica = ask("REPLICAS");
    let is = |fields: &[(String, String)], name: &str, value: &str| {
        fields.iter().any(|field| field.0 == name && field.1 == value)
    };
    is(&master, "flags", "master")
        && is(&master, "num-other-sentinels", &(SENTINELS - 1).to_string())
        && is(&replica, "flags", "slave")
        && is(&replica, "master-link-status", "ok")
}

/// `redis-cli` prints names and values in turn, a line each.
fn fields(answer: &str) -> Vec<(String, String)> {
    let lines: Vec<&str> = answer.lines().collect();
    let pairs = lines.chunks_exact(2);
    pairs.map(|pair| (pair[0].to_owned(), pair[1].trim_end().to_owned())).collect()
}
