//! Pictures for the documentation: `HAPAX_TEST_PICTURES=docs/images cargo nextest run -p hapax-server pictures`.

use std::path::PathBuf;

use super::scene::Scene;
use crate::support::eventually;

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

#[tokio::test(flavor = "multi_thread")]
async fn console_pictures_are_made_where_a_folder_is_named() {
    let scene = Scene::start().await;
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
        let ready = if page == "overview" { "article .plot" } else { "main tbody tr" };
        scene.wait_for(ready);
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
