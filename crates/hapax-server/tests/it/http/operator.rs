//! Decisions of operators about commands, and their audit log.

use std::collections::BTreeSet;

use hapax::sqlite::rusqlite::Connection;
use hapax::{ClaimRequest, Key, Operation, Tenant};
use serde_json::{Value, json};

use crate::http::access::{guarded, token};
use crate::support::http::{HttpRequest, HttpResponse};
use crate::support::server::{Server, Setup};
use crate::support::{WAIT_TIMEOUT, eventually, has};

const LIST: &str = "/v1/operator/commands";
const SCOPE: &str = "0123456789abcdef0123456789abcdef";

/// Puts the command of this name into the state of this name.
fn command(server: &Server, name: &str) -> String {
    let path = format!("/v1/commands/pay/{name}");
    let lease = if name.starts_with("unknown") { 1 } else { 60_000 };
    let begin = format!("{{\"lease_ms\":{lease},\"fingerprint\":\"f\"}}");
    let begun = server.post(&path).json(&begin).send().json();
    let token = begun["token"].as_str().unwrap();
    match name {
        "completed" => {
            let answer = json!({"token": token, "status": 201, "body": "first"}).to_string();
            assert_eq!(server.put(&path).json(&answer).status(), 200);
        }
        "failed" => assert_eq!(server.delete(&path).header("Hapax-Token", token).status(), 204),
        "pending" => {}
        _ => eventually("the lease runs out", || state(server, name) == "unknown"),
    }
    format!("{LIST}/pay/{name}")
}

fn state(server: &Server, name: &str) -> String {
    let seen = server.get(&format!("/v1/commands/pay/{name}")).send();
    seen.json()["state"].as_str().unwrap_or("gone").to_owned()
}

