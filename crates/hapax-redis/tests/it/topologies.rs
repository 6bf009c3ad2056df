//! Failovers, waiters and findings with several servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use hapax_core::{
    ClaimRequest, Claimed, Claims, Expect, Fence, GiveBack, Put, Records, Severity, Step, Store,
    StoreError,
};
use hapax_redis::RedisStore;
use hapax_testkit::{Redis, RedisCluster, RedisSentinel, TcpProxy, wait_for};

/// How long a master may be silent in a test that wants a failover.
const SOON: Duration = Duration::from_secs(3);

fn brisk(url: &str) -> RedisStore {
    RedisStore::open(config(url).timeout(Duration::from_secs(1))).unwrap()
}

/// Sentinels and their servers, and a connected store on them.
async fn sentinels() -> (RedisSentinel, RedisStore) {
    let servers = calm_sentinels();
    let store = brisk(&servers.url());
    until_it_works(|| store.ping()).await;
    (servers, store)
}

/// Takes and releases one lock until `stop`, a few times at least, and returns the fences in order.
fn worker(store: RedisStore, stop: Arc<AtomicBool>) -> tokio::task::JoinHandle<Vec<Fence>> {
    tokio::spawn(async move {
        let mut fences = Vec::new();
        while !stop.load(Ordering::SeqCst) || fences.len() < 3 {
            let ask = ClaimRequest::new(Duration::from_millis(200));
            if let Ok(Claimed::Granted { ticket, .. }) = store.claim(&lock("busy"), &ask).await {
                fences.push(ticket.fence);
                let _ = store.give_back(&lock("busy"), &ticket.token, GiveBack::Forget).await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        fences
    })
}

async fn assert_fences_grow(stop: Arc<AtomicBool>, work: tokio::task::JoinHandle<Vec<Fence>>) {
    stop.store(true, Ordering::SeqCst);
    let fences = tokio::time::timeout(WAIT_TIMEOUT, work).await;
    let fences = fences.expect("the worker works").unwrap();
    assert!(fences.is_sorted_by(|a, b| a < b), "a fence went back");
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinel_failover_switches_to_the_new_master() {
    let servers = calm_sentinels();
    let store = brisk(&servers.url());
    let stop = Arc::new(AtomicBool::new(false));
    let work = worker(store.clone(), stop.clone());
    let held = granted(&patient(&servers.url()), &lock("held"), &ClaimRequest::new(LONG)).await;
    let old = servers.master_port();
    // Replicated first, so that the failover does not lose this write.
    wait_until_replicated(servers.node(old), "barrier");
    servers.kill_master();
    tolerate(&servers, SOON);
    let new = servers.wait_for_new_master();
    assert_ne!(old, new);
    let key = lock("held");
    let step = until_it_works(|| store.extend(&key, &held.token, LONG)).await;
    assert_eq!(step, Step::Done(held.fence));
    assert_ne!(servers.node(new).cli(&["EXISTS", "hapax:{default:lock::held}"]), "0");
    assert_fences_grow(stop, work).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinel_master_that_hangs_is_replaced() {
    let (servers, store) = sentinels().await;
    let old = servers.master_port();
    servers.node(old).stop();
    tolerate(&servers, SOON);
    servers.wait_for_new_master();
    let (key, ask) = (lock("a"), ClaimRequest::new(LONG));
    until_it_works(|| store.claim(&key, &ask)).await;
    servers.node(old).cont();
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinel_master_that_is_demoted_is_replaced() {
    let (servers, store) = sentinels().await;
    fail_over(&servers);
    let new = servers.wait_for_new_master();
    let (key, ask) = (lock("a"), ClaimRequest::new(LONG));
    let deadline = Instant::now() + WAIT_TIMEOUT;
    // For a moment there are two masters, and writes to the old one are lost.
    loop {
        until_it_works(|| store.claim(&key, &ask)).await;
        if servers.node(new).cli(&["EXISTS", "hapax:{default:lock::a}"]) == "1" {
            return;
        }
        assert!(Instant::now() < deadline, "the store stays with the old master");
    }
}

/// Has a sentinel demote the master. On a busy machine the sentinel may know no good replica or give up, so the command
/// is repeated.
fn fail_over(servers: &RedisSentinel) {
    let old = servers.master_port().to_string();
    let sentinel = servers.node(servers.sentinel_ports()[0]);
    wait_for("the failover is through", WAIT_TIMEOUT, || {
        // Port and flags in one reply, so that a failover that has just ended is not started again.
        let master = sentinel.cli(&["SENTINEL", "MASTER", "hapax"]);
        let lines: Vec<_> = master.lines().map(str::trim_end).collect();
        let is = |name: &str| lines.iter().position(|line| *line == name).map(|at| lines[at + 1]);
        let (port, flags) = (is("port").unwrap(), is("flags").unwrap());
        if port == old && !flags.contains("failover_in_progress") {
            sentinel.cli(&["SENTINEL", "FAILOVER", "hapax"]);
        }
        (port != old).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_continues_after_the_loss_of_a_master() {
    let cluster = RedisCluster::start();
    let store = brisk(&cluster.url());
    let stop = Arc::new(AtomicBool::new(false));
    let work = worker(store.clone(), stop.clone());
    granted(&patient(&cluster.url()), &lock("elsewhere"), &ClaimRequest::new(LONG)).await;
    let name = "hapax:{default:lock::busy}";
    let old = cluster.master_of(name);
    cluster.kill_node(old);
    cluster.wait_for_new_master_of(name, old);
    let (key, ask) = (lock("busy"), ClaimRequest::new(LONG));
    until_it_works(|| store.look(&key)).await;
    until_it_works(|| store.ping()).await;
    assert_fences_grow(stop, work).await;
    let busy = until_it_works(|| store.claim(&key, &ask)).await;
    assert!(matches!(busy, Claimed::Granted { .. } | Claimed::Busy { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_node_that_hangs_times_out_and_is_replaced() {
    let cluster = RedisCluster::start();
    let store = brisk(&cluster.url());
    until_it_works(|| store.ping()).await;
    let name = "hapax:{default:lock::a}";
    let old = cluster.master_of(name);
    // No failover by itself.
    for port in cluster.ports() {
        cluster.node(port).cli(&["CONFIG", "SET", "cluster-node-timeout", "3600000"]);
    }
    cluster.node(old).stop();
    let (key, ask) = (lock("a"), ClaimRequest::new(LONG));
    let started = Instant::now();
    assert!(store.claim(&key, &ask).await.is_err());
    assert!(started.elapsed() < WAIT_TIMEOUT);
    // Now with a failover.
    cluster.stop_node(old);
    cluster.wait_for_new_master_of(name, old);
    until_it_works(|| store.claim(&key, &ask)).await;
    cluster.node(old).cont();
}

/// A Cluster of one node that announces the proxy's port to its clients.
fn cluster_behind_proxy() -> (Redis, TcpProxy) {
    let node = Redis::with(&["--cluster-enabled", "yes"]);
    let wire = TcpProxy::to(node.port());
    node.cli(&["CONFIG", "SET", "cluster-announce-ip", "127.0.0.1"]);
    node.cli(&["CONFIG", "SET", "cluster-announce-port", &wire.port().to_string()]);
    assert_eq!(node.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
    let ok = || node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok").then_some(());
    wait_for("the cluster is good", WAIT_TIMEOUT, ok);
    (node, wire)
}

/// The driver's own Cluster client would repeat the release and find no lock.
#[tokio::test]
async fn cluster_release_with_a_lost_reply_is_never_lost() {
    let (_node, wire) = cluster_behind_proxy();
    let store = patient(&format!("redis+cluster://127.0.0.1:{}", wire.port()));
    let key = lock("a");
    let first = granted(&store, &key, &ClaimRequest::new(LONG)).await;
    let _ = store.give_back(&key, &first.token, GiveBack::Forget).await.unwrap();

    let ticket = granted(&store, &key, &ClaimRequest::new(LONG)).await;
    wire.drop_next_answer_to(ticket.token.as_str().as_bytes());
    let answer = store.give_back(&key, &ticket.token, GiveBack::Forget).await;
    assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
    assert_eq!(wire.dropped_answers(), 1);
    assert_eq!(store.look(&key).await.unwrap(), None);
}

#[tokio::test]
async fn cluster_claim_with_a_lost_reply_is_granted_once() {
    let (_node, wire) = cluster_behind_proxy();
    let url = format!("redis+cluster://127.0.0.1:{}", wire.port());
    let store = patient(&url);
    granted(&store, &lock("warm-up"), &ClaimRequest::new(LONG)).await;
    let ask = ClaimRequest::new(LONG);
    wire.drop_next_answer_to(ask.token.as_str().as_bytes());
    let answer = store.claim(&lock("a"), &ask).await.unwrap();
    assert_eq!(wire.dropped_answers(), 1);
    assert!(matches!(answer, Claimed::Granted { attempt: 1, .. }), "{answer:?}");
    assert_eq!(store.claim(&lock("a"), &ask).await.unwrap(), answer);
    for i in 0..5 {
        // A new store in each round: after a cut a store reconnects in the background, and the next cut could hit that
        // connection.
        let store = patient(&url);
        granted(&store, &lock(&format!("before-{i}")), &ClaimRequest::new(LONG)).await;
        wire.cut();
        granted(&store, &lock(&format!("after-{i}")), &ClaimRequest::new(LONG)).await;
    }
}

#[tokio::test]
async fn fault_01_repeated_put_in_a_cluster_keeps_a_later_delete() {
    let (node, wire) = cluster_behind_proxy();
    let store = patient(&format!("redis+cluster://127.0.0.1:{}", wire.port()));
    let _ = store.put(&record("warm-up"), "x".into(), &Expect::Any, None).await.unwrap();
    wire.stall_answers();
    let put = tokio::spawn({
        let store = store.clone();
        async move { store.put(&record("r"), "first".into(), &Expect::Any, None).await }
    });
    // The other writer speaks to the server itself.
    let key = "hapax:{default:record::r}";
    while node.cli(&["DEL", key]) == "0" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    wire.cut();
    wire.resume();
    let put = put.await.unwrap().unwrap();
    assert!(matches!(put, Put::Stored { created: true, .. }), "{put:?}");
    assert_eq!(node.cli(&["EXISTS", key]), "0", "deleted, and written again by the repeated put");
}

/// A waiter on one node, and a release on another.
async fn hears_of_releases_elsewhere(url: &str) {
    let (here, there) = (patient(url), patient(url));
    let key = lock("a");
    let ticket = granted(&there, &key, &ClaimRequest::new(LONG)).await;
    let mut watch = here.watch(&key);
    // The subscription is made in the background, and wakes all waiters when it is ready.
    watch.changed(LONG).await;
    let released = there.give_back(&key, &ticket.token, GiveBack::Forget).await.unwrap();
    assert_eq!(released, Step::Done(ticket.fence));
    tokio::time::timeout(WAIT_TIMEOUT, watch.changed(LONG)).await.expect("woken");

    let ticket = granted(&there, &key, &ClaimRequest::new(LONG).retention(LONG)).await;
    let settled = there.settle(&key, &ticket.token, "x".into()).await.unwrap();
    assert_eq!(settled, Step::Done(ticket.fence));
    tokio::time::timeout(WAIT_TIMEOUT, watch.changed(LONG)).await.expect("woken");
}

#[tokio::test]
async fn waiters_are_woken_by_releases_on_other_nodes() {
    let redis = Redis::start();
    hears_of_releases_elsewhere(&redis.url()).await;
}

#[tokio::test]
async fn cluster_waiters_are_woken_by_releases_elsewhere() {
    let cluster = RedisCluster::start();
    hears_of_releases_elsewhere(&cluster.url()).await;
}

#[tokio::test]
async fn waiters_are_woken_after_the_subscription_was_lost() {
    let (redis, store) = server();
    let mut watch = store.watch(&lock("a"));
    watch.changed(LONG).await;
    redis.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    tokio::time::timeout(WAIT_TIMEOUT, watch.changed(LONG)).await.expect("woken");
}

#[test]
fn store_outlives_the_runtime_that_connected_it() {
    let (redis, cluster) = (Redis::start(), RedisCluster::start());
    for store in [patient(&redis.url()), patient(&cluster.url())] {
        for _ in 0..2 {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let key = lock("a");
                until_it_works(|| store.look(&key)).await;
                let mut watch = store.watch(&key);
                tokio::time::timeout(WAIT_TIMEOUT, watch.changed(LONG)).await.expect("woken");
            });
        }
    }
}

#[tokio::test]
async fn findings_name_what_would_break_a_promise() {
    let (redis, store) = server();
    let severity = |findings: &[hapax_core::Finding], check: &str| {
        findings.iter().find(|f| f.check == check).map(|f| f.severity)
    };
    let fine = store.examine().await.unwrap();
    for check in [
        "redis.version",
        "redis.eviction",
        "redis.durability",
        "redis.torn_writes",
        "redis.replication",
        "redis.clock",
    ] {
        assert_eq!(severity(&fine, check), Some(Severity::Fine), "{fine:?}");
    }
    redis.cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
    redis.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    redis.cli(&["CONFIG", "SET", "appendfsync", "everysec"]);
    redis.cli(&["CONFIG", "SET", "aof-load-truncated", "yes"]);
    let bad = store.examine().await.unwrap();
    assert_eq!(severity(&bad, "redis.eviction"), Some(Severity::Refuse));
    assert_eq!(severity(&bad, "redis.durability"), Some(Severity::Warn));
    assert_eq!(severity(&bad, "redis.torn_writes"), Some(Severity::Warn));
    redis.cli(&["ACL", "SETUSER", "ann", "on", "nopass", "~*", "&*", "+@all", "-config"]);
    let managed = patient(&format!("redis://ann:x@127.0.0.1:{}", redis.port()));
    let managed = managed.examine().await.unwrap();
    assert_eq!(severity(&managed, "redis.durability"), Some(Severity::Warn));
    assert_eq!(severity(&managed, "redis.eviction"), Some(Severity::Refuse));
}

#[tokio::test]
async fn findings_about_a_cluster_cover_every_master() {
    let (cluster, store) = cluster();
    let find = async |check: &str| {
        let findings = store.examine().await.unwrap();
        findings.into_iter().find(|f| f.check == check).unwrap().severity
    };
    assert_eq!(find("redis.cluster").await, Severity::Fine);
    assert_eq!(find("redis.eviction").await, Severity::Fine);
    let one = cluster.node(cluster.master_of("any"));
    one.cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
    one.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    assert_eq!(find("redis.eviction").await, Severity::Refuse);
}

/// A process that started during a failover once ended: the master that it knew was a replica by then.
#[tokio::test(flavor = "multi_thread")]
async fn findings_after_a_failover_are_about_the_new_master() {
    let (cluster, store) = cluster();
    until_it_works(|| store.examine()).await;
    let old = cluster.master_of("any");
    cluster.take_over(old);
    cluster.wait_until_replaced(old);
    cluster.wait_until_ok();
    // The client still has the old table of slots; until it has the new one there are no findings.
    let findings = until_it_works(|| store.examine()).await;
    assert!(findings.iter().all(|finding| finding.severity < Severity::Refuse), "{findings:?}");
}

#[tokio::test]
async fn keys_of_any_name_are_in_one_slot_each() {
    let (_cluster, store) = cluster();
    for name in ["a{b}c", "}{", "{", "{}", "%7B", "processing:{x}", "processing:}x{"] {
        let ticket = granted(&store, &lock(name), &ClaimRequest::new(LONG)).await;
        let step = store.give_back(&lock(name), &ticket.token, GiveBack::Forget).await.unwrap();
        assert_eq!(step, Step::Done(ticket.fence), "{name}");
        let _ = store.put(&record(name), "x".into(), &Expect::Absent, None).await.unwrap();
        assert!(store.get(&record(name)).await.unwrap().is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_connection_in_a_black_hole_is_replaced() {
    let cluster = RedisCluster::start();
    let wires: Vec<_> = cluster
        .ports()
        .into_iter()
        .map(|port| {
            let wire = TcpProxy::to(port);
            let announced = wire.port().to_string();
            cluster.node(port).cli(&["CONFIG", "SET", "cluster-announce-port", &announced]);
            wire
        })
        .collect();
    let known = |port: u16| {
        let slots = cluster.node(port).cli(&["CLUSTER", "SLOTS"]);
        wires.iter().all(|wire| slots.contains(&wire.port().to_string()))
    };
    wait_for("all nodes know the wires", WAIT_TIMEOUT, || {
        cluster.ports().into_iter().all(known).then_some(())
    });
    let store = brisk(&format!("redis+cluster://127.0.0.1:{}", wires[0].port()));
    let key = record("r");
    until_it_works(|| store.get(&key)).await;
    let accepted = || wires.iter().map(TcpProxy::accepted).sum::<usize>();
    // Repeated, because after a slow call a new connection may already be under way and come into use between the two
    // steps.
    let mut before = 0;
    for tries in 1.. {
        before = accepted();
        wires.iter().for_each(TcpProxy::black_hole);
        if store.get(&key).await.is_err() {
            break;
        }
        assert!(tries < 100, "stranded connections are heard");
    }
    until_it_works(|| store.get(&key)).await;
    assert!(accepted() > before);
}
