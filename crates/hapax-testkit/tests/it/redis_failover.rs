//! Failovers of a Redis Cluster and of sentinels, and the return of the old master.

use hapax_testkit::{RedisCluster, RedisSentinel};

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

#[test]
fn sentinels_promote_the_replica() {
    let redis = RedisSentinel::start();
    assert!(redis.url().starts_with("redis+sentinel://127.0.0.1:"));
    assert!(redis.url().ends_with("/hapax"));

    let old = redis.master_port();
    // The replica has the write before the master is killed.
    let written = redis.node(old).cli_lines(&["SET key value", "WAIT 1 50000"]);
    assert_eq!(written, "OK\n1");
    assert_eq!(redis.kill_master(), old);
    let new = redis.wait_for_new_master();
    assert_ne!(new, old);
    assert_eq!(redis.master_port(), new);
    assert_eq!(redis.node(new).cli(&["GET", "key"]), "value");
    assert_eq!(redis.node(new).cli(&["SET", "key", "another"]), "OK");

    redis.node(old).restart();
    redis.wait_for_replica();
    assert_eq!(redis.master_port(), new, "{}", redis.log_tail());
    assert_eq!(redis.node(old).cli(&["GET", "key"]), "another");
}
