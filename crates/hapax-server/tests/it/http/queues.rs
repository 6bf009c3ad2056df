//! Queue depths, and decisions about dead letters.

use std::sync::Arc;
use std::time::Duration;

use hapax::queue::{ItemId, LeaseRequest, QueueItem, QueueName};
use hapax::{ClaimRequest, Key, Operation, Store, StoreConfig, Tenant};
use serde_json::{Value, json};

use crate::http::access::token;
use crate::support::server::{Server, Setup};
use crate::support::store::TestStore;
use crate::support::{WAIT_TIMEOUT, has};

const LEASE: Duration = Duration::from_secs(60);

/// A file that the test and the server both have open.
pub(super) struct Scene {
    pub(super) server: Server,
    pub(super) store: Arc<dyn Store>,
    _file: TestStore,
}

impl Scene {
    pub(super) async fn new(tokens: &str) -> Self {
        let file = TestStore::sqlite();
        let server = Setup::on(&file.url()).flags(&["--log", "json"]).file(tokens).start();
        let patient = StoreConfig::default().timeout(WAIT_TIMEOUT);
        let store = hapax::open(&file.url(), &patient).unwrap();
        Self { server, store, _file: file }
    }

    pub(super) async fn enqueue(&self, tenant: &str, key: &str) -> ItemId {
        let item = QueueItem::new(&Tenant::new(tenant).unwrap(), "orders", "{}").key(key);
        let _ =
            self.store.enqueue(&QueueName::outbox(), std::slice::from_ref(&item)).await.unwrap();
        item.id
    }

    /// Takes all items that wait.
    pub(super) async fn drain(&self) {
        let (queue, take) = (QueueName::outbox(), LeaseRequest::new(100, LEASE));
        for leased in self.store.lease(&queue, &take).await.unwrap() {
            let _ = self.store.ack(&queue, &take.token, &[leased.item.id], LEASE).await.unwrap();
        }
    }

    /// Begins a command of a caller behind the proxy.
    pub(super) async fn begin_command(&self, scope: &str, operation: &str, name: &str) {
        let tenant = Tenant::default().scoped(scope).unwrap();
        let key = Key::command(&tenant, Operation(operation), name).unwrap();
        self.store.claim(&key, &ClaimRequest::new(LEASE).retention(LEASE)).await.unwrap();
    }

    /// A dead letter.
    pub(super) async fn bury(&self, tenant: &str, key: &str) -> ItemId {
        self.bury_with_reason(tenant, key, "no such topic").await
    }

    pub(super) async fn bury_with_reason(&self, tenant: &str, key: &str, reason: &str) -> ItemId {
        let id = self.enqueue(tenant, key).await;
        let (queue, take) = (QueueName::outbox(), LeaseRequest::new(100, LEASE));
        let leased = self.store.lease(&queue, &take).await.unwrap();
        assert_eq!(leased.iter().map(|leased| leased.item.id).collect::<Vec<_>>(), [id]);
        let _ = self.store.bury(&queue, &take.token, id, reason).await.unwrap();
        id
    }
}

