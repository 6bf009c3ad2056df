//! Every operation of the OpenAPI document against callers who may not: readers, cookies without the second secret, other
//! tenants. An operation that is added later is asked too.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::http::access::token;
use crate::http::queues::Scene;
use crate::support::eventually;
use crate::support::http::HttpRequest;
use crate::support::server::Server;

/// In everything that the tenant `default` has, and in nothing else.
const SECRET: &str = "s3cr3t";

/// One operation of the document, with the names of its query parameters.
struct DescribedOperation {
    method: String,
    path: String,
    query: Vec<String>,
    is_stream: bool,
}

impl DescribedOperation {
    /// Whether it only looks.
    fn reads(&self) -> bool {
        self.method == "GET"
    }

    /// Whether it is signing in, out, or asking who one is: everybody may.
    fn is_session(&self) -> bool {
        self.path == "/v1/session"
    }

    fn ask(&self, server: &Server, dead: &str, query: &str) -> HttpRequest {
        let ask = server.ask(&self.method, &format!("{}{query}", filled(&self.path, dead)));
        if self.reads() { ask } else { ask.json(json!({})) }
    }
}

fn operations(server: &Server) -> Vec<DescribedOperation> {
    let api = server.get("/openapi.json").send().json();
    let mut found = Vec::new();
    for (path, item) in api["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let query = parameters.filter(|parameter| parameter["in"] == "query");
            found.push(DescribedOperation {
                method: method.to_uppercase(),
                path: path.clone(),
                query: query.map(|one| one["name"].as_str().unwrap().to_owned()).collect(),
                is_stream: operation["responses"]["200"]["content"]["text/event-stream"]
                    .is_object(),
            });
        }
    }
    assert!(found.len() > 50, "{} operations", found.len());
    found
}

/// The path of something that exists.
fn filled(path: &str, dead: &str) -> String {
    let names = [
        ("{key}", SECRET),
        ("{operation}", SECRET),
        ("{consumer}", SECRET),
        ("{message_id}", SECRET),
        ("{queue}", "outbox"),
        ("{domain}", SECRET),
        ("{job_id}", SECRET),
        ("{kind}", "command"),
        ("{scope}", SECRET),
    ];
    // A task has no id that a caller could choose.
    let id = if path.contains("/dead/") { dead } else { "00000000-0000-7000-8000-000000000000" };
    let path = names.iter().fold(path.to_owned(), |path, (name, value)| path.replace(name, value));
    let path = path.replace("{id}", id);
    assert!(!path.contains('{'), "{path} has a parameter that this test does not know");
    path
}

/// A server on which the tenant `default` has one of each, and the id of its dead letter. `ana` may do everything
/// there, `eyes` may only look; `eve` may do everything in another tenant.
async fn scene() -> (Scene, String) {
    let tokens = [
        token("ana", "default", "'data', 'admin'"),
        token("eyes", "default", "'read'"),
        token("eve", "other", "'data', 'admin'"),
    ];
    let scene = Scene::new(&tokens.concat()).await;
    let server = &scene.server;
    let post = |path: &str, body: Value| {
        let answer = server.post(path).bearer("ana").json(body).send();
        assert_eq!(answer.status, 201, "{path}: {}", answer.text());
    };
    post(&format!("/v1/locks/{SECRET}"), json!({ "ttl_ms": 600_000, "label": SECRET }));
    post(&format!("/v1/inbox/{SECRET}/{SECRET}"), json!({ "lease_ms": 600_000 }));
    let event = json!({ "domain": SECRET, "job_id": SECRET, "stage": SECRET, "seq": 1, "data": { "text": SECRET } });
    post("/v1/events", event);
    post(
        &format!("/v1/commands/{SECRET}/{SECRET}"),
        json!({ "lease_ms": 1, "fingerprint": "a", "label": SECRET }),
    );
    let record = server.put(&format!("/v1/records/{SECRET}")).bearer("ana").json(json!(SECRET));
    assert_eq!(record.status(), 201);
    let dead = scene.bury_with_reason("default", SECRET, SECRET).await.to_string();
    (scene, dead)
}

/// What the tenant has, as its own operator sees it.
fn state(server: &Server) -> Value {
    let get = |path: &str| {
        let answer = server.get(path).bearer("ana").send();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    };
    let queue = get("/v1/queues/outbox");
    let audit = get("/v1/operator/audit")["items"].clone();
    let actions: Vec<_> = audit.as_array().unwrap().iter().map(|item| &item["action"]).collect();
    json!({
        "held": get(&format!("/v1/locks/{SECRET}"))["held"],
        "record": get(&format!("/v1/records/{SECRET}")),
        "commands": get("/v1/operator/commands?state=unknown")["commands"].as_array().unwrap().len(),
        "waiting": queue["depth"],
        "dead": queue["dead"],
        "job": get(&format!("/v1/jobs/{SECRET}/{SECRET}"))["offset"],
        "paused": get("/v1/operator/queues")["queues"][0]["paused"],
        "tasks": get("/v1/operator/tasks"),
        "audit": actions,
    })
}

