//! Sessions of the console, the scope `read`, and what is masked.

use serde_json::{Value, json};

use crate::http::access::token;
use crate::support::http::{HttpRequest, HttpResponse};
use crate::support::server::{Server, Setup};
use crate::support::store::TestStore;
use crate::support::{eventually, has};

const SESSION: &str = "/v1/session";
const COMMANDS: &str = "/v1/operator/commands";

fn tokens() -> String {
    let tokens = [
        token("shop", "shop", "'data'"),
        token("root", "shop", "'admin', 'data'"),
        token("eyes", "shop", "'read'"),
    ];
    tokens.concat()
}

fn guarded() -> Server {
    Setup::memory().file(&tokens()).start()
}

/// The browser of somebody who signed in.
struct Browser {
    cookie: String,
    csrf: String,
}

impl Browser {
    fn sign_in(server: &Server, token: &str) -> Self {
        let answer = server.post(SESSION).json(json!({"token": token})).send();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let csrf = answer.json()["csrf"].as_str().unwrap().to_owned();
        Self { cookie: cookie(&answer), csrf }
    }

    fn sends(&self, ask: HttpRequest) -> HttpRequest {
        ask.header("Cookie", &self.cookie).header("Hapax-Csrf", &self.csrf)
    }
}

fn cookie(answer: &HttpResponse) -> String {
    let set = answer.header("set-cookie").expect("a cookie");
    set.split(';').next().unwrap().to_owned()
}

#[test]
fn session_stands_for_its_token() {
    let server = guarded();
    let nobody = server.get(SESSION).send().json();
    assert_eq!((&nobody["signed_in"], &nobody["needs_token"]), (&json!(false), &json!(true)));
    assert_eq!((&nobody["csrf"], &nobody["reveal"]), (&Value::Null, &json!(false)));
    let answer = server.post(SESSION).json(json!({"token": "root"})).send();
    let set = answer.header("set-cookie").unwrap();
    assert!(set.contains("; HttpOnly; SameSite=Strict; Path=/; Max-Age=43200"), "{set}");
    assert!(!set.contains("Secure"), "{set}");
    let browser = Browser::sign_in(&server, "root");
    let shown = server.get(SESSION).header("Cookie", &browser.cookie).send().json();
    assert_eq!((&shown["signed_in"], &shown["name"]), (&json!(true), &json!("root")));
    assert_eq!((&shown["tenant"], &shown["csrf"]), (&json!("shop"), &json!(browser.csrf)));
    assert_eq!((&shown["scopes"], &shown["reveal"]), (&json!(["admin", "data"]), &json!(true)));
    for path in [COMMANDS, "/v1/queues", "/v1/operator/audit"] {
        assert_eq!(server.get(path).header("Cookie", &browser.cookie).status(), 200, "{path}");
    }
    // A session is for operators: it does not take locks.
    browser.sends(server.post("/v1/locks/k")).is(401, "unauthorized");
    server.get("/metrics").header("Cookie", &browser.cookie).is(401, "unauthorized");
    let tls = server.post(SESSION).header("X-Forwarded-Proto", "https");
    let tls = tls.json(json!({"token": "eyes"})).send();
    assert!(tls.header("set-cookie").unwrap().ends_with("; Secure"));
}

#[test]
fn session_ends_with_sign_out_or_its_token() {
    let store = TestStore::sqlite();
    let server = Setup::on(&store.url()).file(&tokens()).start();
    let (first, second) = (Browser::sign_in(&server, "root"), Browser::sign_in(&server, "root"));
    let list = |server: &Server, browser: &Browser| {
        server.get(COMMANDS).header("Cookie", &browser.cookie).status()
    };
    server.delete(SESSION).header("Cookie", &first.cookie).is(403, "forbidden");
    let out = first.sends(server.delete(SESSION)).send();
    assert_eq!(out.status, 204);
    assert!(out.header("set-cookie").unwrap().contains("hapax_session=; "));
    assert_eq!((list(&server, &first), list(&server, &second)), (401, 200));
    assert_eq!(server.delete(SESSION).status(), 204, "nobody was signed in");
    // Another node knows the session, unless it does not know the token.
    let node = Setup::on(&store.url()).file(&tokens()).start();
    assert_eq!((list(&node, &first), list(&node, &second)), (401, 200));
    let rotated = Setup::on(&store.url()).file(&token("new", "shop", "'admin'")).start();
    assert_eq!(list(&rotated, &second), 401);
    let state = rotated.get(SESSION).header("Cookie", &second.cookie).send().json();
    assert_eq!(state["signed_in"], false);
}