fn begin(server: &Server, name: &str) -> HttpResponse {
    server.post(&format!("/v1/commands/pay/{name}")).json(r#"{"fingerprint":"f"}"#).send()
}

const ANSWER: &str = r#"{"status":202,"headers":{"x":"y"},"body":"decided"}"#;

/// A look at a command, and both decisions about it.
fn actions(server: &Server, path: &str) -> [HttpRequest; 3] {
    [server.get(path), server.put(path).json(ANSWER), server.delete(path)]
}

#[test]
fn operator_settle_gives_every_caller_that_response() {
    let server = Server::start();
    for name in ["unknown", "failed"] {
        let path = command(&server, name);
        let settled = server.put(&path).json(ANSWER).send();
        assert_eq!((settled.status, settled.json()), (200, json!({"state": "completed"})));
        let replayed = begin(&server, name);
        assert_eq!((replayed.status, &replayed.json()["body"]), (200, &json!("decided")));
        assert_eq!(replayed.json()["headers"], json!({"x": "y"}));
        assert_eq!(server.put(&path).json(ANSWER).status(), 200, "the same again");
        server.put(&path).json(r#"{"status":500}"#).is(409, "already-completed");
    }
}

#[test]
fn operator_release_makes_next_begin_the_first_attempt() {
    let server = Server::start();
    for name in ["unknown", "failed"] {
        let path = command(&server, name);
        let released = server.delete(&path).send();
        assert_eq!((released.status, released.text().as_str()), (204, ""));
        server.delete(&path).is(404, "command-missing");
        server.put(&path).json(ANSWER).is(404, "command-missing");
        let begun = begin(&server, name);
        assert_eq!((begun.status, &begun.json()["attempt"]), (201, &json!(1)));
    }
}

#[test]
fn operator_cannot_touch_pending_or_completed_commands() {
    let server = Server::start();
    let pending = command(&server, "pending");
    for ask in [server.put(&pending).json(ANSWER), server.delete(&pending)] {
        let refused = ask.is(409, "in-progress");
        assert!(refused.header("retry-after").is_some());
    }
    assert_eq!(state(&server, "pending"), "pending");
    let completed = command(&server, "completed");
    for ask in [server.put(&completed).json(ANSWER), server.delete(&completed)] {
        ask.is(409, "already-completed");
    }
    assert_eq!(begin(&server, "completed").json()["body"], "first");
}

#[test]
fn operator_decision_makes_late_owner_lose_the_claim() {
    let server = Server::start();
    for method in ["PUT", "DELETE"] {
        let path = format!("/v1/commands/pay/{method}");
        let token = server.post(&path).json(r#"{"lease_ms":1}"#).send().json()["token"].clone();
        eventually("the lease runs out", || state(&server, method) == "unknown");
        let ruled = server.ask(method, &format!("{LIST}/pay/{method}"));
        assert!(if method == "PUT" { ruled.json(ANSWER) } else { ruled }.status() < 300);
        let late = json!({"token": token, "status": 200, "body": "late"}).to_string();
        server.put(&path).json(&late).is(409, "claim-lost");
    }
}

#[test]
fn operator_shows_command_as_to_its_owner() {
    let server = Server::start();
    let path = command(&server, "completed");
    let seen = server.get(&path).send().json();
    assert_eq!((&seen["state"], &seen["status"]), (&json!("completed"), &json!(201)));
    assert_eq!((&seen["body"], &seen["attempt"]), (&json!("first"), &json!(1)));
    assert!(seen.get("token").is_none());
    server.get(&format!("{LIST}/pay/nothing")).is(404, "command-missing");
}

fn keys(page: &Value) -> BTreeSet<String> {
    let commands = page["commands"].as_array().unwrap().iter();
    commands.map(|command| command["key"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn commands_are_listed_by_state() {
    let server = Server::start();
    for name in ["pending", "unknown", "completed", "failed"] {
        command(&server, name);
    }
    for state in ["pending", "unknown", "completed", "failed"] {
        let page = server.get(&format!("{LIST}?state={state}")).send().json();
        assert_eq!(keys(&page), BTreeSet::from([state.to_owned()]));
        let one = &page["commands"][0];
        assert_eq!((&one["operation"], &one["state"]), (&json!("pay"), &json!(state)));
        assert_eq!((&one["scope"], &one["attempt"]), (&Value::Null, &json!(1)));
        for number in ["fence", "begun_ms_ago", "expires_in_ms"] {
            assert!(one[number].is_u64(), "{number}: {one}");
        }
        assert!(one.get("token").is_none());
    }
    assert_eq!(keys(&server.get(LIST).send().json()).len(), 4);
}

#[test]
fn operator_list_pages_to_the_end() {
    for store in ["memory:", "sqlite:hapax.db"] {
        let server = Setup::on(store).start();
        for i in 0..7 {
            // The command must still be pending when the last page is read.
            let begin = server.post(&format!("/v1/commands/o/k{i}"));
            assert_eq!(begin.json(r#"{"lease_ms":3600000}"#).status(), 201);
        }
        server.lock("no-command");
        let (mut seen, mut after, mut pages) = (BTreeSet::new(), String::new(), 0);
        loop {
            let page = server.get(&format!("{LIST}?limit=3&state=pending{after}")).send().json();
            assert!(keys(&page).len() <= 3);
            seen.extend(keys(&page));
            pages += 1;
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        assert_eq!((seen.len(), pages), (7, 3), "{store}");
    }
}

#[test]
fn operator_list_parameters_are_strict() {
    let server = Server::start();
    for (query, named) in [
        ("state=settled", "state"),
        ("state=", "state"),
        ("state=Unknown", "state"),
        ("state=failed&state=failed", "state"),
        ("limit=0", "1 to 1000"),
        ("limit=1001", "1 to 1000"),
        ("limit=%2B5", "limit"),
        ("limit=", "limit"),
        ("limit=5&limit=5", "limit"),
        ("after=", "after"),
        ("after=abc", "after"),
        ("after=ZGVmYXVsdDpjb21tYW5kOmE6Yg", "after"),
        ("scope=x", "`scope`"),
        ("after=%zz", "percent-encoding"),
    ] {
        has(&server.get(&format!("{LIST}?{query}")).is(400, "invalid-request").detail(), &[named]);
    }
    let path = command(&server, "unknown");
    for query in ["scope=", "scope=a%20b", "scope=a&scope=a", "tenant=x"] {
        for ask in actions(&server, &format!("{path}?{query}")) {
            ask.is(400, "invalid-request");
        }
    }
    for body in [r#"{"status":199}"#, r#"{"status":600}"#, "{}", r#"{"status":200,"token":"t"}"#] {
        server.put(&path).json(body).is(400, "invalid-request");
    }
    for body in [r#"{"at_most":0}"#, r#"{"at_most":1000001}"#, r#"{"at_most":"1"}"#] {
        server.post("/v1/operator/sweep").json(body).is(400, "invalid-request");
    }
    assert_eq!(state(&server, "unknown"), "unknown");
}

/// The command of a proxy that died, in the file of the server.
fn proxied(server: &Server, tenant: &str) {
    let url = format!("sqlite:{}", server.folder.path().join("hapax.db").display());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let patient = hapax::StoreConfig::default().timeout(WAIT_TIMEOUT);
        let store = hapax::open(&url, &patient).unwrap();
        let tenant = Tenant::new(tenant).unwrap().scoped(SCOPE).unwrap();
        let key = Key::command(&tenant, Operation("POST /orders"), "key-1").unwrap();
        let ask = ClaimRequest::new(std::time::Duration::from_millis(1))
            .retention(std::time::Duration::from_secs(60));
        store.claim(&key, &ask).await.unwrap();
    });
}

#[test]
fn operator_finds_proxy_keys_by_scope() {
    let server = Setup::new().start();
    proxied(&server, "default");
    eventually("the lease runs out", || {
        let page = server.get(&format!("{LIST}?state=unknown")).send().json();
        page["commands"][0]["scope"] == SCOPE
    });
    let path = format!("{LIST}/POST%20%2Forders/key-1");
    // The scope may be left out, because no other one has the key.
    assert_eq!(server.get(&path).send().json()["state"], "unknown");
    let scoped = format!("{path}?scope={SCOPE}");
    assert_eq!(server.get(&scoped).send().json()["state"], "unknown");
    assert_eq!(server.put(&scoped).json(ANSWER).status(), 200);
    assert_eq!(server.get(&scoped).send().json()["body"], "decided");
}

#[test]
fn tenants_never_see_each_others_commands() {
    let tokens =
        [token("a", "shop", "'admin', 'data'"), token("b", "shopx", "'admin', 'data'")].concat();
    for store in ["sqlite:hapax.db", "memory:"] {
        let server = Setup::on(store).file(&tokens).start();
        if store.starts_with("sqlite") {
            proxied(&server, "shopx");
        }
        for i in 0..3 {
            let path = format!("/v1/commands/o/hidden-{i}");
            assert_eq!(server.post(&path).bearer("b").json(r#"{"lease_ms":1}"#).status(), 201);
            assert_eq!(server.post(&format!("/v1/commands/o/k{i}")).bearer("a").status(), 201);
        }
        let page = server.get(&format!("{LIST}?limit=1")).bearer("a").send().json();
        let next = page["next"].as_str().unwrap();
        server.get(&format!("{LIST}?after={next}")).bearer("b").is(400, "invalid-request");
        let all = server.get(LIST).bearer("a").send();
        assert_eq!(keys(&all.json()).len(), 3);
        assert!(!all.text().contains("hidden"), "{}", all.text());
        for path in [
            format!("{LIST}/o/hidden-1"),
            format!("{LIST}/POST%20%2Forders/key-1?scope={SCOPE}"),
            format!("{LIST}/o/hidden-1?scope=..%2Fshopx"),
        ] {
            for ask in actions(&server, &path) {
                ask.bearer("a").is(404, "command-missing");
            }
        }
        let theirs = server.get(LIST).bearer("b").send().json();
        assert_eq!(keys(&theirs).len(), if store == "memory:" { 3 } else { 4 });
    }
}

#[test]
fn operator_needs_the_scope_admin() {
    let server = guarded();
    assert_eq!(server.post("/v1/commands/o/k").bearer("shop").status(), 201);
    let calls = |name: &str| {
        let one = format!("{LIST}/o/k");
        [
            server.get(LIST),
            server.get(&one),
            server.put(&one).json(ANSWER),
            server.delete(&one),
            server.post("/v1/operator/sweep"),
            server.get("/v1/operator/nothing"),
        ]
        .map(|ask| ask.bearer(name).send())
    };
    for name in ["shop", "watch"] {
        for answer in calls(name) {
            answer.is(403, "forbidden");
        }
    }
    assert_eq!(calls("root").map(|answer| answer.status), [200, 200, 409, 409, 200, 404]);
}

#[test]
fn operator_actions_are_audited_without_keys() {
    let token =
        token("s3cret", "shop", "'admin', 'data'").replace("name = 's3cret'", "name = 'ops'");
    let flags = ["--log", "json", "--log-level", "error"];
    let server = Setup::memory().flags(&flags).file(&token).start();
    let lost = server.post("/v1/commands/0peration/U4af4980629").bearer("s3cret");
    let fence = lost.json(r#"{"lease_ms":1}"#).send().json()["fence"].clone();
    let path = format!("{LIST}/0peration/U4af4980629");
    let show = || server.get(&path).bearer("s3cret").send();
    eventually("the lease runs out", || show().json()["state"] == "unknown");
    let answer = r#"{"status":200,"body":"s3cr3t-body"}"#;
    assert_eq!(server.put(&path).bearer("s3cret").json(answer).status(), 200);
    server.delete(&path).bearer("s3cret").is(409, "already-completed");
    assert_eq!(server.get(LIST).bearer("s3cret").status(), 200);
    assert_eq!(server.post("/v1/operator/sweep").bearer("s3cret").status(), 200);
    let metrics = server.get("/metrics").bearer("s3cret").send().text();
    let counted = r#"hapax_operator_actions_total{action="settle",result="done"} 1"#;
    assert!(metrics.contains(counted), "{metrics}");
    let log = server.stop();
    for secret in ["U4af4980629", "0peration", "s3cr3t-body", "s3cret"] {
        assert!(!log.contains(secret) && !metrics.contains(secret), "{secret}: {log}");
    }
    let mut audited: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    audited.retain(|line| line["target"] == "audit" && line["action"] != "show");
    let expected = [
        ("settle", "done", &fence),
        ("release", "already-completed", &fence),
        ("list", "done", &Value::Null),
        ("sweep", "done", &Value::Null),
    ];
    assert_eq!(audited.len(), expected.len(), "{log}");
    for (line, (action, result, fence)) in audited.iter().zip(expected) {
        assert_eq!((&line["action"], &line["result"]), (&json!(action), &json!(result)));
        assert_eq!((&line["token"], &line["tenant"]), (&json!("ops"), &json!("shop")));
        assert_eq!((&line["fence"], &line["level"]), (fence, &json!("INFO")));
    }
}

#[test]
fn operator_requests_do_not_wait_behind_others() {
    let server = Setup::memory().flags(&["--in-flight", "1"]).start();
    let _waiting = server.fill(1);
    assert_eq!(server.get(LIST).status(), 200);
}

fn claims(server: &Server) -> i64 {
    let file = Connection::open(server.folder.path().join("hapax.db")).unwrap();
    file.query_row("SELECT count(*) FROM hapax_claims", [], |row| row.get(0)).unwrap()
}

/// Stores expired rows and one that has not expired.
fn litter(server: &Server, rows: usize) {
    for i in 0..rows {
        assert_eq!(server.post(&format!("/v1/locks/k{i}")).json(r#"{"ttl_ms":1}"#).status(), 201);
    }
    server.lock("kept");
}

#[test]
fn expired_data_vanishes_from_the_sqlite_file() {
    let server = Setup::new().flags(&["--sweep-interval", "50ms"]).start();
    litter(&server, 5);
    eventually("only one is left", || claims(&server) == 1);
    assert_eq!(server.get("/v1/locks/kept").send().json()["held"], true);
    // A row is gone before it is counted.
    server.counts("hapax_swept_total 5");
}

#[test]
fn operator_sweep_deletes_up_to_the_limit() {
    let server = Setup::new().start();
    litter(&server, 5);
    eventually("the last one has expired", || {
        server.get("/v1/locks/k4").send().json()["held"] == false
    });
    let sweep = |body: &str| server.post("/v1/operator/sweep").json(body).send().json();
    assert_eq!(sweep(r#"{"at_most":2}"#), json!({"swept": 2, "more": true}));
    assert_eq!(claims(&server), 4);
    assert_eq!(sweep("{}"), json!({"swept": 3, "more": false}));
    assert_eq!(sweep("{}"), json!({"swept": 0, "more": false}));
    assert_eq!(claims(&server), 1);
}

#[test]
fn fault_45_held_locks_are_listed() {
    let server = Server::start();
    assert_eq!(server.get("/v1/operator/locks").send().json(), json!({"locks": [], "next": null}));
    server.lock("deploy");
    server.post("/v1/commands/o/k").send().token();
    let page = server.get("/v1/operator/locks").send().json();
    let locks = page["locks"].as_array().unwrap();
    assert_eq!((locks.len(), &locks[0]["key"]), (1, &json!("deploy")), "{page}");
    assert!(locks[0]["fence"].is_u64() && locks[0].get("token").is_none());
    let listed = server.run(["lock", "list"]).ok();
    assert!(listed.contains("deploy") && listed.lines().count() == 2, "{listed}");
}
