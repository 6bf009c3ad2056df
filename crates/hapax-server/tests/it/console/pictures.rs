//! Pictures for the documentation: `HAPAX_TEST_PICTURES=docs/images cargo nextest run -p hapax-server pictures`.

use std::path::PathBuf;
use std::time::Duration;

use hapax::activity::{
    ActivityCounts, ActivityEntry, LatencyHistogram, NodeReport, NodeTarget, keys,
};
use hapax::log::LogEvent;
use hapax::{Clock, Fingerprint, SystemClock};
use serde::Serialize;

use super::scene::Scene;
use crate::support::eventually;

const MINUTE: u64 = 60_000;
/// The widths of the window.
const WIDE: u32 = 1280;
const NARROW: u32 = 400;

/// How long after its figures were written a picture is taken, about.
const PICTURE_DELAY: u64 = 4_000;

/// The last hour of two nodes, minute by minute, so that charts have something to show, and a relay that is cut off.
async fn report_an_hour(scene: &Scene) {
    let now = SystemClock.now();
    for (node, edge, per_second) in [("serve-1", "api", 9), ("proxy-1", "proxy", 31)] {
        let event = |ago: u64| {
            let at = (now.0 / MINUTE - ago) * MINUTE;
            // Of the present minute, as much as will have passed.
            let passed = (now.0 + PICTURE_DELAY - at).min(MINUTE);
            let entry = minute_of_node(node, edge, per_second, at, passed);
            event(&keys::MINUTES, "default", node, 60 - ago, &entry)
        };
        let events: Vec<_> = (0..60).rev().map(event).collect();
        for events in events.chunks(20) {
            scene.store.append(events, keys::MINUTES.retention()).await.unwrap();
        }
    }
    let target = NodeTarget {
        name: "webhook".into(),
        queue: Some("outbox".into()),
        up: false,
        last_error: Some("the connection was refused".into()),
    };
    let heartbeat = NodeReport {
        at: now.0,
        node: "relay-1".into(),
        edge: "relay".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        started_at: now.0 - 5 * MINUTE,
        store_latency_ms: Some(1),
        target: Some(target),
        ..NodeReport::default()
    };
    let heartbeat = event(&keys::NODES, "", "relay-1", 1, &heartbeat);
    scene.store.append(&[heartbeat], keys::NODES.retention()).await.unwrap();
}

fn event(
    slots: &keys::LogSlots,
    tenant: &str,
    node: &str,
    seq: u64,
    entry: &impl Serialize,
) -> LogEvent {
    let payload = serde_json::to_vec(entry).unwrap();
    LogEvent {
        job: slots.job_at(tenant, SystemClock.now()),
        stage: node.into(),
        seq,
        fingerprint: Fingerprint::of(&[&payload]),
        payload: payload.into(),
        closes: false,
    }
}

fn minute_of_node(node: &str, edge: &str, per_second: u64, at: u64, passed: u64) -> ActivityEntry {
    let minute = at / MINUTE;
    // Traffic that rises and falls, with a little noise.
    let wave = (minute % 40).abs_diff(20) + minute * 7 % 5;
    let requests = per_second * (40 + wave) * passed / MINUTE;
    let (replays, waits, refusals) = (requests * 17 / 100, requests / 50, requests / 40);
    let errors = if minute.is_multiple_of(23) { requests / 60 } else { 0 };
    let first_runs = requests - replays - waits - refusals - errors;
    let mut latency = LatencyHistogram::default();
    for sample in 0..requests {
        let slow = if sample.is_multiple_of(40) { 9_000 + wave * 300 } else { sample % 7 * 310 };
        latency.record(Duration::from_micros(900 + per_second * 20 + slow));
    }
    let counts = ActivityCounts {
        requests,
        first_runs,
        replays,
        waits,
        refusals,
        errors,
        ..ActivityCounts::default()
    };
    let (node, edge) = (node.to_owned(), edge.to_owned());
    ActivityEntry { at, ms: MINUTE, node, edge, counts, latency, ..ActivityEntry::default() }
}

/// Requests as an installation has them: first runs, replays, reused keys, lost owners, dead letters.
async fn fill(scene: &Scene) {
    for number in 0..12 {
        scene.run_twice("POST%20%2Forders", &format!("order-{number}"), "{}");
        scene.publish(&format!("scan-{}", number % 3), number / 3 + 1, "done");
    }
    for number in 0..3 {
        scene.lose("POST%20%2Fpayments", &format!("payment-{number}"));
        let reused = serde_json::json!({ "fingerprint": "b" });
        scene.post(&format!("/v1/commands/POST%20%2Forders/order-{number}"), &reused);
        let lock = serde_json::json!({ "ttl_ms": 600_000, "label": format!("worker-{number}") });
        scene.post(&format!("/v1/locks/stock-{number}"), &lock);
    }
    for number in 0..7 {
        let reason = if number < 5 { "404 no such topic" } else { "the payload is too large" };
        scene.bury(&format!("customer-{number}"), reason).await;
    }
    for number in 0..4 {
        scene.enqueue(&format!("customer-{number}")).await;
    }
}

/// Waits until the charts of both nodes are there, and requests of just now are counted.
fn show_traffic(scene: &Scene, scheme: &str) {
    scene.wait_for("article[data-edge=proxy] .plot");
    eventually("the stream is open", || scene.text_of(".live-state").contains("Live"));
    for number in 0..6 {
        scene.run_twice("POST%20%2Forders", &format!("{scheme}-{number}"), "{}");
    }
    eventually("requests are counted", || !scene.text_of(".figures").contains("First runs\n0/s"));
}

/// Waits until duplicates that come now are in the feed.
fn show_feed(scene: &Scene) {
    eventually("the stream is open", || scene.text_of(".live-state").contains("Live"));
    for number in 0..3 {
        scene.run_twice("POST%20%2Forders", &format!("live-{number}"), "{}");
    }
    // One that runs, and one that comes meanwhile.
    let shipment = "/v1/commands/POST%20%2Fshipments/shipment-1";
    for status in [201, 409] {
        assert_eq!(scene.post(shipment, &serde_json::json!({})).status, status);
    }
    scene.shows(&["4 duplicates suppressed since", "POST /shipments", "Refused"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn console_pictures_are_made_where_a_folder_is_named() {
    let scene = Scene::start().await;
    report_an_hour(&scene).await;
    fill(&scene).await;
    scene.sign_in("ana");
    let folder = std::env::var_os("HAPAX_TEST_PICTURES").map(PathBuf::from);
    for (page, scheme, width) in [
        ("overview", "light", WIDE),
        ("suppressed", "light", WIDE),
        ("unknown", "light", WIDE),
        ("dead", "dark", WIDE),
        ("queues", "light", WIDE),
        ("unknown", "light", NARROW),
    ] {
        scene.browser.set_view(width, 860, scheme);
        scene.go(page);
        scene.wait_for("main tbody tr, main .plot");
        match page {
            "overview" => show_traffic(&scene, scheme),
            "suppressed" => show_feed(&scene),
            _ => {}
        }
        eventually("what needs a person is counted", || {
            scene.text_of("nav a[href='#/unknown'] .count").starts_with('3')
        });
        let picture = scene.browser.picture();
        assert!(picture.starts_with(b"\x89PNG") && picture.len() > 10_000, "{page}");
        if let Some(folder) = &folder {
            let dark = if scheme == "dark" { "-dark" } else { "" };
            let narrow = if width == NARROW { "-narrow" } else { "" };
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join(format!("console-{page}{dark}{narrow}.png")), picture)
                .unwrap();
        }
    }
    scene.is_clean();
}