#[test]
fn session_sign_in_is_strict() {
    let server = guarded();
    server.post(SESSION).json(json!({"token": "wrong"})).is(401, "unauthorized");
    server.post(SESSION).json(json!({"token": "shop"})).is(403, "forbidden");
    for body in ["{}", r#"{"token":""}"#, r#"{"token":7}"#, r#"{"token":"root","x":1}"#, "[]", "{"]
    {
        server.post(SESSION).json(body).is(400, "invalid-request");
    }
    let root = r#"{"token":"root"}"#;
    let text = server.post(SESSION).header("Content-Type", "text/plain").body(root.as_bytes());
    text.is(415, "unsupported-media-type");
    server.post(SESSION).header("Origin", "http://evil.example").json(root).is(403, "forbidden");
    server.post(SESSION).json(format!("\"{}\"", "x".repeat(5000))).is(413, "payload-too-large");
    let log = server.stop();
    assert!(!log.contains("wrong"), "{log}");
}

#[test]
fn session_cookie_alone_changes_nothing() {
    let server = guarded();
    let browser = Browser::sign_in(&server, "root");
    let other = Browser::sign_in(&server, "root");
    server.post("/v1/locks/k").bearer("root").json(r#"{"ttl_ms":600000}"#).send().token();
    let release = || server.delete("/v1/operator/locks/k").header("Cookie", &browser.cookie);
    has(&release().is(403, "forbidden").detail(), &["Hapax-Csrf", "/v1/session"]);
    release().header("Hapax-Csrf", "").is(403, "forbidden");
    release().header("Hapax-Csrf", &other.csrf).is(403, "forbidden");
    let right = || browser.sends(server.delete("/v1/operator/locks/k"));
    right().header("Hapax-Csrf", &browser.csrf).is(400, "invalid-request");
    for origin in ["http://evil.example", "null"] {
        right().header("Origin", origin).is(403, "forbidden");
        let read = server.get(COMMANDS).header("Cookie", &browser.cookie);
        read.header("Origin", origin).is(403, "forbidden");
    }
    let own = format!("http://{}", server.address);
    assert_eq!(right().header("Origin", &own).status(), 204);
    for wrong in
        ["hapax_session=", "hapax_session=xyz", &format!("hapax_session={}", "0".repeat(64))]
    {
        server.get(COMMANDS).header("Cookie", wrong).is(401, "unauthorized");
    }
    let twice = format!("{}; {}", browser.cookie, other.cookie);
    server.get(COMMANDS).header("Cookie", &twice).is(400, "invalid-request");
}

#[test]
fn scope_read_looks_and_changes_nothing() {
    let server = guarded();
    assert_eq!(server.post("/v1/commands/o/k").bearer("root").status(), 201);
    for path in [
        COMMANDS,
        "/v1/operator/commands/o/k",
        "/v1/operator/locks",
        "/v1/queues",
        "/v1/queues/q/dead",
    ] {
        assert_eq!(server.get(path).bearer("eyes").status(), 200, "{path}");
        let revealed = if path == "/v1/queues" { continue } else { format!("{path}?reveal=true") };
        has(&server.get(&revealed).bearer("eyes").is(403, "forbidden").detail(), &["admin"]);
    }
    for ask in [
        server.delete("/v1/operator/commands/o/k"),
        server.delete("/v1/operator/locks/k"),
        server.post("/v1/operator/sweep"),
        server.post("/v1/queues/q/dead/00000000-0000-0000-0000-000000000000/requeue"),
        server.get("/v1/locks/k"),
        server.get("/metrics"),
    ] {
        ask.bearer("eyes").is(403, "forbidden");
    }
}

/// Puts a command with an answer and a lock into the server.
fn fill(server: &Server) {
    let begun = server.post("/v1/commands/pay/U4af49").bearer("root").send().token();
    let answer = json!({"token": begun, "status": 201, "headers": {"x": "y"}, "body": "s3cr3t"});
    assert_eq!(server.put("/v1/commands/pay/U4af49").bearer("root").json(answer).status(), 200);
    let lock = server.post("/v1/locks/U4af49").bearer("root").json(r#"{"ttl_ms":600000}"#);
    lock.send().token();
}

#[test]
fn keys_and_answers_are_masked_for_sessions_and_readers() {
    let server = guarded();
    fill(&server);
    let browser = Browser::sign_in(&server, "root");
    let paths = [COMMANDS, "/v1/operator/commands/pay/U4af49", "/v1/operator/locks"];
    for path in paths {
        let session = server.get(path).header("Cookie", &browser.cookie);
        let asked = server.get(&format!("{path}?reveal=false")).bearer("root");
        for ask in [session, asked, server.get(path).bearer("eyes")] {
            let answer = ask.send();
            has(&answer.text(), &["\"masked\":true"]);
            assert!(!answer.text().contains("U4af49"), "{}", answer.text());
            assert!(!answer.text().contains("s3cr3t"), "{}", answer.text());
        }
        let shown = server.get(path).bearer("root").send().text();
        let revealed = server.get(&format!("{path}?reveal=true")).header("Cookie", &browser.cookie);
        for text in [shown, revealed.send().text()] {
            has(&text, &["\"masked\":false"]);
            assert!(text.contains("U4af49") || text.contains("s3cr3t"), "{text}");
        }
        server.get(&format!("{path}?reveal=yes")).bearer("root").is(400, "invalid-request");
    }
    let masked = server.get(paths[1]).bearer("eyes").send().json();
    assert_eq!((&masked["state"], &masked["status"]), (&json!("completed"), &json!(201)));
    assert_eq!((&masked["headers"], &masked["body"]), (&Value::Null, &Value::Null));
}

#[test]
fn console_reveal_can_be_switched_off() {
    let never = ["--console-reveal", "never"];
    let server = Setup::memory().flags(&never).file(&tokens()).start();
    fill(&server);
    let browser = Browser::sign_in(&server, "root");
    let path = format!("{COMMANDS}?reveal=true");
    let refused = server.get(&path).header("Cookie", &browser.cookie).is(403, "forbidden");
    has(&refused.detail(), &["--console-reveal never"]);
    assert_eq!(server.get(&path).bearer("root").status(), 200);
    let state = server.get(SESSION).header("Cookie", &browser.cookie).send().json();
    assert_eq!(state["reveal"], false);
    let open = Setup::memory().flags(&never).start();
    open.get(&path).is(403, "forbidden");
    assert_eq!(open.get(COMMANDS).status(), 200, "the contract of the API");
}

#[test]
fn console_can_be_switched_off() {
    let server = Setup::memory().flags(&["--console", "off"]).file(&tokens()).start();
    for path in ["/", "/console/app.js", SESSION] {
        server.get(path).is(404, "not-found");
    }
    let cookie = format!("hapax_session={}", "0".repeat(64));
    server.get(COMMANDS).header("Cookie", &cookie).is(401, "unauthorized");
    assert_eq!(server.get(COMMANDS).bearer("root").status(), 200);
}

#[test]
fn loopback_without_tokens_needs_no_session() {
    let server = Server::start();
    let state = server.get(SESSION).send().json();
    assert_eq!((&state["signed_in"], &state["needs_token"]), (&json!(true), &json!(false)));
    assert_eq!((&state["csrf"], &state["tenant"]), (&Value::Null, &json!("default")));
    let answer = server.post(SESSION).json(json!({"token": "x"})).send();
    assert_eq!((answer.status, answer.header("set-cookie")), (200, None));
    server.get(SESSION).header("Origin", "http://evil.example").is(403, "forbidden");
}

#[test]
fn seen_session_goes_on_while_the_store_is_away() {
    let TestStore::Redis(redis) = TestStore::redis() else { unreachable!() };
    let flags = ["--store-timeout", "200ms"];
    let server = Setup::on(&redis.url()).flags(&flags).file(&tokens()).start();
    let browser = Browser::sign_in(&server, "eyes");
    redis.kill();
    server.is_ready(false);
    let state = server.get(SESSION).header("Cookie", &browser.cookie).send();
    assert_eq!((state.status, &state.json()["signed_in"]), (200, &json!(true)));
    server.get(COMMANDS).header("Cookie", &browser.cookie).is(503, "store-unavailable");
    let unknown = format!("hapax_session={}", "0".repeat(64));
    eventually("an unknown session is not refused for good", || {
        server.get(COMMANDS).header("Cookie", &unknown).status() == 503
    });
}
