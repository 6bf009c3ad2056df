//! Pictures for the documentation: `HAPAX_TEST_PICTURES=docs/images cargo nextest run -p hapax-server pictures`.

use std::path::PathBuf;
use std::time::Duration;

use hapax::activity::{ActivityCounts, ActivityEntry, LatencyHistogram, keys};
use hapax::log::LogEvent;
use hapax::{Clock, Fingerprint, SystemClock};

use super::scene::Scene;
use crate::support::eventually;

const MINUTE: u64 = 60_000;

/// The last hour of two nodes, minute by minute, so that charts have something to show.
async fn report_an_hour(scene: &Scene) {
    let now = SystemClock.now();
    for (node, edge, per_second) in [("serve-1", "api", 9), ("proxy-1", "proxy", 31)] {
        let event = |ago: u64| {
            let entry = minute_of_node(node, edge, per_second, (now.0 / MINUTE - ago) * MINUTE);
            let payload = serde_json::to_vec(&entry).unwrap();
            LogEvent {
                job: keys::MINUTES.job_at("default", now),
                stage: node.into(),
                seq: 60 - ago,
                fingerprint: Fingerprint::of(&[&payload]),
                payload: payload.into(),
                closes: false,
            }
        };
        let events: Vec<_> = (1..60).rev().map(event).collect();
        for events in events.chunks(20) {
            scene.store.append(events, keys::MINUTES.retention()).await.unwrap();
        }
    }
}

fn minute_of_node(node: &str, edge: &str, per_second: u64, at: u64) -> ActivityEntry {
    let minute = at / MINUTE;
    // Traffic that rises and falls, with a little noise.
    let wave = (minute % 40).abs_diff(20) + minute * 7 % 5;
    let requests = per_second * (40 + wave);
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
    for number in 0..20 {
        scene.run_twice("POST%20%2Forders", &format!("{scheme}-{number}"), "{}");
    }
    eventually("requests are counted", || !scene.text_of(".figures").contains("First runs\n0/s"));
}

#[tokio::test(flavor = "multi_thread")]
async fn console_pictures_are_made_where_a_folder_is_named() {
    let scene = Scene::start().await;
    report_an_hour(&scene).await;
    fill(&scene).await;
    scene.sign_in("ana");
    let folder = std::env::var_os("HAPAX_TEST_PICTURES").map(PathBuf::from);
    for (page, scheme) in [
        ("overview", "light"),
        ("overview", "dark"),
        ("suppressed", "light"),
        ("unknown", "light"),
        ("dead", "dark"),
        ("queues", "light"),
    ] {
        scene.browser.set_view(1280, 860, scheme);
        scene.go(page);
        match page {
            "overview" => show_traffic(&scene, scheme),
            _ => scene.wait_for("main tbody tr"),
        }
        eventually("what needs a person is counted", || {
            scene.text_of("nav a[href='#/unknown'] .count").starts_with('3')
        });
        let picture = scene.browser.picture();
        assert!(picture.starts_with(b"\x89PNG") && picture.len() > 10_000, "{page}");
        if let Some(folder) = &folder {
            let dark = if scheme == "dark" { "-dark" } else { "" };
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join(format!("console-{page}{dark}.png")), picture).unwrap();
        }
    }
    scene.is_clean();
}