fn expect_lost_command(server: &Server) {
    eventually("the outcome is unknown", || state(server)["commands"] == 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn reader_is_refused_by_every_changing_operation() {
    let (scene, dead) = scene().await;
    let server = &scene.server;
    expect_lost_command(server);
    let before = state(server);
    let session = SignedIn::new(server, "eyes");
    for operation in operations(server) {
        if operation.is_session() {
            continue;
        }
        let ask = |query: &str| operation.ask(server, &dead, query);
        if !operation.reads() {
            ask("").bearer("eyes").is(403, "forbidden");
            let status = session.sends(ask("")).status();
            assert!(
                matches!(status, 401 | 403),
                "{} {}: {status}",
                operation.method,
                operation.path
            );
        } else if operation.query.iter().any(|name| name == "reveal") {
            ask("?reveal=true").bearer("eyes").is(403, "forbidden");
            session.sends(ask("?reveal=true")).is(403, "forbidden");
        }
    }
    assert_eq!(state(server), before, "nothing has changed, and nothing is in the audit log");
}

/// The browser of somebody who signed in.
struct SignedIn {
    cookie: String,
    csrf: String,
}

impl SignedIn {
    fn new(server: &Server, name: &str) -> Self {
        let answer = server.post("/v1/session").json(json!({ "token": name })).send();
        let cookie = answer.header("set-cookie").expect("a cookie").split(';').next().unwrap();
        let csrf = answer.json()["csrf"].as_str().unwrap().to_owned();
        Self { cookie: cookie.to_owned(), csrf }
    }

    fn sends(&self, ask: HttpRequest) -> HttpRequest {
        ask.header("Cookie", &self.cookie).header("Hapax-Csrf", &self.csrf)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cookie_alone_is_refused_by_every_changing_operation() {
    let (scene, dead) = scene().await;
    let server = &scene.server;
    expect_lost_command(server);
    let before = state(server);
    let (session, other) = (SignedIn::new(server, "ana"), SignedIn::new(server, "ana"));
    for operation in operations(server).iter().filter(|operation| !operation.reads()) {
        if operation.path == "/v1/session" && operation.method == "POST" {
            continue;
        }
        let ask = || operation.ask(server, &dead, "").header("Cookie", &session.cookie);
        let foreign = session.sends(operation.ask(server, &dead, ""));
        for wrong in [
            ask(),
            ask().header("Hapax-Csrf", ""),
            ask().header("Hapax-Csrf", &other.csrf),
            foreign.header("Origin", "http://evil.example"),
        ] {
            let status = wrong.status();
            assert!(
                matches!(status, 401 | 403),
                "{} {}: {status}",
                operation.method,
                operation.path
            );
        }
    }
    assert_eq!(state(server), before, "nothing has changed, and nothing is in the audit log");
}

/// What the own operator must see the secret in, so that its absence means something.
const SHOWN: [&str; 13] = [
    "/v1/records/{key}",
    "/v1/jobs/{domain}/{job_id}",
    "/v1/queues/{queue}/dead",
    "/v1/queues/{queue}/dead/reasons",
    "/v1/operator/audit",
    "/v1/operator/commands",
    "/v1/operator/conflicts",
    "/v1/operator/jobs",
    "/v1/operator/jobs/{domain}/{job_id}",
    "/v1/operator/keys/{kind}/{scope}/{key}",
    "/v1/operator/locks",
    "/v1/operator/queues/{queue}/waiting",
    "/v1/operator/suppressed",
];

#[tokio::test(flavor = "multi_thread")]
async fn other_tenant_sees_and_changes_nothing() {
    let (scene, dead) = scene().await;
    let server = &scene.server;
    expect_lost_command(server);
    scene.enqueue("default", SECRET).await;
    let post = |path: &str, body: Value| server.post(path).bearer("ana").json(body).status();
    // A replay, a reused key, and an action with a note.
    let paid = format!("/v1/commands/{SECRET}/paid");
    let begun = server.post(&paid).bearer("ana").json(json!({ "label": SECRET })).send().token();
    let end = json!({ "token": begun, "status": 201, "body": SECRET });
    assert_eq!(server.put(&paid).bearer("ana").json(end).status(), 200);
    assert_eq!(post(&paid, json!({})), 200);
    let command = format!("/v1/commands/{SECRET}/{SECRET}");
    assert_eq!(post(&command, json!({ "fingerprint": "b" })), 422);
    assert_eq!(post("/v1/locks/other", json!({ "ttl_ms": 600_000 })), 201);
    let release = server.delete("/v1/operator/locks/other").bearer("ana");
    assert_eq!(release.header("Hapax-Note", SECRET).status(), 204);
    let shown_to = |name: &str| {
        let mut shown = BTreeSet::new();
        // Streams do not end; those of other tenants are in `activity` and `events_access`.
        for operation in operations(server).iter().filter(|one| one.reads() && !one.is_stream) {
            let has = |wanted: &str| operation.query.iter().any(|name| name == wanted);
            let query = match (has("reveal"), has("payload")) {
                (true, true) => "?reveal=true&payload=true",
                (true, false) => "?reveal=true",
                _ => "",
            };
            let answer = operation.ask(server, &dead, query).bearer(name).send();
            if answer.text().contains(SECRET) {
                shown.insert(operation.path.clone());
            }
        }
        shown
    };
    eventually("the own operator sees it", || {
        let shown = shown_to("ana");
        SHOWN.iter().all(|path| shown.contains(*path))
    });
    assert_eq!(shown_to("eve"), BTreeSet::new());
    let before = state(server);
    for operation in operations(server).iter().filter(|one| !one.reads() && !one.is_session()) {
        operation.ask(server, &dead, "").bearer("eve").send();
    }
    assert_eq!(state(server), before);
}
