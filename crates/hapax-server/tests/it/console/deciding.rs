//! Pages on which people decide: unknown outcomes, locks, queues, dead letters.

use hapax::queue::QueueName;
use serde_json::{Value, json};

use super::scene::{EVIL, Scene, encoded};
use crate::support::{eventually, has};

#[tokio::test(flavor = "multi_thread")]
async fn console_unknown_outcomes_are_settled_and_released() {
    let scene = Scene::start().await;
    for key in [EVIL, "k2", "k3", "k4"] {
        scene.lose("pay", key);
    }
    scene.lose("refund", "k5");
    let unknown = || scene.get("/v1/operator/commands?state=unknown")["commands"].clone();
    eventually("five outcomes are unknown", || unknown().as_array().unwrap().len() == 5);
    scene.sign_in("ana");
    scene.go("unknown");
    scene.shows(&["pay", "refund", "Unknown", "hidden"]);
    scene.lacks(&["onerror", "k2", "Its life"]);
    // One masked row is named by its hash, which reveals nothing.
    let listed = unknown();
    let masked = listed.as_array().unwrap().iter().find(|one| one["key"] == "k4").unwrap();
    press_in_row(&scene, masked["key_hash"].as_str().unwrap(), "Release…");
    has(&scene.confirm("its customer called"), &["Release pay: forget attempt 1."]);
    eventually("its row is gone", || unknown().as_array().unwrap().len() == 4);
    scene.server.get("/v1/commands/pay/k4").bearer("ana").is(404, "command-missing");
    scene.is_audited("release", "its customer called");
    scene.lose("pay", "k4");
    eventually("five outcomes are unknown", || unknown().as_array().unwrap().len() == 5);
    scene.reveal("who paid?");
    scene.shows(&[EVIL, "k2", "k5"]);

    let path = format!("/v1/commands/pay/{}", encoded(EVIL));
    press_in_row(&scene, EVIL, "Settle…");
    scene.wait_for("dialog[open]");
    scene.fill("dialog input[name=status]", "201");
    scene.fill("dialog textarea[name=body]", "paid by hand");
    let said = scene.confirm("the bank has it");
    has(&said, &["Settle attempt 1 of pay with the answer below."]);
    let answer = scene.post(&path, &json!({})).json();
    assert_eq!((&answer["status"], &answer["body"]), (&json!(201), &json!("paid by hand")));
    eventually("its row is gone", || !scene.text().contains(EVIL));

    press_in_row(&scene, "k2", "Release…");
    has(&scene.confirm("never arrived"), &["Release pay: forget attempt 1.", "runs twice"]);
    eventually("its row is gone", || !scene.text().contains("k2"));
    scene.server.get("/v1/commands/pay/k2").bearer("ana").is(404, "command-missing");

    scene.fill("input[name=operation]", "pay");
    eventually("only one operation is listed", || !scene.text().contains("refund"));
    scene.click("Release all that match…");
    let said = scene.confirm("the gateway was down");
    has(&said, &["Release 2 commands of pay with an unknown outcome."]);
    eventually("the task is done", || {
        let task = scene.text_of(".task");
        task.contains("Done") && task.contains("2 done")
    });
    eventually("one is left", || {
        let left = unknown();
        left.as_array().unwrap().len() == 1 && left[0]["operation"] == "refund"
    });
    scene.is_audited("reveal", "who paid?");
    scene.is_audited("settle", "the bank has it");
    scene.is_audited("release", "never arrived");
    scene.is_audited("release", "the gateway was down");

    let one = "/v1/operator/commands/refund/k5";
    scene.server.delete(one).bearer("eyes").is(403, "forbidden");
    let all = json!({ "where": { "state": "unknown" }, "action": "release" });
    scene.server.post("/v1/operator/commands/decide").bearer("eyes").json(all).is(403, "forbidden");
    scene.is_guarded("unknown", &["refund"], &["k5"]);
    scene.is_clean();
}

