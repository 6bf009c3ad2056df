//! Texts of callers and operators that would run, if a page ever took them for markup.

use std::time::Duration;

use hapax::Tenant;
use hapax::queue::{LeaseRequest, QueueItem, QueueName};
use serde_json::json;

use super::scene::{EVIL, PAGES, Scene, encoded};
use crate::support::eventually;

/// A label is at most 64 bytes.
const EVIL_LABEL: &str = "<img/src=x/onerror=window.hacked=1>";
const LEASE: Duration = Duration::from_secs(600);

/// Puts the script wherever somebody can put a text.
async fn fill(scene: &Scene) {
    let operation = encoded(EVIL);
    scene.run_twice(&operation, EVIL, EVIL);
    scene.lose(&operation, "lost");
    let path = format!("/v1/commands/{operation}/{}", encoded(EVIL));
    scene.post(&path, &json!({ "fingerprint": "b" })).is(422, "key-reused");
    let lock = format!("/v1/locks/{}", encoded(EVIL));
    let label = json!({ "ttl_ms": 600_000, "label": EVIL_LABEL });
    assert_eq!(scene.post(&lock, &label).status, 201);
    let event = json!({ "domain": EVIL, "job_id": EVIL, "stage": EVIL, "seq": 1, "data": EVIL });
    assert_eq!(scene.post("/v1/events", &event).status, 201);

    let queue = QueueName::new(EVIL).unwrap();
    let item = || {
        let item = QueueItem::new(&Tenant::default(), EVIL, EVIL).key(EVIL);
        item.content_type(EVIL).header("x-evil", EVIL)
    };
    let _ = scene.store.enqueue(&queue, &[item(), item()]).await.unwrap();
    let take = LeaseRequest::new(1, LEASE);
    let leased = scene.store.lease(&queue, &take).await.unwrap();
    let _ = scene.store.bury(&queue, &take.token, leased[0].item.id, EVIL).await.unwrap();
    let pause = scene.server.post(&format!("/v1/queues/{operation}/pause")).bearer("ana");
    assert_eq!(pause.header("Hapax-Note", &operation).status(), 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn console_shows_scripts_as_text_on_every_page() {
    let scene = Scene::start().await;
    fill(&scene).await;
    let lists = |path: &str, name: &str| scene.get(path)[name][0].is_object();
    eventually("the nodes have reported", || {
        lists("/v1/operator/suppressed", "items")
            && lists("/v1/operator/conflicts", "groups")
            && lists("/v1/operator/jobs", "jobs")
            && lists("/v1/operator/commands?state=unknown", "commands")
    });
    scene.sign_in("ana");
    let queue = encoded(EVIL);
    let queue_pages = [format!("queues/{queue}"), format!("dead/{queue}")];
    let pages = PAGES.iter().copied().chain(queue_pages.iter().map(String::as_str));
    for page in pages {
        scene.go(page);
        if scene.is_there("[data-reveal]:not([hidden])") {
            scene.reveal(EVIL);
        }
        let is_text = scene.text().contains(EVIL);
        let has_none = ["overview", "key", "streams", "line", "tenants"].contains(&page);
        assert!(is_text || has_none, "{page}: {}", scene.text());
        scene.is_clean();
    }
    // What opens on demand, and what is read out.
    scene.click("Show");
    scene.shows(&["Errors of its attempts", &format!("x-evil: {EVIL}")]);
    scene.is_clean();
    scene.go("locks");
    scene.shows(&[EVIL_LABEL]);
    scene.click("Force release…");
    scene.confirm(EVIL);
    scene.is_clean();
    scene.go("key");
    scene.fill("main input[name=scope]", EVIL);
    scene.fill("main input[name=key]", EVIL);
    scene.click("Find");
    scene.shows(&["Settled"]);
    scene.reveal(EVIL);
    scene.shows(&[EVIL]);
    scene.is_clean();
    scene.go("jobs");
    scene.reveal(EVIL);
    scene.click("Open");
    scene.shows(&["#1"]);
    scene.reveal(EVIL);
    scene.shows(&[EVIL]);
    scene.is_clean();
}
