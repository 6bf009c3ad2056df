//! Pages that look something up: a key, a job, the audit log.

use serde_json::json;

use super::scene::{EVIL, Scene, encoded};
use crate::http::events_client::Listener;
use crate::support::{eventually, has};

/// Asks for a command on the page that finds keys.
fn find(scene: &Scene, operation: &str, key: &str) {
    scene.go("key");
    scene.fill("main input[name=scope]", operation);
    scene.fill("main input[name=key]", key);
    scene.click("Find");
}

#[tokio::test(flavor = "multi_thread")]
async fn console_key_shows_its_life_and_answer() {
    let scene = Scene::start().await;
    scene.run_twice("pay", "customer-1", &format!("paid {EVIL}"));
    let path = "/v1/operator/keys/command/pay/customer-1";
    eventually("the replay is counted", || scene.get(path)["seen"]["replayed"] == 1);
    scene.sign_in("ana");
    find(&scene, "pay", "customer-1");
    let owner = scene.get(path)["owner"].clone();
    let owner = owner.as_str().unwrap();
    scene.shows(&["Settled", "Claimed", owner, "Replayed 1 time", "Expires", "hidden"]);
    scene.lacks(&["onerror"]);
    scene.reveal("the customer asks");
    scene.shows(&[&format!("paid {EVIL}"), "201"]);
    assert_eq!(scene.run("return location.hash"), json!("#/key"), "the address has no key");
    scene.is_audited("reveal", "the customer asks");
    scene.is_clean();

    scene.sign_in("eyes");
    find(&scene, "pay", "customer-1");
    scene.shows(&["Settled", "hidden"]);
    assert_eq!(scene.action_buttons(), json!([]));
    scene.server.get(&format!("{path}?reveal=true")).bearer("eyes").is(403, "forbidden");
    scene.sign_in("eve");
    find(&scene, "pay", "customer-1");
    scene.shows(&["Not found"]);
    // The browser logs each 404 as an error, and this one is the answer.
    let errors = scene.browser.errors();
    assert!(errors.iter().all(|error| error.contains("/v1/operator/keys/")), "{errors:?}");
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_job_timeline_goes_on_live() {
    let scene = Scene::start().await;
    scene.publish("customer-9", 1, "first");
    eventually("the job is listed", || {
        scene.get("/v1/operator/jobs")["jobs"][0]["job_id"] == "customer-9"
    });
    scene.sign_in("ana");
    scene.go("jobs");
    scene.shows(&["scan", "step1", "hidden"]);
    scene.lacks(&["customer-9"]);
    scene.reveal("which job?");
    scene.shows(&["customer-9"]);
    scene.click("Open");
    scene.shows(&["Job scan / customer-9", "step1", "#1", "hidden"]);
    scene.lacks(&["first"]);
    assert_eq!(scene.run("return location.hash"), json!("#/jobs"), "the address has no id");
    scene.shows(&["needs a token with the scope data", "--sse-secret"]);
    let headers = [("Authorization", "Bearer ana")];
    let _follower = Listener::open(
        &scene.server.address,
        "HTTP/1.1",
        "/v1/jobs/scan/customer-9/events",
        &headers,
    );
    let followers = || scene.get("/v1/operator/jobs/scan/customer-9")["followers"].clone();
    // The page follows it too.
    eventually("two follow it", || followers() == json!(2));
    scene.click("Refresh");
    scene.shows(&["Followers\n2", "Gaps\nnone"]);
    // The event comes by the stream of the job: the page asks for nothing again.
    let asked = "return performance.getEntriesByType('resource')
        .filter((one) => one.name.endsWith('/operator/jobs/scan/customer-9?limit=200&reveal=false')).length";
    let before = scene.run(asked);
    scene.publish("customer-9", 2, EVIL);
    scene.shows(&["step2", "#2", "1 to 2"]);
    scene.lacks(&["onerror"]);
    assert_eq!(before, scene.run(asked), "it was polled");
    scene.reveal("what was published?");
    scene.shows(&["first", EVIL]);
    scene.publish("customer-9", 3, "third");
    scene.shows(&["step3", "#3", "first", EVIL]);
    scene.lacks(&["third"]);
    let last = json!({ "domain": "scan", "job_id": "customer-9", "stage": "over", "seq": 4, "data": {}, "final": true });
    assert_eq!(scene.post("/v1/events", &last).status, 201);
    scene.shows(&["over", "Closed"]);
    scene.is_audited("reveal", "which job?");
    scene.is_audited("reveal", "what was published?");
    let path = "/v1/operator/jobs/scan/customer-9?reveal=true";
    scene.server.get(path).bearer("eyes").is(403, "forbidden");
    scene.is_guarded("jobs", &["over"], &["customer-9"]);
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_job_shows_the_gap_that_the_store_has() {
    let scene = Scene::start_with(&["--event-entries", "3"]).await;
    (1..=3).for_each(|seq| scene.publish("j", seq, "data"));
    eventually("the job is listed", || scene.get("/v1/operator/jobs")["jobs"][0]["job_id"] == "j");
    scene.sign_in("ana");
    scene.go("jobs");
    scene.reveal("which job?");
    scene.click("Open");
    scene.shows(&["step1", "step3", "Gaps\nnone"]);
    (4..=6).for_each(|seq| scene.publish("j", seq, "data"));
    scene.shows(&["step6"]);
    scene.click("Refresh");
    let gaps = scene.get("/v1/operator/jobs/scan/j")["gaps"].clone();
    let before = gaps[0]["before"].as_u64().unwrap();
    assert_eq!(gaps, json!([{ "before": before, "reason": "trimmed" }]));
    assert!(before > 1);
    scene.shows(&[&format!("Gaps\ntrimmed before {before}"), &format!("{before} to 6")]);
    scene.lacks(&["step1"]);
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_job_is_opened_with_a_signed_link() {
    let secret = ["--sse-secret", "0123456789abcdef0123456789abcdef"];
    let scene = Scene::start_with(&secret).await;
    scene.publish("customer/9", 1, "first");
    eventually("the job is listed", || {
        scene.get("/v1/operator/jobs")["jobs"][0]["job_id"] == "customer/9"
    });
    scene.sign_in("ana");
    scene.go("jobs");
    scene.reveal("which job?");
    scene.click("Open");
    scene.click("Open as a browser would…");
    let said = scene.confirm("the customer sees nothing");
    has(&said, &["for five minutes", "audit log"]);
    scene.shows(&["The link expires in"]);
    let focused = "return document.activeElement.getAttribute('href')";
    let link = scene.run(focused).as_str().unwrap().to_owned();
    let mut stream = Listener::open(&scene.server.address, "HTTP/1.1", &link, &[]);
    assert_eq!(stream.next().unwrap().data["data"]["text"], "first");
    scene.is_audited("reveal", "the customer sees nothing");
    let path = "/v1/operator/jobs/scan/customer%2F9/link";
    scene.server.post(path).bearer("eyes").is(403, "forbidden");
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_audit_pages_through_all_actions() {
    let scene = Scene::start().await;
    for number in 0..55 {
        let lock = format!("/v1/locks/customer-{number}");
        assert_eq!(scene.post(&lock, &json!({ "ttl_ms": 600_000 })).status, 201);
        let release = scene.server.delete(&format!("/v1/operator/locks/customer-{number}"));
        let note = encoded(&format!("{EVIL} {number}."));
        assert_eq!(release.bearer("ana").header("Hapax-Note", &note).status(), 204);
    }
    scene.sign_in("ana");
    scene.go("audit");
    let rows = || scene.run("return document.querySelectorAll('main .paged tbody tr').length");
    eventually("the first page is full", || rows() == json!(50));
    scene.shows(&["ana", "force-release", "Done", &format!("{EVIL} 54."), "hidden", "Page 1"]);
    scene.lacks(&["customer-54", &format!("{EVIL} 4.")]);
    scene.click("Next ›");
    scene.shows(&["Page 2", &format!("{EVIL} 4."), &format!("{EVIL} 0.")]);
    assert_eq!(rows(), json!(5));
    scene.click("‹ Previous");
    scene.shows(&["Page 1", &format!("{EVIL} 54.")]);
    scene.reveal("whose locks?");
    scene.shows(&["customer-54"]);
    scene.is_audited("reveal", "whose locks?");
    scene.is_guarded("audit", &["force-release"], &["customer-54"]);
    scene.shows(&["Nobody has done anything yet."]);
    scene.is_clean();
}
