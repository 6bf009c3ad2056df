//! Actions on many rows, the pause of a queue, labels, and figures for operators.

use std::time::Duration;

use hapax::queue::{LeaseRequest, QueueItem, QueueName};
use hapax::{ClaimRequest, Key, Operation, StoreConfig, Tenant};
use hapax_testkit::{Redis, TcpProxy};
use serde_json::{Value, json};

use crate::http::access::token;
use crate::http::queues::Scene;
use crate::support::server::{Server, Setup};
use crate::support::{WAIT_TIMEOUT, eventually, has};

const TASKS: &str = "/v1/operator/tasks";
const DEAD: &str = "/v1/queues/outbox/dead";
const LEASE: Duration = Duration::from_secs(60);

/// Dead letters with a reason each.
async fn bury(scene: &Scene, reasons: &[&str]) -> Vec<String> {
    let queue = QueueName::outbox();
    let mut ids = Vec::new();
    for (i, reason) in reasons.iter().enumerate() {
        ids.push(scene.enqueue("default", &format!("key-{i}")).await.to_string());
        let take = LeaseRequest::new(9, LEASE);
        let leased = scene.store.lease(&queue, &take).await.unwrap();
        let retry =
            scene.store.retry(&queue, &take.token, leased[0].item.id, Duration::ZERO, "first");
        let _ = retry.await.unwrap();
        let take = LeaseRequest::new(9, LEASE);
        let leased = scene.store.lease(&queue, &take).await.unwrap();
        let id = leased[0].item.id;
        let _ = scene.store.bury(&queue, &take.token, id, reason).await.unwrap();
    }
    ids
}

/// Begins a task, and waits for its end.
#[track_caller]
fn run(server: &Server, path: &str, body: &Value) -> Value {
    let begun = server.post(path).header("Hapax-Note", "because").json(body).send();
    assert_eq!(begun.status, 202, "{}", begun.text());
    let path = format!("{TASKS}/{}", begun.json()["id"].as_str().unwrap());
    eventually("the task ends", || server.get(&path).send().json()["state"] != "running");
    server.get(&path).send().json()
}

