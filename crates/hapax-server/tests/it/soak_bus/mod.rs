//! Clients that drop and reconnect, publishers that repeat themselves, servers that are killed: every
//! acknowledged event reaches every client once and in order. A checker reads the recorded history.

mod checker;
mod history;
mod nodes;
mod planted;
mod publish;
pub(crate) mod random;
mod sse;
mod storm;

use hapax_testkit::{Postgres, Redis, RedisCluster};

use checker::Losses;
use nodes::Node;
use random::Random;
use storm::storm;

/// Kills random nodes for as long as it is called.
fn killing(mut nodes: Vec<Node>) -> impl FnMut() + Send + 'static {
    let mut random = Random::new(3);
    move || {
        let which = random.below(nodes.len());
        nodes[which].kill_and_restart();
    }
}

fn addresses(nodes: &[Node]) -> Vec<String> {
    nodes.iter().map(|node| node.address.clone()).collect()
}

#[test]
fn bus_soak_killed_server_on_sqlite() {
    let node = Node::start(&["--store", "sqlite:soak.db"]);
    storm(vec![node.address.clone()], Losses::Never, killing(vec![node]));
}

#[test]
fn bus_soak_two_killed_nodes_on_postgres() {
    let postgres = Postgres::start();
    let nodes: Vec<_> = (0..2).map(|_| Node::start(&["--store", &postgres.url()])).collect();
    storm(addresses(&nodes), Losses::Never, killing(nodes));
}

#[test]
fn bus_soak_two_killed_nodes_on_redis() {
    let redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let nodes: Vec<_> = (0..2).map(|_| Node::start(&["--store", &redis.url()])).collect();
    storm(addresses(&nodes), Losses::Never, killing(nodes));
}

#[test]
fn bus_soak_cluster_that_loses_a_master() {
    let cluster = RedisCluster::start();
    let url = format!("{}?wait_replicas=1&wait_ms=1000", cluster.url());
    let nodes: Vec<_> = (0..2).map(|_| Node::start(&["--store", &url])).collect();
    let addresses = addresses(&nodes);
    let mut kills = hapax_testkit::scale();
    storm(addresses, Losses::WithNewEpoch, move || {
        // The nodes live as long as the storm.
        let _ = &nodes;
        if kills > 0 {
            kills -= 1;
            let key = format!("any-{kills}");
            let master = cluster.master_of(&key);
            cluster.kill_node(master);
            cluster.wait_for_new_master_of(&key, master);
            cluster.restart_node(master);
            cluster.wait_until_ok();
        }
    });
}
