//! Other processes on the same store, and figures that only they have.

use hapax::activity::{ActivityEntry, MessageQuota, NodeReport, NodeTarget, StreamCounts, keys};
use hapax::log::LogEvent;
use hapax::{Clock, Fingerprint, SystemClock};
use hapax_testkit::{HttpStub, Redis, StubAnswer};
use serde::Serialize;
use serde_json::json;

use super::scene::Scene;
use crate::support::http::HttpRequest;
use crate::support::store::TestStore;
use crate::support::{HapaxProcess, eventually, hapax};

/// A service that takes everything.
fn takes_all() -> HttpStub {
    HttpStub::start(|_| {
        StubAnswer::Respond("HTTP/1.1 204 Done\r\nContent-Length: 0\r\n\r\n".to_owned())
    })
}

/// A process on the scene's store, by this name.
fn node(scene: &Scene, name: &str, arguments: &[&str]) -> HapaxProcess {
    let mut command = hapax();
    command.args(arguments).args(["--config", "/dev/null", "--report-interval", "50ms"]);
    command.args(["--node", name]).env("HAPAX_STORE_TIMEOUT", "20s");
    assert!(scene.file.url().starts_with("sqlite:"));
    HapaxProcess::start(&mut command)
}

#[tokio::test(flavor = "multi_thread")]
async fn console_shows_relays_sinks_and_proxies_of_its_store() {
    let scene = Scene::start().await;
    let (service, store) = (takes_all(), scene.file.url());
    let relay = |name: &str, to: &str| {
        node(&scene, name, &["relay", "--from", &store, "--to", to, "--allow-private"])
    };
    let mut up = relay("relay-up", &service.url("/"));
    scene.enqueue("customer").await;
    eventually("the row is sent", || scene.get("/v1/queues/outbox")["depth"] == 0);
    up.stop();
    let _away = relay("relay-away", "http://127.0.0.1:9/");
    scene.enqueue("customer").await;
    let upstream = service.url("");
    let proxied = ["proxy", "--upstream", &upstream, "--store", &store, "--listen", "127.0.0.1:0"];
    let proxy = node(&scene, "proxy-1", &proxied);
    let order = HttpRequest::new(&proxy.address(), "POST", "/orders");
    let order = order.header("Idempotency-Key", "order-1").header("Authorization", "Bearer x");
    assert_eq!((order.status(), order.status()), (204, 204));

    scene.sign_in("ana");
    scene.shows(&["webhook of relay-away takes nothing"]);
    for edge in ["relay", "proxy"] {
        scene.wait_for(&format!("article[data-edge={edge}] .plot"));
    }
    scene.shows(&["relay-up", "relay-away", "proxy-1"]);
    let drawn = "return document.querySelector('article[data-edge=relay] .dot.series-1').getAttribute('d') !== ''
        || document.querySelector('article[data-edge=relay] .line.series-1').getAttribute('d') !== ''";
    eventually("what was sent is drawn", || scene.run(drawn) == true);
    scene.go("queues");
    let target = || scene.get("/v1/operator/queues")["queues"][0]["targets"][0].clone();
    eventually("only the relay that runs has a target, which failed", || {
        target()["node"] == "relay-away" && target()["last_error"].is_string()
    });
    scene.click("Refresh");
    scene.shows(&["webhook away", target()["last_error"].as_str().unwrap()]);
    let out = || scene.get("/v1/operator/queues")["queues"][0]["out_per_s"].as_f64().unwrap();
    eventually("what left is counted", || out() > 0.0);
    scene.is_clean();
}

/// Writes an entry of a log of activity, as a node does.
async fn report(scene: &Scene, slots: &keys::LogSlots, tenant: &str, entry: &impl Serialize) {
    let payload = serde_json::to_vec(entry).unwrap();
    let event = LogEvent {
        job: slots.job_at(tenant, SystemClock.now()),
        stage: "another node".into(),
        seq: 1,
        fingerprint: Fingerprint::of(&[&payload]),
        payload: payload.into(),
        closes: false,
    };
    scene.store.append(&[event], slots.retention()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_streams_show_cuts_and_gaps() {
    let scene = Scene::start().await;
    let now = SystemClock.now().0;
    let streams =
        StreamCounts { open: 11, slow: 3, expired: 4, shutdown: 5, gaps: 6, ..Default::default() };
    let (node, edge) = ("serve-9".to_owned(), "api".to_owned());
    let entry = ActivityEntry { at: now, ms: 1, node, edge, streams, ..ActivityEntry::default() };
    report(&scene, &keys::LIVE, "default", &entry).await;
    scene.sign_in("ana");
    scene.go("streams");
    scene.shows(&[
        "Too slow\t3",
        "Link expired\t4",
        "Shutdown\t5",
        "Gaps served\n6",
        "serve-9\t11",
    ]);
    scene.sign_in("eve");
    scene.go("streams");
    scene.shows(&["Too slow\t0", "Gaps served\n0"]);
    scene.lacks(&["serve-9"]);
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_line_shows_busy_unprotected_and_the_quota() {
    let scene = Scene::start().await;
    let now = SystemClock.now().0;
    let line = [("busy", 7), ("unprotected", 2), ("pushed", 9)];
    let line = line.map(|(name, count)| (name.to_owned(), count)).into();
    let (node, edge) = ("line-9".to_owned(), "line".to_owned());
    let entry = ActivityEntry {
        at: now,
        ms: 1,
        node: node.clone(),
        edge: edge.clone(),
        line,
        ..ActivityEntry::default()
    };
    report(&scene, &keys::LIVE, "default", &entry).await;
    let quota = Some(MessageQuota { limit: Some(1000), used: 250 });
    let target = Some(NodeTarget { name: "bot".into(), up: true, ..NodeTarget::default() });
    let heartbeat = NodeReport { at: now, node, edge, target, quota, ..NodeReport::default() };
    report(&scene, &keys::NODES, "", &heartbeat).await;
    assert_eq!(scene.post("/v1/locks/user", &json!({ "ttl_ms": 600_000 })).status, 201);
    scene.sign_in("ana");
    scene.go("line");
    scene.shows(&["Locks held\n1", "Busy\t7", "Unprotected\t2", "Pushed\t9"]);
    scene.shows(&["line-9", "250 of 1,000 (25 %)"]);
    scene.sign_in("eve");
    scene.go("line");
    scene.shows(&["Locks held\n0", "No event within the last hour."]);
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_overview_shows_what_the_doctor_found() {
    let redis = Redis::with(&["--appendonly", "no"]);
    let scene = Scene::start_on(TestStore::Redis(redis), &[]).await;
    scene.sign_in("ana");
    let store = || scene.get("/v1/operator/overview")["store"].clone();
    eventually("the store was examined", || store()["findings"][0].is_object());
    assert!(store()["latency_ms"].as_f64().unwrap() > 0.0);
    let finding = store()["findings"][0].clone();
    let text = |name: &str| finding[name].as_str().unwrap().to_owned();
    scene.click("Refresh");
    scene.shows(&["Needs a person", &text("text"), &text("check"), &text("fix"), "Latency"]);
    scene.is_clean();
}