fn dead(server: &Server) -> u64 {
    server.get("/v1/queues/outbox").send().json()["dead"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_requeued_by_reason() {
    let scene = Scene::new("").await;
    let (server, ids) = (&scene.server, bury(&scene, &["no", "timeout", "no", "no"]).await);
    let reasons = server.get(&format!("{DEAD}/reasons")).send().json();
    let counts = reasons["reasons"].as_array().unwrap().iter();
    let counts: Vec<_> = counts.map(|one| (one["reason"].clone(), one["count"].clone())).collect();
    assert_eq!(counts, [(json!("no"), json!(3)), (json!("timeout"), json!(1))]);
    let page = server.get(&format!("{DEAD}?reason=timeout")).send().json();
    assert_eq!((&page["items"][0]["id"], &page["next"]), (&json!(ids[1]), &Value::Null));
    assert_eq!(page["items"][0]["errors"], json!(["first", "timeout"]));

    let task = run(server, &format!("{DEAD}/requeue"), &json!({"where": {"reason": "no"}}));
    assert_eq!((&task["state"], &task["action"]), (&json!("done"), &json!("requeue")));
    assert_eq!(
        (&task["done"], &task["failed"], &task["error"]),
        (&json!(3), &json!(0), &Value::Null)
    );
    assert_eq!(dead(server), 1);
    let other = run(server, &format!("{DEAD}/discard"), &json!({"where": {"topic": "elsewhere"}}));
    assert_eq!((&other["done"], dead(server)), (&json!(0), 1));
    let gone = run(server, &format!("{DEAD}/discard"), &json!({"ids": [ids[0], ids[1]]}));
    assert_eq!((&gone["done"], &gone["failed"], &gone["total"]), (&json!(1), &json!(1), &json!(2)));
    assert_eq!(dead(server), 0);

    let listed = server.get(TASKS).send().json();
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 3);
    assert_eq!(listed["tasks"][0]["id"], gone["id"], "newest first");
    let audit = server.get("/v1/operator/audit").send().json();
    let first = &audit["items"][2];
    assert_eq!((&first["action"], &first["result"]), (&json!("requeue"), &json!("done")));
    assert_eq!((&first["note"], &first["subject"]["reason"]), (&json!("because"), &json!("no")));
    assert_eq!((&first["subject"]["done"], &first["subject"]["task"]), (&json!(3), &task["id"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_four_at_once_and_stop_half_way() {
    const ROWS: usize = 1000;
    let redis = Redis::start();
    let slow = TcpProxy::to(redis.port());
    let server = Setup::on(&format!("redis://127.0.0.1:{}", slow.port())).start();
    server.is_ready(true);
    let store = hapax::open(&redis.url(), &StoreConfig::default().timeout(WAIT_TIMEOUT)).unwrap();
    let (queue, tenant) = (QueueName::outbox(), Tenant::default());
    for _ in 0..ROWS / 100 {
        let item = |_| QueueItem::new(&tenant, "orders", "{}");
        let items: Vec<_> = (0..100).map(item).collect();
        store.enqueue(&queue, &items).await.unwrap();
        let take = LeaseRequest::new(100, LEASE);
        for leased in store.lease(&queue, &take).await.unwrap() {
            let _ = store.bury(&queue, &take.token, leased.item.id, "no").await.unwrap();
        }
    }
    assert_eq!(dead(&server), ROWS as u64);
    // Each row now takes some time, so that no task ends by itself.
    slow.delay_answers(Duration::from_millis(20));
    let begin = |body: &Value| server.post(&format!("{DEAD}/requeue")).json(body).send();
    let missing: Vec<_> =
        (0..10_000).map(|n| format!("00000000-0000-7000-8000-{n:012x}")).collect();
    let missing = json!({ "ids": missing });
    let mut ids = Vec::new();
    for body in [&json!({"where": {}}), &missing, &missing, &missing] {
        let begun = begin(body);
        assert_eq!(begun.status, 202, "{}", begun.text());
        ids.push(begun.json()["id"].as_str().unwrap().to_owned());
    }
    let refused = begin(&missing);
    has(&refused.is(429, "too-many-requests").detail(), &["4 tasks", "DELETE"]);
    let task = |id: &str| server.get(&format!("{TASKS}/{id}")).send().json();
    eventually("a row is done", || task(&ids[0])["done"].as_u64() > Some(0));
    let stop = |id: &str| {
        assert_eq!(server.delete(&format!("{TASKS}/{id}")).status(), 200);
        eventually("it has stopped", || task(id)["state"] == "stopped");
    };
    stop(&ids[0]);
    let done = task(&ids[0])["done"].as_u64().unwrap();
    assert!((1..ROWS as u64).contains(&done), "{done}");
    slow.resume();
    assert_eq!(dead(&server), ROWS as u64 - done, "the rest is as it was");
    let audit = server.get("/v1/operator/audit").send().json();
    let ended = audit["items"].as_array().unwrap().iter();
    let ended = ended.filter(|one| one["action"] == "requeue" && one["result"] == "stopped");
    let ended: Vec<_> = ended.map(|one| &one["subject"]).collect();
    assert_eq!((ended.len(), &ended[0]["task"]), (1, &json!(ids[0])));
    assert_eq!(ended[0]["done"], done);
    // The place of the stopped task is free again.
    assert_eq!(begin(&json!({"where": {"reason": "other"}})).status, 202);
    ids[1..]
        .iter()
        .for_each(|id| assert_eq!(server.delete(&format!("{TASKS}/{id}")).status(), 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_decided_by_state_and_operation() {
    let scene = Scene::new("").await;
    let server = &scene.server;
    let callers = [Tenant::default(), Tenant::default().scoped("abc").unwrap()];
    for (tenant, operation, key) in
        [(&callers[0], "pay", "a"), (&callers[1], "pay", "b"), (&callers[0], "notify", "c")]
    {
        let key = Key::command(tenant, Operation(operation), key).unwrap();
        let ask = ClaimRequest::new(Duration::from_millis(1)).retention(LEASE);
        scene.store.claim(&key, &ask).await.unwrap();
    }
    let unknown = |query: &str| {
        let page = server.get(&format!("/v1/operator/commands?state=unknown{query}")).send().json();
        page["commands"].as_array().unwrap().len()
    };
    eventually("the leases run out", || unknown("") == 3);
    assert_eq!((unknown("&operation=pay"), unknown("&operation=pa")), (2, 0));
    let decide = "/v1/operator/commands/decide";
    let young = json!({"state": "unknown", "older_than_ms": 3_600_000});
    let task = run(server, decide, &json!({"where": young, "action": "release"}));
    assert_eq!(task["done"], 0);
    let pay = json!({"state": "unknown", "operation": "pay"});
    let settle = json!({"where": pay, "action": "settle", "status": 201, "body": "paid"});
    let task = run(server, decide, &settle);
    assert_eq!((&task["done"], &task["failed"]), (&json!(2), &json!(0)));
    assert_eq!(task["subject"]["operation"], "pay");
    let settled = server.get("/v1/operator/commands/pay/b?scope=abc").send().json();
    assert_eq!((&settled["state"], &settled["body"]), (&json!("completed"), &json!("paid")));
    let task = run(server, decide, &json!({"where": {"state": "unknown"}, "action": "release"}));
    assert_eq!((&task["done"], unknown("")), (&json!(1), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn masked_rows_are_named_by_the_hash_of_their_key() {
    let scene = Scene::new("").await;
    let server = &scene.server;
    let callers = [Tenant::default(), Tenant::default().scoped("abc").unwrap()];
    for (tenant, key) in [(&callers[0], "same"), (&callers[1], "same"), (&callers[0], "other")] {
        let key = Key::command(tenant, Operation("pay"), key).unwrap();
        let ask = ClaimRequest::new(Duration::from_millis(1)).retention(LEASE);
        scene.store.claim(&key, &ask).await.unwrap();
    }
    let list = |query: &str| {
        let path = format!("/v1/operator/commands?state=unknown&reveal=false{query}");
        server.get(&path).send().json()
    };
    eventually("the leases run out", || list("")["commands"].as_array().unwrap().len() == 3);
    let listed = list("");
    let rows = listed["commands"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["key"] == Value::Null), "{listed}");
    let of_caller = rows.iter().find(|row| row["scope"] == "abc").unwrap();
    let path = |row: &Value, query: &str| {
        let hash = row["key_hash"].as_str().unwrap();
        format!("/v1/operator/commands/pay/{hash}?by=hash{query}")
    };
    let release = server.delete(&path(of_caller, "&state=unknown"));
    assert_eq!(release.status(), 204);
    release.is(404, "command-missing");
    let left = list("");
    let left = left["commands"].as_array().unwrap();
    assert!(left.len() == 2 && left.iter().all(|row| row["scope"] == Value::Null));
    // The cursor of any page helps, and a row before it is found all the same.
    let next = list("&limit=1")["next"].clone();
    for row in left {
        let query = format!("&state=unknown&after={}", next.as_str().unwrap());
        let settle = server.put(&path(row, &query)).json(r#"{"status":204}"#);
        assert_eq!(settle.status(), 200);
    }
    assert_eq!(list("")["commands"], json!([]));
    let audit = server.get("/v1/operator/audit").send().json();
    assert_eq!(audit["items"][0]["subject"]["operation"], "pay");
    assert!(["same", "other"].map(Some).contains(&audit["items"][0]["subject"]["key"].as_str()));

    server.lock("l");
    let lock = server.get("/v1/operator/locks?reveal=false").send().json()["locks"][0].clone();
    assert_eq!(lock["key"], Value::Null);
    let hash = lock["key_hash"].as_str().unwrap();
    server.delete(&format!("/v1/operator/locks/{hash}")).is(404, "lock-free");
    let path = format!("/v1/operator/locks/{hash}?by=hash");
    assert_eq!(server.delete(&path).status(), 204);
    server.delete(&path).is(404, "lock-free");
    for wrong in ["?by=key", "?after=x", "?by=hash&after=x"] {
        let lock = format!("/v1/operator/locks/{hash}{wrong}");
        server.delete(&lock).is(400, "invalid-request");
        let command = format!("/v1/operator/commands/pay/{hash}{wrong}");
        server.delete(&command).is(400, "invalid-request");
    }
}

#[test]
fn task_requests_are_strict() {
    let server = Server::start();
    for body in [
        "{}",
        r#"{"where":{},"ids":[]}"#,
        r#"{"ids":[]}"#,
        r#"{"ids":"x"}"#,
        r#"{"ids":["x"]}"#,
        r#"{"ids":[7]}"#,
        r#"{"where":{"reason":7}}"#,
        r#"{"where":{"state":"dead"}}"#,
        r#"{"where":[]}"#,
        r#"{"where":{},"x":1}"#,
    ] {
        for action in ["requeue", "discard"] {
            let path = format!("{DEAD}/{action}");
            server.post(&path).json(body).is(400, "invalid-request");
        }
    }
    for body in [
        "{}",
        r#"{"where":{"state":"unknown"}}"#,
        r#"{"where":{"state":"pending"},"action":"release"}"#,
        r#"{"where":{},"action":"release"}"#,
        r#"{"where":{"state":"failed"},"action":"settle"}"#,
        r#"{"where":{"state":"failed"},"action":"release","status":200}"#,
        r#"{"where":{"state":"failed","key":"k"},"action":"release"}"#,
        r#"{"where":{"state":"failed","older_than_ms":-1},"action":"release"}"#,
    ] {
        server.post("/v1/operator/commands/decide").json(body).is(400, "invalid-request");
    }
    let wrong =
        server.post(&format!("{DEAD}/requeue")).header("Hapax-Note", "%").json(r#"{"where":{}}"#);
    wrong.is(400, "invalid-request");
    assert_eq!(server.get(TASKS).send().json(), json!({"tasks": []}));
}

#[test]
fn tasks_of_a_tenant_are_its_own() {
    let tokens = [token("a", "shop", "'admin'"), token("b", "bank", "'admin'")];
    let server = Setup::memory().file(&tokens.concat()).start();
    let begun = server.post(&format!("{DEAD}/requeue")).bearer("a").json(r#"{"where":{}}"#).send();
    let path = format!("{TASKS}/{}", begun.json()["id"].as_str().unwrap());
    assert_eq!(server.get(&path).bearer("a").status(), 200);
    server.get(&path).bearer("b").is(404, "task-missing");
    server.delete(&path).bearer("b").is(404, "task-missing");
    assert_eq!(server.get(TASKS).bearer("b").send().json(), json!({"tasks": []}));
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_pause_is_a_record_with_its_reason() {
    let scene = Scene::new("").await;
    let queue = QueueName::outbox();
    let pause = scene.server.post("/v1/queues/outbox/pause").header("Hapax-Note", "update");
    assert_eq!((pause.status(), pause.status()), (204, 204));
    let paused = hapax::worker::paused(&*scene.store, &queue).await.unwrap().unwrap();
    assert_eq!((paused.by.as_str(), paused.note.as_deref()), ("-", Some("update")));
    let resume = || scene.server.post("/v1/queues/outbox/resume").status();
    assert_eq!((resume(), resume()), (204, 204));
    assert_eq!(hapax::worker::paused(&*scene.store, &queue).await.unwrap(), None);
    scene.server.post("/v1/queues/outbox/pause").json(r#"{"x":1}"#).is(400, "invalid-request");
    let audit = scene.server.get("/v1/operator/audit").send().json();
    let actions: Vec<_> = audit["items"].as_array().unwrap().iter().map(|i| &i["action"]).collect();
    assert_eq!(actions, ["resume", "resume", "pause", "pause"]);
}

#[test]
fn queue_pause_of_several_tenants_is_for_the_default_tenant() {
    let tokens = [token("shop", "shop", "'admin'"), token("ops", "default", "'admin'")];
    let server = Setup::memory().file(&tokens.concat()).start();
    for path in ["/v1/queues/outbox/pause", "/v1/queues/outbox/resume"] {
        has(&server.post(path).bearer("shop").is(403, "forbidden").detail(), &["default"]);
        assert_eq!(server.post(path).bearer("ops").status(), 204);
    }
    let alone = Setup::memory().file(&tokens[0]).start();
    assert_eq!(alone.post("/v1/queues/outbox/pause").bearer("shop").status(), 204);
}

#[test]
fn claims_show_the_label_of_their_owner() {
    let server = Server::start();
    let label = r#"{"label":"billing-7","ttl_ms":600000}"#;
    server.post("/v1/locks/a").json(label).send().token();
    server.lock("b");
    let locks = server.get("/v1/operator/locks").send().json();
    let owner = |key: &str| {
        let lock = locks["locks"].as_array().unwrap().iter().find(|lock| lock["key"] == key);
        lock.unwrap()["label"].as_str().unwrap().to_owned()
    };
    assert_eq!(owner("a"), "billing-7");
    assert!(owner("b").starts_with("serve-"), "{}", owner("b"));
    server.post("/v1/commands/pay/a").json(r#"{"label":"web 1"}"#).send().token();
    let commands = server.get("/v1/operator/commands").send().json();
    assert_eq!(commands["commands"][0]["label"], "web 1");
    for path in ["/v1/locks/a", "/v1/commands/pay/a", "/metrics"] {
        let shown = server.get(path).send().text();
        assert!(!shown.contains("billing-7") && !shown.contains("web 1"), "{path}: {shown}");
    }
    assert_eq!(server.post("/v1/inbox/c/1").json(r#"{"label":"x"}"#).status(), 201);
    for path in ["/v1/locks/c", "/v1/commands/pay/c", "/v1/inbox/c/c"] {
        for wrong in [json!(""), json!("x".repeat(65)), json!("caf\u{e9}"), json!("a\nb"), json!(7)]
        {
            let refused =
                server.post(path).json(json!({"label": wrong})).is(400, "invalid-request");
            has(&refused.detail(), &["`label`"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_items_and_lagging_keys_are_shown() {
    let scene = Scene::new("").await;
    for key in ["U1", "U1", "U2"] {
        scene.enqueue("default", key).await;
    }
    scene.enqueue("other", "U3").await;
    let path = "/v1/operator/queues/outbox/waiting";
    let page = scene.server.get(path).send().json();
    let items = page["items"].as_array().unwrap();
    assert_eq!(
        (items.len(), &items[0]["key"], &items[0]["in_flight"]),
        (3, &json!("U1"), &json!(false))
    );
    let keys = page["keys"].as_array().unwrap();
    assert_eq!((keys.len(), &keys[0]["key"], &keys[0]["waiting"]), (2, &json!("U1"), &json!(2)));
    let masked = scene.server.get(&format!("{path}?reveal=false&limit=1")).send();
    assert!(!masked.text().contains("U1"), "{}", masked.text());
    assert_eq!(masked.json()["items"].as_array().unwrap().len(), 1);
    scene.server.get(&format!("{path}?limit=0")).is(400, "invalid-request");
}

#[test]
fn tenant_figures_are_the_callers_own() {
    let server = Setup::memory().flags(&["--in-flight", "7"]).start();
    server.lock("k");
    server.post("/v1/commands/o/k").json(r#"{"lease_ms":600000}"#).send().token();
    let tenants = server.get("/v1/operator/tenants").send().json();
    let own = &tenants["tenants"][0];
    assert_eq!((&own["tenant"], &own["keys"]), (&json!("default"), &json!(2)));
    assert_eq!((&own["keys_more"], &own["pending"]), (&json!(false), &json!(1)));
    assert_eq!(own["limits"]["in_flight_requests"], 7);
    assert_eq!((&own["used"]["sse_connections"], &own["refusals"]), (&json!(0), &json!(0)));
}