fn ids(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().unwrap().iter();
    items.map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_shows_waiting_in_flight_and_dead_counts() {
    let scene = Scene::new("").await;
    let empty = scene.server.get("/v1/queues/outbox").send();
    let nothing = json!({"depth": 0, "in_flight": 0, "dead": 0, "oldest_age_ms": null});
    assert_eq!((empty.status, empty.json()), (200, nothing));
    scene.bury("default", "a").await;
    scene.enqueue("default", "b").await;
    scene.store.lease(&QueueName::outbox(), &LeaseRequest::new(1, LEASE)).await.unwrap();
    scene.enqueue("default", "c").await;
    let shown = scene.server.get("/v1/queues/outbox").send().json();
    assert_eq!((&shown["depth"], &shown["in_flight"]), (&json!(1), &json!(1)));
    assert_eq!(shown["dead"], 1);
    assert!(shown["oldest_age_ms"].is_u64());
    assert_eq!(scene.server.get("/v1/queues/other").send().json()["depth"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_paged_requeued_and_discarded() {
    let scene = Scene::new("").await;
    let mut buried = Vec::new();
    for key in ["a", "b", "c"] {
        buried.push(scene.bury("default", key).await.to_string());
    }
    buried.sort();
    let server = &scene.server;
    let page = server.get("/v1/queues/outbox/dead?limit=2").send().json();
    assert_eq!(ids(&page), buried[..2]);
    let item = &page["items"][0];
    assert_eq!((&item["attempts"], &item["reason"]), (&json!(1), &json!("no such topic")));
    let at = item["at"].as_str().unwrap();
    assert!(at.ends_with('Z') && at.starts_with("20"), "{at}");
    let next = page["next"].as_str().unwrap();
    let page = server.get(&format!("/v1/queues/outbox/dead?limit=2&after={next}")).send().json();
    assert_eq!((ids(&page).as_slice(), &page["next"]), (&buried[2..], &Value::Null));

    let requeue = format!("/v1/queues/outbox/dead/{}/requeue", buried[0]);
    assert_eq!(server.post(&requeue).status(), 204);
    server.post(&requeue).is(404, "dead-letter-missing");
    let discard = format!("/v1/queues/outbox/dead/{}", buried[1]);
    assert_eq!(server.delete(&discard).status(), 204);
    server.delete(&discard).is(404, "dead-letter-missing");
    let shown = server.get("/v1/queues/outbox").send().json();
    assert_eq!((&shown["depth"], &shown["dead"]), (&json!(1), &json!(1)));
    let take = LeaseRequest::new(9, LEASE);
    let leased = scene.store.lease(&QueueName::outbox(), &take).await.unwrap();
    assert_eq!((leased[0].item.id.to_string(), leased[0].attempt), (buried[0].clone(), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_actions_are_per_tenant_and_audited() {
    let tokens = [
        token("root", "shop", "'admin'"),
        token("boss", "bank", "'admin'"),
        token("till", "shop", "'data'"),
    ];
    let scene = Scene::new(&tokens.concat()).await;
    let id = scene.bury("shop", "a").await;
    let (list, discard) = ("/v1/queues/outbox/dead", format!("/v1/queues/outbox/dead/{id}"));
    scene.server.get(list).is(401, "unauthorized");
    for ask in [
        scene.server.get(list),
        scene.server.get("/v1/queues/outbox"),
        scene.server.delete(&discard),
        scene.server.post(&format!("{discard}/requeue")),
    ] {
        ask.bearer("till").is(403, "forbidden");
    }
    let seen = |token: &str| ids(&scene.server.get(list).bearer(token).send().json()).len();
    assert_eq!((seen("root"), seen("boss")), (1, 0));
    scene.server.delete(&discard).bearer("boss").is(404, "dead-letter-missing");
    assert_eq!(scene.server.delete(&discard).bearer("root").status(), 204);
    let log = scene.server.stop();
    let audit = log.lines().filter(|line| line.contains("operator action"));
    let audit = audit.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let discards: Vec<_> = audit.filter(|line| line["action"] == "discard").collect();
    let told: Vec<_> = discards.iter().map(|line| (&line["token"], &line["result"])).collect();
    let expected = [json!(["boss", "dead-letter-missing"]), json!(["root", "done"])];
    assert_eq!(json!(told), json!(expected));
    assert_eq!(discards[1]["item"], json!(id.to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_refuse_malformed_requests() {
    let server = Server::start();
    for (method, path, named) in [
        ("GET", "/v1/queues/", "queue is empty"),
        ("GET", "/v1/queues/a%20b", "queue"),
        ("GET", "/v1/queues/q?x=1", "`x`"),
        ("GET", "/v1/queues/q/dead?limit=0", "`limit`"),
        ("GET", "/v1/queues/q/dead?limit=1001", "`limit`"),
        ("GET", "/v1/queues/q/dead?after=x", "`after`"),
        ("DELETE", "/v1/queues/q/dead/x", "UUID"),
        ("POST", "/v1/queues/q/dead/x/requeue", "UUID"),
    ] {
        has(&server.ask(method, path).is(400, "invalid-request").detail(), &[named]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_45_dead_letters_show_topic_and_payload() {
    let scene = Scene::new("").await;
    let queue = QueueName::outbox();
    let texts = [b"s3cr3t text".to_vec(), vec![0, 159], vec![b'x'; 700_000], vec![b'y'; 700_000]];
    let item = |payload: Vec<u8>| {
        QueueItem::new(&Tenant::default(), "orders", payload).key("k").header("trace", "abc")
    };
    let _ = scene.store.enqueue(&queue, &texts.map(item)).await.unwrap();
    let take = LeaseRequest::new(9, LEASE);
    for leased in scene.store.lease(&queue, &take).await.unwrap() {
        let _ = scene.store.bury(&queue, &take.token, leased.item.id, "no").await.unwrap();
    }
    let page = scene.server.get("/v1/queues/outbox/dead").send().json();
    assert_eq!(page["items"][0]["topic"], "orders");
    assert!(page["items"][0].get("payload").is_none() && page["items"][0].get("headers").is_none());
    scene.server.get("/v1/queues/outbox/dead?payload=yes").is(400, "invalid-request");

    let (mut shown, mut next) = (Vec::new(), String::new());
    loop {
        let page = scene.server.get(&format!("/v1/queues/outbox/dead?payload=true{next}")).send();
        let page = page.json();
        shown.extend(page["items"].as_array().unwrap().clone());
        match page["next"].as_str() {
            Some(after) => next = format!("&after={after}"),
            None => break,
        }
    }
    assert_eq!(shown.len(), 4);
    assert!(!next.is_empty(), "two large ones do not fit on one page");
    assert!(shown.iter().all(|letter| letter["headers"]["trace"] == "abc"));
    assert!(shown.iter().any(|letter| letter["payload"] == "s3cr3t text"));
    assert!(shown.iter().any(|letter| letter["payload_base64"] == "AJ8="));
    assert_eq!(scene.server.get("/v1/queues").send().json()["queues"][0]["queue"], "outbox");
    assert!(!scene.server.log().contains("s3cr3t"), "payloads are never logged");
}
