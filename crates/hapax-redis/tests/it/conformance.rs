//! The conformance suite on every topology.

use std::sync::Arc;

use crate::common::*;
use hapax_conformance::{StoreUnderTest, check_histories};
use hapax_testkit::{Redis, RedisCluster};

/// Without fsync, because the laws have durations of 150 ms, which must not pass while a busy disk syncs. `faults.rs`
/// tests that acknowledged writes survive.
const IN_MEMORY: &[&str] = &["--appendonly", "no"];

fn keep_in_memory(redis: &Redis) {
    assert_eq!(redis.cli(&["CONFIG", "SET", "appendonly", "no"]), "OK");
}

fn cluster() -> RedisCluster {
    let cluster = RedisCluster::start();
    cluster.ports().into_iter().for_each(|port| keep_in_memory(cluster.node(port)));
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn single_server_keeps_every_law() {
    let redis = Redis::with(IN_MEMORY);
    check(redis.url(), Some(redis.port())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_keeps_every_law() {
    let cluster = cluster();
    check(cluster.url(), None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinel_master_keeps_every_law() {
    let servers = calm_sentinels();
    servers.ports().into_iter().for_each(|port| keep_in_memory(servers.node(port)));
    check(servers.url(), None).await;
}

/// The user has exactly the permissions that the documentation lists.
#[tokio::test(flavor = "multi_thread")]
async fn tls_server_keeps_every_law_for_a_restricted_user() {
    let redis = Redis::tls_with(IN_MEMORY);
    let rights = "on >s3cret ~hapax:* ~processing:* ~user:*:last_transaction &hapax:wake \
        +eval +evalsha +scan +get +getrange +set +del +pttl +time +publish +subscribe +ping +info \
        +hget +hmget +hset +hdel +hlen +pexpire +xadd +xrange +xrevrange +xtrim +zadd +zrem +zcard \
        +zrange +zrangebylex +zrangebyscore +zscore +zlexcount +zcount";
    let user: Vec<&str> =
        ["ACL", "SETUSER", "ann"].into_iter().chain(rights.split_whitespace()).collect();
    assert_eq!(redis.cli(&user), "OK");
    let ca = redis.ca_path().display();
    let url = format!("rediss://ann:s3cret@127.0.0.1:{}/0?ca={ca}", redis.port());
    check(url, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn valkey_keeps_every_law() {
    if let Some(binary) = hapax_testkit::valkey_server() {
        let valkey = Redis::binary_with(binary, IN_MEMORY);
        check(valkey.url(), Some(valkey.port())).await;
    }
}

/// The oldest supported version, which lacks some commands and error codes of Redis 7.
#[tokio::test(flavor = "multi_thread")]
async fn redis_62_keeps_every_law() {
    if let Some(binary) = hapax_testkit::redis_62_server() {
        let redis = Redis::binary_with(binary, IN_MEMORY);
        assert!(redis.cli(&["INFO", "server"]).contains("redis_version:6.2."));
        check(redis.url(), Some(redis.port())).await;
    }
}

fn histories(url: String) {
    check_histories(|| async { Arc::new(Servers { url, port: None }) as Arc<dyn StoreUnderTest> });
}

#[test]
fn single_server_agrees_with_the_model() {
    let redis = Redis::with(IN_MEMORY);
    histories(redis.url());
}

#[test]
fn cluster_agrees_with_the_model() {
    let cluster = cluster();
    histories(cluster.url());
}

#[test]
fn valkey_agrees_with_the_model() {
    if let Some(binary) = hapax_testkit::valkey_server() {
        let valkey = Redis::binary_with(binary, IN_MEMORY);
        histories(valkey.url());
    }
}

#[test]
fn redis_62_agrees_with_the_model() {
    if let Some(binary) = hapax_testkit::redis_62_server() {
        let redis = Redis::binary_with(binary, IN_MEMORY);
        histories(redis.url());
    }
}
