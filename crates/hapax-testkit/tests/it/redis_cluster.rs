//! A Redis Cluster: start, failover, return of the old master.

use hapax_testkit::RedisCluster;

#[test]
fn cluster_replica_takes_over_and_old_master_returns() {
    let cluster = RedisCluster::start();
    let ports = cluster.ports();
    assert_eq!(ports.len(), 6);
    assert_eq!(cluster.url().matches("127.0.0.1:").count(), 6);
    for port in ports {
        let state = cluster.node(port).cli(&["CLUSTER", "INFO"]);
        assert!(state.contains("cluster_state:ok"), "{state}");
    }

    let old = cluster.master_of("key");
    // The replica has the write before the master is killed.
    let written = cluster.node(old).cli_lines(&["SET key value", "WAIT 1 50000"]);
    assert_eq!(written, "OK\n1");
    cluster.kill_node(old);
    let new = cluster.wait_for_new_master_of("key", old);
    assert_ne!(new, old);
    assert_eq!(cluster.node(new).cli(&["GET", "key"]), "value");

    cluster.restart_node(old);
    cluster.wait_until_ok();
    assert_eq!(cluster.master_of("key"), new);
    let role = cluster.node(old).cli(&["INFO", "replication"]);
    assert!(role.contains("role:slave"), "{role}");
}
