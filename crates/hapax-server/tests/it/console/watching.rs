//! Pages that are only looked at: overview, suppressed duplicates, conflicts, streams, tenants.

use std::collections::BTreeSet;
use std::time::Duration;

use hapax_testkit::Browser;
use serde_json::{Value, json};

use super::scene::Scene;
use crate::http::events_client::Listener;
use crate::support::eventually;
use crate::support::store::TestStore;

#[tokio::test(flavor = "multi_thread")]
async fn console_overview_shows_what_needs_a_person_and_the_last_hour() {
    let mut scene = Scene::start().await;
    scene.run_twice("pay", "k1", "paid");
    scene.lose("pay", "k2");
    scene.bury("a", "no such topic").await;
    scene.sign_in("ana");
    let unknown = "1 command with an unknown outcome";
    scene.shows(&["Needs a person", unknown, "1 dead letter in outbox", "sqlite"]);
    eventually("the navigation counts", || {
        scene.text_of("nav a[href='#/unknown'] .count").starts_with('1')
            && scene.text_of("nav a[href='#/dead'] .count").starts_with('1')
    });
    scene.wait_for("article[data-edge=api] .plot");
    let replays = "return document.querySelector('article[data-edge=api] path.series-3')
        .getAttribute('d').split(/[ML]/).some((point) => Number(point.split(' ')[1]) < 120)";
    eventually("the replay is in the chart", || scene.run(replays) == true);
    let node = scene.get("/v1/operator/overview")["nodes"][0]["node"].clone();
    scene.shows(&["Processes on this store", node.as_str().unwrap(), "Up"]);

    // The chart is read by keyboard, and says what it shows.
    scene.run("document.querySelector('article[data-edge=api] .plot').focus()");
    scene.browser.press(Browser::LEFT);
    let read = scene.run("return document.activeElement.getAttribute('aria-valuetext')");
    assert!(read.as_str().unwrap().contains("Requests "), "{read}");
    scene.is_clean();

    // Charts and session outlive the server.
    scene.server.restart();
    scene.browser.errors();
    scene.browser.refresh();
    scene.wait_for("article[data-edge=api] .plot");
    scene.shows(&[unknown]);
    scene.is_guarded("overview", &[], &["step", "k1"]);
    scene.shows(&["Nothing", "needs a person."]);
    scene.lacks(&["dead letter in", "unknown outcome"]);
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_overview_counts_unknown_outcomes_on_redis() {
    let scene = Scene::start_on(TestStore::redis(), &[]).await;
    scene.lose("pay", "k1");
    scene.lose("pay", "k2");
    let listed = || scene.get("/v1/operator/commands?state=unknown")["commands"].clone();
    eventually("two outcomes are unknown", || listed().as_array().unwrap().len() == 2);
    scene.sign_in("ana");
    scene.shows(&["Needs a person", "2 commands with an unknown outcome", "redis"]);
    eventually("the navigation counts", || {
        scene.text_of("nav a[href='#/unknown'] .count").starts_with('2')
    });
    // The count is a scan in the background, which an operator's decision begins anew.
    scene.go("unknown");
    scene.click("Release all that match…");
    scene.confirm("never arrived");
    scene.go("overview");
    scene.shows(&["Nothing", "needs a person."]);
    scene.is_guarded("overview", &[], &["k1"]);
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_suppressed_shows_duplicates_as_they_come() {
    let scene = Scene::start().await;
    scene.sign_in("ana");
    scene.go("suppressed");
    scene.shows(&["No duplicate was suppressed", "0 duplicates suppressed since"]);
    eventually("the stream is open", || scene.text_of(".live-state").contains("Live"));
    scene.run_twice("pay", "secret-key", "paid");
    // Nobody asks for it: it comes by the stream.
    scene.shows(&["Replayed", "pay", "1 duplicate suppressed since"]);
    let listed = scene.get("/v1/operator/suppressed")["items"][0].clone();
    scene.shows(&[listed["key_hash"].as_str().unwrap(), listed["node"].as_str().unwrap()]);
    scene.fill("select[name=kind]", "refused");
    scene.shows(&["as far as this filter goes"]);
    scene.fill("select[name=kind]", "replayed");
    scene.shows(&["pay"]);
    scene.fill("input[name=operation]", "other");
    scene.shows(&["as far as this filter goes"]);
    scene.is_guarded("suppressed", &["pay"], &["secret-key"]);
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_suppressed_shows_each_kind() {
    let scene = Scene::start().await;
    scene.run_twice("pay", "replayed", "paid");
    let kinds = || {
        let items = scene.get("/v1/operator/suppressed")["items"].clone();
        let kinds = items.as_array().unwrap().iter().map(|item| item["kind"].to_string());
        kinds.collect::<BTreeSet<_>>()
    };
    // One that arrives too late to wait is a replay, so it is tried with longer and longer pauses.
    for attempt in 0.. {
        let path = format!("/v1/commands/pay/slow-{attempt}");
        let begun = scene.post(&path, &json!({ "fingerprint": "a" })).token();
        scene.post(&path, &json!({ "fingerprint": "a" })).is(409, "in-progress");
        let waiting = json!({ "fingerprint": "a", "wait_ms": 60_000 });
        let waiting = scene.server.post(&path).bearer("ana").json(waiting).begin();
        tokio::time::sleep(Duration::from_millis(200) * 3_u32.pow(attempt)).await;
        let end = json!({ "token": begun, "status": 201, "body": "paid" });
        assert_eq!(scene.server.put(&path).bearer("ana").json(end).status(), 200);
        assert_eq!(waiting.answer().status, 200);
        let key = format!("/v1/operator/keys/command/pay/slow-{attempt}");
        let seen = || scene.get(&key)["seen"].clone();
        eventually("its answer is counted", || seen()["replayed"] == 1 || seen()["waited"] == 1);
        if seen()["waited"] == 1 {
            break;
        }
    }
    let event = |seq: u64, last: bool| {
        let event = json!({ "domain": "scan", "job_id": "j", "stage": "s", "seq": seq, "data": {}, "final": last });
        scene.post("/v1/events", &event).status
    };
    assert_eq!((event(1, true), event(2, false)), (201, 409));
    eventually("four kinds are listed", || kinds().len() == 4);
    scene.sign_in("ana");
    scene.go("suppressed");
    scene.shows(&["Replayed", "Waited", "Refused", "Out of order"]);
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_closes_its_stream_while_the_tab_is_hidden() {
    let scene = Scene::start().await;
    scene.sign_in("ana");
    let streams = || scene.get("/v1/operator/streams")["open"].clone();
    eventually("the stream is open", || streams() == json!(1));
    let hide = |hidden: bool| {
        scene.run(&format!(
            "Object.defineProperty(document, 'hidden', {{ value: {hidden}, configurable: true }});
             document.dispatchEvent(new Event('visibilitychange'))"
        ))
    };
    hide(true);
    eventually("the stream is closed", || streams() == json!(0));
    assert!(scene.text_of(".live-state").contains("Paused"));
    hide(false);
    eventually("the stream is open again", || streams() == json!(1));
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_conflicts_are_those_of_the_api() {
    let scene = Scene::start().await;
    scene.run_twice("pay", "secret-key", "paid");
    for _ in 0..2 {
        let other = scene.post("/v1/commands/pay/secret-key", &json!({ "fingerprint": "b" }));
        other.is(422, "key-reused");
    }
    eventually("two reuses are counted", || {
        scene.get("/v1/operator/conflicts")["groups"][0]["reused"] == 2
    });
    scene.sign_in("ana");
    scene.go("conflicts");
    let row = || scene.text_of("main tbody tr");
    eventually("the row shows", || row().starts_with("–") && row().contains("pay\t2\t0"));
    scene.is_guarded("conflicts", &["pay"], &["secret-key"]);
    scene.shows(&["No conflict within the last hour"]);
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_streams_are_those_of_the_api() {
    let scene = Scene::start().await;
    scene.sign_in("ana");
    let stream = || {
        let headers = [("Authorization", "Bearer ana")];
        let path = "/v1/jobs/scan/j/events";
        Listener::open(&scene.server.address, "HTTP/1.1", path, &headers)
    };
    let (one, other) = (stream(), stream());
    let open = || scene.get("/v1/operator/streams")["open"].clone();
    // The console's own stream is the third.
    eventually("three streams are open", || open() == json!(3));
    scene.go("streams");
    scene.shows(&["Open\n3 of "]);
    drop((one, other));
    // The console charts their latency as that of the other edges.
    scene.go("overview");
    scene.wait_for("article[data-edge=sse] .plot");
    scene.shows(&["Event streams"]);
    scene.go("streams");
    let ended = || scene.get("/v1/operator/streams")["ended"]["client"].clone();
    eventually("two clients have left", || ended().as_u64() >= Some(2));
    scene.click("Refresh");
    scene.shows(&["Open\n1 of ", &format!("Client left\t{}", ended())]);
    scene.sign_in("eve");
    scene.go("streams");
    scene.shows(&["Client left\t0"]);
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_tenants_shows_the_own_tenant_only() {
    let scene = Scene::start().await;
    scene.run_twice("pay", "k1", "paid");
    scene.lose("pay", "k2");
    eventually("the outcome is unknown", || {
        scene.get("/v1/operator/tenants")["tenants"][0]["unknown"] == 1
    });
    let usage = scene.get("/v1/operator/tenants")["tenants"][0].clone();
    scene.sign_in("ana");
    scene.go("tenants");
    let counts = ["keys", "pending", "unknown", "failed"].map(|name| usage[name].to_string());
    scene.shows(&[&format!("default\t{}", counts.join("\t"))]);
    let limit = usage["limits"]["in_flight_requests"].as_u64().unwrap();
    scene.shows(&[&format!("of {}", grouped(limit))]);
    scene.sign_in("eve");
    scene.go("tenants");
    scene.shows(&["other\t0\t0\t0\t0"]);
    scene.lacks(&["default"]);
    assert_eq!(usage["keys_more"], Value::Bool(false));
    scene.is_clean();
}

/// A number with its thousands apart, as the console writes it.
fn grouped(number: u64) -> String {
    match (number / 1000, number % 1000) {
        (0, rest) => rest.to_string(),
        (thousands, rest) => format!("{thousands},{rest:03}"),
    }
}
