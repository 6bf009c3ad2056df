//! Sentinel and Cluster where every connection is TLS: to clients, between servers, between sentinels.

use std::path::Path;
use std::time::Duration;

use crate::common::*;
use hapax_core::{ClaimRequest, Claims, GiveBack, Step, Store, StoreError};
use hapax_redis::RedisStore;
use hapax_testkit::{Redis, RedisCluster, RedisSentinel};

fn with_ca(url: &str, ca: &Path) -> String {
    format!("{url}?ca={}", ca.display())
}

/// Calls end soon, so that they reach a new master soon.
fn brisk(url: &str) -> RedisStore {
    RedisStore::open(config(url).timeout(Duration::from_secs(2))).unwrap()
}

/// A server whose certificate another authority has signed is refused, and the reason says so.
async fn refuses_strangers(url: &str) {
    let stranger = Redis::tls();
    for url in [url.to_owned(), with_ca(url, stranger.ca_path())] {
        let answer = patient(&url).ping().await;
        let Err(StoreError::Unavailable { reason, .. }) = answer else { panic!("{answer:?}") };
        assert!(reason.contains("certificate") && reason.contains("ca=FILE"), "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_sentinel_failover_switches_to_the_new_master() {
    let servers = RedisSentinel::tls();
    tolerate(&servers, LONG);
    let url = with_ca(&servers.url(), servers.ca_path());
    assert!(url.starts_with("rediss+sentinel://"), "{url}");
    let held = granted(&patient(&url), &lock("held"), &ClaimRequest::new(LONG)).await;
    refuses_strangers(&servers.url()).await;
    let store = brisk(&url);
    until_it_works(|| store.ping()).await;
    let old = servers.master_port();
    wait_until_replicated(servers.node(old), "barrier");
    servers.kill_master();
    tolerate(&servers, Duration::from_secs(3));
    assert_ne!(servers.wait_for_new_master(), old);
    let key = lock("held");
    let step = until_it_works(|| store.extend(&key, &held.token, LONG)).await;
    assert_eq!(step, Step::Done(held.fence));
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_cluster_serves_all_masters_and_outlives_one() {
    let cluster = RedisCluster::tls();
    let url = with_ca(&cluster.url(), cluster.ca_path());
    assert!(url.starts_with("rediss+cluster://"), "{url}");
    let store = patient(&url);
    // Enough keys for every master.
    let keys: Vec<_> = (0..30).map(|n| lock(&format!("tls-{n}"))).collect();
    let mut held = Vec::new();
    for key in &keys {
        held.push(granted(&store, key, &ClaimRequest::new(LONG)).await);
    }
    refuses_strangers(&cluster.url()).await;
    // A waiter's subscription is a connection of its own.
    let mut watch = store.watch(&keys[0]);
    watch.changed(LONG).await;
    let released = patient(&url).give_back(&keys[0], &held[0].token, GiveBack::Forget).await;
    assert_eq!(released.unwrap(), Step::Done(held[0].fence));
    tokio::time::timeout(WAIT_TIMEOUT, watch.changed(LONG)).await.expect("woken");

    let name = "hapax:{default:lock::tls-1}";
    let old = cluster.master_of(name);
    wait_until_replicated(cluster.node(old), "hapax:{default:lock::tls-1}:barrier");
    cluster.kill_node(old);
    cluster.wait_for_new_master_of(name, old);
    let step = until_it_works(|| store.extend(&keys[1], &held[1].token, LONG)).await;
    assert_eq!(step, Step::Done(held[1].fence));
}
