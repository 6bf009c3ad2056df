//! Clients that drop and reconnect, publishers that repeat themselves, servers that are killed: every
//! acknowledged event reaches every client once and in order. A checker reads the recorded history.

mod checker;
mod planted;
mod publish;
pub(crate) mod random;
mod sse;
mod storm;

use hapax_testkit::RedisCluster;

use crate::support::server::{Server, Setup};
use crate::support::store::{TestStore, tests_on_stores};
use checker::Losses;
use random::Random;
use storm::storm;

fn start_nodes(count: usize, store: &str) -> Vec<Server> {
    (0..count).map(|_| Setup::on(store).start()).collect()
}

fn addresses(nodes: &[Server]) -> Vec<String> {
    nodes.iter().map(|node| node.address.clone()).collect()
}

/// Kills random nodes during the storm.
async fn storm_kills_nodes(store: TestStore, count: usize) {
    let mut nodes = start_nodes(count, &store.url());
    let mut random = Random::new(3);
    storm(addresses(&nodes), Losses::Never, move || {
        let which = random.below(nodes.len());
        nodes[which].restart();
    })
    .await;
}

tests_on_stores! {
    |store| storm_kills_nodes(store, 1);
    bus_soak_killed_server_on_sqlite on sqlite,
}

tests_on_stores! {
    |store| storm_kills_nodes(store, 2);
    bus_soak_two_killed_nodes_on_postgres on postgres,
    bus_soak_two_killed_nodes_on_redis on redis,
}

#[tokio::test(flavor = "multi_thread")]
async fn bus_soak_cluster_that_loses_a_master() {
    let cluster = RedisCluster::start();
    let nodes = start_nodes(2, &format!("{}?wait_replicas=1&wait_ms=1000", cluster.url()));
    let mut kills = hapax_testkit::scale();
    storm(addresses(&nodes), Losses::WithNewEpoch, move || {
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
    })
    .await;
}
