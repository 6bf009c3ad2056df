//! A Redis Cluster of three masters with a replica each.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::binary;
use crate::certificates::SharedCertificates;
use crate::command::{must_succeed, output_within};
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
        Self::launch(None)
    }

    /// Like [`start`](Self::start), with nodes that speak TLS only, to clients and to one another; all certificates are
    /// signed by the authority in [`ca_path`](Self::ca_path).
    pub fn tls() -> Self {
        Self::launch(Some(Arc::new(SharedCertificates::make())))
    }

    fn launch(certificates: Option<Arc<SharedCertificates>>) -> Self {
        let (server, role) = (server_binary(), Role::ClusterNode);
        let node = |_| Redis::launch(&server, role, certificates.as_ref(), &[]);
        let cluster = Self { nodes: (0..NODES).map(node).collect() };
        let mut create = Command::new(binary::require("redis-cli"));
        if let Some(certificates) = &certificates {
            create.arg("--tls").arg("--cacert").arg(&certificates.files.authority);
        }
        must_succeed(
            create.args(["--cluster", "create"]).args(cluster.addresses()).args([
                "--cluster-replicas",
                "1",
                "--cluster-yes",
            ]),
            START_TIMEOUT,
        );
        cluster.wait_until_ok();
        cluster
    }

    /// `redis+cluster://127.0.0.1:P1,127.0.0.1:P2,…` with all six nodes, or `rediss+cluster://…` for TLS.
    pub fn url(&self) -> String {
        let node = self.nodes[0].url();
        let scheme = node.split(':').next().expect("a URL has a scheme");
        format!("{scheme}+cluster://{}", self.addresses().join(","))
    }

    /// The certificate of the authority that has signed those of the nodes, as a PEM file.
    ///
    /// # Panics
    ///
    /// When the cluster was not started by [`tls`](Self::tls).
    pub fn ca_path(&self) -> &Path {
        self.nodes[0].ca_path()
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

    /// Has the replica of a master replace it although it works, without asking the other masters. Writes that have not
    /// reached the replica are lost.
    pub fn take_over(&self, master: u16) {
        self.shorten_node_timeout();
        let replica = self.node(self.replica_of(master));
        let _ = replica.cli(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    }

    /// The ports of the masters that serve slots, with the number of slots, according to the first node that is awake.
    pub fn masters(&self) -> Vec<(u16, u32)> {
        self.wait("the cluster knows its masters", || {
            let table = self.awake().find_map(nodes_table)?;
            let masters: Vec<_> = table.iter().filter(|node| node.slots > 0).collect();
            (masters.len() == MASTERS)
                .then(|| masters.iter().map(|node| (node.port, node.slots)).collect())
        })
    }

    /// The port of a replica of that master.
    pub fn replica_of(&self, master: u16) -> u16 {
        self.wait(&format!("{master} has a replica"), || {
            let table = self.awake().find_map(nodes_table)?;
            let id = &table.iter().find(|node| node.port == master)?.id;
            table.iter().find(|node| node.master == *id).map(|node| node.port)
        })
    }

    /// Waits until another node than `old` serves the slots of that master and all nodes that are awake report the cluster
    /// as ok.
    pub fn wait_until_replaced(&self, old: u16) {
        self.wait(&format!("another node takes over the slots of {old}"), || {
            let replaced = |node: &Redis| {
                nodes_table(node).is_some_and(|table| {
                    table.iter().filter(|node| node.slots > 0).all(|node| node.port != old)
                })
            };
            let mut awake = self.awake().filter(|node| node.port() != old);
            awake.all(|node| replaced(node) && is_ok(node)).then_some(())
        });
    }

    /// Moves so many slots, with their keys, from one master to another, while clients use them; whether all went well.
    pub fn reshard(&self, from: u16, to: u16, slots: u32) -> bool {
        let id = |port: u16| self.node(port).cli(&["CLUSTER", "MYID"]);
        let mut command = Command::new(binary::require("redis-cli"));
        command.args(["--cluster", "reshard", &format!("127.0.0.1:{from}")]).args([
            "--cluster-from",
            &id(from),
            "--cluster-to",
            &id(to),
            "--cluster-slots",
            &slots.to_string(),
            "--cluster-yes",
        ]);
        output_within(&mut command, START_TIMEOUT).is_some_and(|output| output.status.success())
    }

    /// Ends what an interrupted [`reshard`](Self::reshard) left: slots that are being moved.
    pub fn repair(&self) {
        let mut command = Command::new(binary::require("redis-cli"));
        let any = self.awake().next().map_or(0, Redis::port);
        command.args(["--cluster", "fix", &format!("127.0.0.1:{any}"), "--cluster-yes"]);
        let _ = output_within(&mut command, START_TIMEOUT);
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

/// A line of the reply to `CLUSTER NODES`.
struct KnownNode {
    id: String,
    port: u16,
    /// The id of its master; `-` for a master.
    master: String,
    /// How many slots it serves.
    slots: u32,
}

/// What a node knows about all others.
fn nodes_table(node: &Redis) -> Option<Vec<KnownNode>> {
    let table = node.try_cli(&["CLUSTER", "NODES"], Duration::from_secs(5)).ok()?;
    table.lines().map(known_node).collect()
}

fn known_node(line: &str) -> Option<KnownNode> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let port = fields.get(1)?.split('@').next()?.rsplit_once(':')?.1.parse().ok()?;
    let count = |slots: &&str| {
        let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
        Some(last.parse::<u32>().ok()? - first.parse::<u32>().ok()? + 1)
    };
    Some(KnownNode {
        id: fields[0].to_owned(),
        port,
        master: (*fields.get(3)?).to_owned(),
        // Slots that are being moved, `[93->-ID]`, are also listed as served; they do not parse here.
        slots: fields.iter().skip(8).filter_map(count).sum(),
    })
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
    use super::{known_node, master_of_slot};

    const TABLE: &str = "\
aa 127.0.0.1:12000@22000 master,fail - 1 1 1 disconnected 0-99
bb 127.0.0.1:12001@22001,,tls-port=0 myself,master - 0 0 2 connected 0-98 100-200 [93->-cc]
cc 127.0.0.1:12002@22002 slave bb 0 0 2 connected";

    #[test]
    fn slots_of_known_nodes_are_counted() {
        let nodes: Vec<_> = TABLE.lines().filter_map(known_node).collect();
        let seen = nodes.iter().map(|node| (node.port, node.slots, node.master.as_str()));
        let expected = [(12000, 100, "-"), (12001, 200, "-"), (12002, 0, "bb")];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
    }

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
