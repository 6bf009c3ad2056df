//! Sentinels: failover, and return of the old master.

use hapax_testkit::RedisSentinel;

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