/// Clicks on a button in the row that shows this text.
fn press_in_row(scene: &Scene, text: &str, button: &str) {
    let script = format!(
        "const row = [...document.querySelectorAll('main tbody tr')].find((one) => one.innerText.includes({}));
         const wanted = [...(row?.querySelectorAll('button') ?? [])].find((one) => one.textContent === {});
         wanted?.focus();
         wanted?.click();
         return wanted !== undefined",
        json!(text),
        json!(button)
    );
    eventually(&format!("the row of {text:?} has {button:?}"), || scene.run(&script) == true);
}

#[tokio::test(flavor = "multi_thread")]
async fn console_lock_is_released_by_force() {
    let scene = Scene::start().await;
    let path = format!("/v1/locks/{}", encoded(EVIL));
    let taken = scene.post(&path, &json!({ "ttl_ms": 600_000, "label": "worker-7" }));
    assert_eq!(taken.status, 201, "{}", taken.text());
    let fence = taken.json()["fence"].to_string();
    scene.sign_in("ana");
    scene.go("locks");
    scene.shows(&["hidden", "worker-7", &fence]);
    scene.lacks(&["onerror", "Its life"]);
    // A masked lock is released by the hash of its name.
    assert_eq!(scene.post("/v1/locks/l1", &json!({ "ttl_ms": 600_000 })).status, 201);
    scene.click("Refresh");
    let locks = scene.get("/v1/operator/locks")["locks"].clone();
    let masked = locks.as_array().unwrap().iter().find(|one| one["key"] == "l1").unwrap();
    press_in_row(&scene, masked["key_hash"].as_str().unwrap(), "Force release…");
    let said = scene.confirm("a test");
    has(&said, &["whose name has the hash", masked["key_hash"].as_str().unwrap()]);
    eventually("it is free", || scene.get("/v1/locks/l1")["held"] == false);
    scene.is_audited("force-release", "a test");
    scene.reveal("who holds it?");
    scene.shows(&[EVIL]);
    press_in_row(&scene, EVIL, "Force release…");
    let said = scene.confirm("the worker is gone");
    has(&said, &[EVIL, "worker-7", "may go on working"]);
    scene.shows(&["No lock is held."]);
    assert_eq!(scene.get(&path)["held"], false);
    scene.is_audited("force-release", "the worker is gone");

    assert_eq!(scene.post("/v1/locks/l2", &json!({ "ttl_ms": 600_000 })).status, 201);
    scene.server.delete("/v1/operator/locks/l2").bearer("eyes").is(403, "forbidden");
    scene.is_guarded("locks", &["hidden"], &["l2"]);
    scene.shows(&["No lock is held."]);
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_queue_is_paused_and_resumed() {
    let scene = Scene::start().await;
    scene.enqueue(EVIL).await;
    scene.enqueue("customer-2").await;
    scene.sign_in("ana");
    scene.go("queues");
    scene.shows(&["outbox", "Running"]);
    let row = || scene.text_of("main tbody tr");
    eventually("two items wait", || row().contains("Running\t2\t0\t0"));
    let paused = || scene.get("/v1/operator/queues")["queues"][0]["paused"].clone();
    press_in_row(&scene, "outbox", "Pause…");
    has(&scene.confirm("broker upgrade"), &["Pause the queue outbox", "nothing is lost"]);
    eventually("it is paused", || row().contains("Paused"));
    let pause = paused();
    assert_eq!((&pause["by"], &pause["note"]), (&json!("ana"), &json!("broker upgrade")));
    scene.go("queues/outbox");
    scene.shows(&["Paused", "by ana", "broker upgrade", "orders", "hidden", "Waiting"]);
    scene.lacks(&["customer-2"]);
    scene.reveal("which customer?");
    scene.shows(&[EVIL, "customer-2", "Lag per key"]);
    scene.click("Resume…");
    scene.confirm("upgraded");
    eventually("it runs", || paused() == Value::Null);
    scene.is_audited("pause", "broker upgrade");
    scene.is_audited("resume", "upgraded");
    scene.is_audited("reveal", "which customer?");

    scene.server.post("/v1/queues/outbox/pause").bearer("eyes").is(403, "forbidden");
    scene.sign_in("eyes");
    for page in ["queues", "queues/outbox"] {
        scene.go(page);
        scene.shows(&["Running"]);
        scene.lacks(&["customer-2"]);
        assert_eq!(scene.action_buttons(), json!([]));
    }
    // The name of a queue belongs to the store; its items belong to their tenant.
    scene.sign_in("eve");
    scene.go("queues/outbox");
    scene.shows(&["Nothing waits."]);
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_dead_letters_are_requeued_and_discarded() {
    let scene = Scene::start().await;
    for key in ["a", "b", "c"] {
        scene.bury(key, "no such topic").await;
    }
    let marked = scene.bury("customer-4", EVIL).await;
    let kept = scene.bury("customer-5", EVIL).await;
    scene.sign_in("ana");
    scene.go("dead");
    scene.shows(&["no such topic", EVIL, "hidden"]);
    scene.lacks(&["customer-4", "payload <"]);
    let depth = async || scene.store.depth(&QueueName::outbox(), None).await.unwrap();

    press_in_row(&scene, "no such topic", "Requeue all…");
    let said = scene.confirm("the topic is there now");
    has(&said, &["Requeue 3 dead letters of outbox with the reason “no such topic”."]);
    eventually("the task is done", || scene.text_of(".task").contains("3 done"));
    assert_eq!((depth().await.waiting, depth().await.dead), (3, 2));
    eventually("their group is gone", || !scene.text().contains("no such topic"));

    let mark = format!("document.querySelector('[data-focus=\"mark-{marked}\"]').click()");
    scene.run(&mark);
    scene.click("Discard 1 marked…");
    let said = scene.confirm("the customer is gone");
    has(&said, &["Discard 1 marked dead letter of outbox.", "deleted for good"]);
    // The page has been told of the end of the task when its card says so.
    eventually("the task is done", || scene.text_of(".task:last-child").contains("1 of 1 done"));
    assert_eq!(scene.get("/v1/queues/outbox")["dead"], 1);

    scene.reveal("what was in it?");
    scene.shows(&["customer-5"]);
    scene.lacks(&["customer-4"]);
    scene.click("Show");
    scene.shows(&[&format!("payload {EVIL}"), "origin: shop", "Errors of its attempts"]);
    press_in_row(&scene, "customer-5", "Requeue…");
    has(&scene.confirm("once more"), &[&kept.to_string()]);
    scene.shows(&["outbox has no dead letters."]);
    assert_eq!((depth().await.waiting, depth().await.dead), (4, 0));
    scene.is_audited("requeue", "the topic is there now");
    scene.is_audited("discard", "the customer is gone");
    scene.is_audited("reveal", "what was in it?");
    scene.is_audited("requeue", "once more");
    scene.is_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn console_dead_letters_cannot_be_touched_by_readers() {
    let scene = Scene::start().await;
    let id = scene.bury("customer-4", "no such topic").await;
    let dead = format!("/v1/queues/outbox/dead/{id}");
    scene.server.delete(&dead).bearer("eyes").is(403, "forbidden");
    scene.server.post(&format!("{dead}/requeue")).bearer("eyes").is(403, "forbidden");
    let all = json!({ "where": {} });
    for action in ["requeue", "discard"] {
        let path = format!("/v1/queues/outbox/dead/{action}");
        scene.server.post(&path).bearer("eyes").json(&all).is(403, "forbidden");
    }
    let revealed = "/v1/queues/outbox/dead?payload=true&reveal=true";
    scene.server.get(revealed).bearer("eyes").is(403, "forbidden");
    scene.is_guarded("dead", &["no such topic"], &["customer-4", "payload <"]);
    scene.shows(&["outbox has no dead letters."]);
    assert_eq!(scene.get("/v1/queues/outbox")["dead"], 1);
    scene.is_clean();
}
