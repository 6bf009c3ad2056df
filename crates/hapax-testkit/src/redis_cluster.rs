//! A Redis Cluster of three masters with a replica each.

use std::process::Command;
use std::time::Duration;

use crate::binary;
use crate::command::must_succeed;
use crate::redis::{Redis, Role, agreed, server_binary};
use crate::wait::{START_TIMEOUT, wait_or_explain};

const NODES: usize = 6;
const MASTERS: usize = 3;
const SLOTS: &str = "16384";

/// A Redis Cluster: six nodes, three of them masters with one replica each.
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts the nodes, joins them, and returns when every node reports the cluster as ok and every replica follows its
    /// master.
    pub fn start() -> Self {
        let server = server_binary();
        let nodes = (0..NODES).map(|_| Redis::launch(&server, Role::ClusterNode, &[])).collect();
        let cluster = Self { nodes };
        must_succeed(
            Command::new(binary::require("redis-cli"))
                .args(["--cluster", "create"])
                .args(cluster.addresses())
                .args(["--cluster-replicas", "1", "--cluster-yes"]),
            START_TIMEOUT,
        );
        cluster.wait_until_ok();
        cluster
    }

    /// `redis+cluster://127.0.0.1:P1,127.0.0.1:P2,…` with all six nodes.
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", self.addresses().join(","))
    }

    /// The ports of all nodes, those that were killed included.
    pub fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(Redis::port).collect()
    }

    /// The node on that port.
    ///
    /// # Panics
    ///
    /// When no node has that port.
    pub fn node(&self, port: u16) -> &Redis {
        let node = self.nodes.iter().find(|node| node.port() == port);
        node.unwrap_or_else(|| panic!("no cluster node has port {port}"))
    }

    /// Kills a node (SIGKILL); its replica takes over within seconds.
    pub fn kill_node(&self, port: u16) {
        self.shorten_node_timeout();
        self.node(port).kill();
    }

    /// Pauses a node (SIGSTOP); its replica takes over within seconds.
    pub fn stop_node(&self, port: u16) {
        self.shorten_node_timeout();
        self.node(port).stop();
    }

    /// Tests wait for failovers, so the timeout is shortened before the first one.
    fn shorten_node_timeout(&self) {
        for node in self.awake() {
            assert_eq!(node.cli(&["CONFIG", "SET", "cluster-node-timeout", "3000"]), "OK");
        }
    }

    /// Starts a killed node again; returns when it answers, which is before it has rejoined: see
    /// [`wait_until_ok`](Self::wait_until_ok).
    pub fn restart_node(&self, port: u16) {
        self.node(port).restart();
    }

    /// The port of the master of a key, according to the nodes that are awake.
    ///
    /// # Panics
    ///
    /// When no node names a master that has not failed, within the timeout.
    pub fn master_of(&self, key: &str) -> u16 {
        self.wait(&format!("the cluster knows the master of {key}"), || {
            self.awake().find_map(|node| self.master_according_to(node, key))
        })
    }

    /// Waits until all nodes that are awake agree on a master of the key other than `old` and report the cluster as ok;
    /// returns the new master's port.
    pub fn wait_for_new_master_of(&self, key: &str, old: u16) -> u16 {
        self.wait(&format!("another node than {old} takes over {key}"), || {
            let new = agreed(self.awake().map(|node| self.master_according_to(node, key)))?;
            (new != old && self.awake().all(is_ok)).then_some(new)
        })
    }

    /// Waits until every node that is awake reports the cluster as ok (`cluster_state:ok`, all slots served), knows all
    /// nodes, and follows its master if it is a replica. By then a restarted master knows that it was replaced.
    pub fn wait_until_ok(&self) {
        self.wait("all nodes report cluster_state:ok", || {
            let roles: Option<Vec<NodeRole>> = self.awake().map(settled_role).collect();
            let masters = roles?.iter().filter(|&&role| role == NodeRole::Master).count();
            (masters == MASTERS && self.awake().all(is_ok)).then_some(())
        });
    }

    fn master_according_to(&self, node: &Redis, key: &str) -> Option<u16> {
        let timeout = Duration::from_secs(5);
        let slot = node.try_cli(&["CLUSTER", "KEYSLOT", key], timeout).ok()?;
        let table = node.try_cli(&["CLUSTER", "NODES"], timeout).ok()?;
        master_of_slot(&table, slot.parse().ok()?)
    }

    fn awake(&self) -> impl Iterator<Item = &Redis> {
        self.nodes.iter().filter(|node| node.is_awake())
    }

    fn addresses(&self) -> Vec<String> {
        let address = |node: &Redis| format!("127.0.0.1:{}", node.port());
        self.nodes.iter().map(address).collect()
    }

    fn wait<T>(&self, what: &str, probe: impl FnMut() -> Option<T>) -> T {
        wait_or_explain(what, START_TIMEOUT, probe, || self.log_tail())
    }

    /// The ends of the logs of all nodes, for messages.
    pub fn log_tail(&self) -> String {
        let tails: Vec<String> = self.nodes.iter().map(Redis::log_tail).collect();
        tails.join("\n")
    }
}

fn is_ok(node: &Redis) -> bool {
    let about = |field| node.info(&["CLUSTER", "INFO"], field);
    about("cluster_state").as_deref() == Some("ok")
        && about("cluster_slots_ok").as_deref() == Some(SLOTS)
        && about("cluster_known_nodes") == Some(NODES.to_string())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NodeRole {
    Master,
    Replica,
}

/// `None` for a replica that does not follow its master yet.
fn settled_role(node: &Redis) -> Option<NodeRole> {
    let about = |field| node.info(&["INFO", "replication"], field);
    match about("role")?.as_str() {
        "master" => Some(NodeRole::Master),
        _ => (about("master_link_status")? == "up").then_some(NodeRole::Replica),
    }
}

/// Parses the reply to `CLUSTER NODES`, whose lines look like
/// `ID 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5460 5465`.
fn master_of_slot(table: &str, slot: u16) -> Option<u16> {
    table.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (address, flags) = (fields.next()?, fields.next()?);
        let mut flags = flags.split(',');
        let is_master = flags.clone().any(|flag| flag == "master");
        let has_failed = flags.any(|flag| flag.starts_with("fail"));
        let serves = fields.skip(5).any(|slots| contains(slots, slot));
        if !is_master || has_failed || !serves {
            return None;
        }
        let (_, port) = address.split('@').next()?.rsplit_once(':')?;
        port.parse().ok()
    })
}

fn contains(slots: &str, slot: u16) -> bool {
    let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
    // Slots that are being moved, `[93->-ID]`, are also listed as served; they do not parse here.
    matches!((first.parse::<u16>(), last.parse::<u16>()), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
}

#[cfg(test)]
mod tests {
    use super::master_of_slot;

    const TABLE: &str = "\
aa 127.0.0.1:12000@22000 master,fail - 1 1 1 disconnected 0-99
bb 127.0.0.1:12001@22001,,tls-port=0 myself,master - 0 0 2 connected 0-98 100-200 [93->-cc]
cc 127.0.0.1:12002@22002 slave bb 0 0 2 connected";

    #[test]
    fn master_of_slot_is_found() {
        assert_eq!(master_of_slot(TABLE, 42), Some(12001));
        assert_eq!(master_of_slot(TABLE, 200), Some(12001));
    }

    #[test]
    fn master_of_slot_that_failed_is_ignored() {
        assert_eq!(master_of_slot(TABLE, 99), None);
    }
}
