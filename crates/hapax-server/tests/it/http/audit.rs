//! The audit log in the store.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::http::access::token;
use crate::support::eventually;
use crate::support::server::{Server, Setup};
use crate::support::store::{TestStore, tests_on_stores};

const AUDIT: &str = "/v1/operator/audit";

fn items(server: &Server, query: &str) -> Vec<Value> {
    let page = server.get(&format!("{AUDIT}?{query}")).send().json();
    page["items"].as_array().unwrap().clone()
}

/// A lock that is held, and then released by an operator.
fn force_release(server: &Server, name: &str, note: &str) {
    server.lock(name);
    let path = format!("/v1/operator/locks/{name}");
    assert_eq!(server.delete(&path).header("Hapax-Note", note).status(), 204);
}

async fn audit_log_has_each_action_once(store: TestStore) {
    let server = Setup::on(&store.url()).start();
    assert_eq!(server.get(AUDIT).send().json(), json!({"items": [], "next": null}));
    for i in 0..5 {
        force_release(&server, &format!("k{i}"), "der%20Besitzer%20ist%20weg%20%E2%9C%93");
    }
    server.delete("/v1/operator/locks/k0").is(404, "lock-free");
    let rows = items(&server, "");
    assert_eq!(rows.len(), 5, "{rows:?}");
    let newest = &rows[0];
    assert_eq!((&newest["action"], &newest["result"]), (&json!("force-release"), &json!("done")));
    assert_eq!((&newest["who"], &newest["note"]), (&json!("-"), &json!("der Besitzer ist weg ✓")));
    assert_eq!(
        (&newest["subject"]["kind"], &newest["subject"]["key"]),
        (&json!("lock"), &json!("k4"))
    );
    assert!(newest["subject"]["fence"].is_u64() && newest["node"].is_string(), "{newest}");
    let masked = &items(&server, "reveal=false")[0];
    assert_eq!((&masked["subject"]["key"], &masked["masked"]), (&Value::Null, &json!(true)));
    let (mut seen, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = server.get(&format!("{AUDIT}?limit=2{after}")).send().json();
        seen.extend(page["items"].as_array().unwrap().clone());
        pages += 1;
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!((seen.len(), pages), (5, 3));
    let ids: BTreeSet<_> = seen.iter().map(|row| row["id"].to_string()).collect();
    assert_eq!(ids.len(), 5);
}

tests_on_stores! { audit_log_has_each_action_once;
    audit_log_on_memory on memory,
    audit_log_on_sqlite on sqlite,
    audit_log_on_redis on redis,
    audit_log_on_postgres on postgres,
}

#[test]
fn audit_log_outlives_its_node() {
    let mut server = Setup::new().start();
    force_release(&server, "k", "");
    server.restart();
    force_release(&server, "k", "");
    let nodes: BTreeSet<_> = items(&server, "").iter().map(|row| row["node"].to_string()).collect();
    assert_eq!(nodes.len(), 2);
}

#[test]
fn reveal_is_audited() {
    let server = Server::start();
    for path in ["/v1/operator/commands", "/v1/operator/locks", "/v1/queues/outbox/dead"] {
        assert_eq!(server.get(path).status(), 200);
        assert_eq!(server.get(&format!("{path}?reveal=true")).status(), 200);
    }
    let rows = items(&server, "");
    let rows: Vec<_> = rows.iter().map(|row| (&row["action"], &row["subject"]["kind"])).collect();
    let kinds = ["dead-letters", "locks", "commands"].map(|kind| (json!("reveal"), json!(kind)));
    assert_eq!(rows, kinds.iter().map(|(a, b)| (a, b)).collect::<Vec<_>>());
}

#[test]
fn refused_actions_are_audited_with_their_problem() {
    let server = Server::start();
    server.post("/v1/commands/pay/k").json(r#"{"lease_ms":600000}"#).send().token();
    let path = "/v1/operator/commands/pay/k";
    server.delete(path).is(409, "in-progress");
    server.put(path).json(r#"{"status":1}"#).is(400, "invalid-request");
    server.delete("/v1/operator/commands/pay/nothing").is(404, "command-missing");
    let rows = items(&server, "");
    assert_eq!(rows.len(), 1, "what was never begun is not there: {rows:?}");
    assert_eq!(
        (&rows[0]["action"], &rows[0]["result"]),
        (&json!("release"), &json!("in-progress"))
    );
    assert_eq!(rows[0]["subject"]["operation"], "pay");
}

#[test]
fn note_is_checked_before_anything_is_done() {
    let server = Server::start();
    server.lock("k");
    let release = |note: &str| server.delete("/v1/operator/locks/k").header("Hapax-Note", note);
    for wrong in ["%", "%FF", "%0A", &"x".repeat(501)] {
        let detail = release(wrong).is(400, "invalid-request").detail();
        assert!(detail.contains("Hapax-Note") && detail.contains("500"), "{detail}");
    }
    release("a").header("Hapax-Note", "b").is(400, "invalid-request");
    assert_eq!(server.get("/v1/locks/k").send().json()["held"], true);
    assert_eq!(release(&"x".repeat(500)).status(), 204);
}

#[test]
fn audit_log_of_a_tenant_is_its_own() {
    let tokens = [token("a", "shop", "'admin', 'data'"), token("b", "bank", "'admin', 'data'")];
    let server = Setup::memory().file(&tokens.concat()).start();
    server.post("/v1/locks/k").bearer("a").json(r#"{"ttl_ms":600000}"#).send().token();
    assert_eq!(server.delete("/v1/operator/locks/k").bearer("a").status(), 204);
    let page = |name: &str, query: &str| server.get(&format!("{AUDIT}{query}")).bearer(name).send();
    assert_eq!(page("a", "").json()["items"][0]["who"], "a");
    assert_eq!(page("b", "").json()["items"], json!([]));
    for query in ["?after=x", "?limit=0", "?state=x"] {
        page("a", query).is(400, "invalid-request");
    }
    // The audit log is a job, and no caller can name it.
    server.get("/v1/jobs//audit").bearer("a").is(400, "invalid-request");
}

#[test]
fn action_is_refused_if_the_audit_log_fails() {
    let TestStore::Redis(redis) = TestStore::redis() else { unreachable!() };
    let server = Setup::on(&redis.url()).flags(&["--store-timeout", "200ms"]).start();
    let id = "00000000-0000-7000-8000-000000000000";
    redis.kill();
    eventually("the store is away", || {
        let answer = server.delete(&format!("/v1/queues/outbox/dead/{id}")).send();
        answer.status == 503 && answer.detail().contains("nothing was done")
    });
}
