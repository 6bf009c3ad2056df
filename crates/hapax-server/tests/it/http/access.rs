use sha2::{Digest, Sha256};

use crate::support::server::{Server, Setup};

pub(crate) fn token(name: &str, tenant: &str, scopes: &str) -> String {
    let hash: String = Sha256::digest(name).iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "[[token]]\nname = '{name}'\nsha256 = '{hash}'\ntenant = '{tenant}'\nscopes = [{scopes}]\n"
    )
}

/// The secret of each token is its name.
pub(crate) fn guarded() -> Server {
    let tokens = [
        token("shop", "shop", "'data'"),
        token("bank", "bank", "'data'"),
        token("watch", "shop", "'metrics'"),
        token("root", "shop", "'admin'"),
        token("boss", "bank", "'admin', 'data'"),
    ];
    Setup::memory().file(&tokens.concat()).start()
}

#[test]
fn token_is_needed_for_everything_but_health() {
    let server = guarded();
    for path in ["/healthz", "/readyz"] {
        assert_eq!(server.get(path).status(), 200);
    }
    let paths = "/v1/locks/k /v1/records/k /v1/commands/o/k /v1/inbox/c/m /v1/queues/q \
                 /v1/operator/commands /v1/nothing /metrics";
    let bearers = ["Bearer wrong", "Bearer ", "Bearer", "Bearer shop extra", "Bearer Shop"];
    let others = [None, Some("Basic c2hvcA=="), Some("shop"), Some("")];
    for path in paths.split_whitespace() {
        for wrong in bearers.map(Some).into_iter().chain(others) {
            let ask = server.get(path);
            let ask = wrong.map_or(ask.clone(), |value| ask.header("Authorization", value));
            let answer = ask.is(401, "unauthorized");
            let challenge = answer.header("www-authenticate").unwrap();
            assert!(challenge.starts_with("Bearer"), "{path} {wrong:?}");
        }
    }
    server.get("/v1/locks/k").bearer("shop").bearer("shop").is(400, "invalid-request");
}

#[test]
fn token_scopes_are_enforced() {
    let server = guarded();
    for (name, data, metrics) in [("shop", 200, 403), ("watch", 403, 200), ("root", 403, 200)] {
        assert_eq!(server.get("/v1/locks/k").bearer(name).status(), data, "{name}");
        assert_eq!(server.get("/metrics").bearer(name).status(), metrics, "{name}");
    }
    server.get("/v1/locks/k").bearer("watch").is(403, "forbidden");
    assert_eq!(server.get("/v1/locks/k").header("Authorization", "bearer shop").status(), 200);
}

#[test]
fn tenants_are_separate() {
    let server = guarded();
    for name in ["shop", "bank"] {
        let lock = server.post("/v1/locks/k").bearer(name).json(r#"{"ttl_ms":60000}"#);
        assert_eq!(lock.status(), 201, "{name}");
        assert_eq!(server.post("/v1/commands/o/k").bearer(name).status(), 201, "{name}");
        let record = server.put("/v1/records/k").bearer(name).json(format!("\"{name}\"")).send();
        assert_eq!(record.status, 201, "{name}");
    }
    for name in ["shop", "bank"] {
        assert_eq!(server.post("/v1/locks/k").bearer(name).status(), 409);
        assert_eq!(server.get("/v1/records/k").bearer(name).send().text(), format!("\"{name}\""));
    }
    // A claimed tenant changes nothing.
    let claimed = server.get("/v1/records/k").bearer("shop").header("Hapax-Tenant", "bank").send();
    assert_eq!(claimed.text(), "\"shop\"");
}

#[test]
fn any_host_and_origin_may_ask_with_tokens() {
    let server = guarded();
    let ask = server.get("/v1/locks/k").bearer("shop").header("Host", "hapax.example");
    assert_eq!(ask.header("Origin", "https://shop.example").status(), 200);
}

#[test]
fn foreign_hosts_and_sites_are_refused_without_tokens() {
    let server = Server::start();
    let port = server.address.split(':').nth(1).unwrap();
    for path in ["/v1/locks/k", "/", "/healthz", "/metrics", "/docs/", "/nothing"] {
        for host in
            ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "169.254.1.1", "0.0.0.0"]
        {
            server.get(path).header("Host", host).is(403, "forbidden");
        }
        for origin in
            ["http://evil.example", "https://localhost.evil.example", "null", "http://localhost:1"]
        {
            server.get(path).header("Origin", origin).is(403, "forbidden");
        }
    }
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        let ask = server.get("/v1/locks/k").header("Host", &format!("{host}:{port}"));
        let ask = ask.header("Origin", &format!("http://localhost:{port}"));
        assert_eq!(ask.status(), 200, "{host}");
    }
    server.post("/v1/locks/k").header("Origin", "http://evil.example").is(403, "forbidden");
    assert_eq!(server.get("/v1/locks/k").send().json()["held"], false);
    let twice = server.get("/").header("X", "\r\nHost: localhost").send();
    assert_eq!(twice.status, 400, "two hosts");
}

#[test]
fn fault_20_forwarded_requests_are_refused_without_tokens() {
    let (open, guarded) = (Server::start(), guarded());
    for (name, value) in [
        ("Forwarded", "for=1.2.3.4"),
        ("Via", "1.1 nginx"),
        ("X-Forwarded-For", "1.2.3.4"),
        ("X-Forwarded-Proto", "https"),
        ("X-Real-IP", "1.2.3.4"),
        ("CF-Connecting-IP", "1.2.3.4"),
    ] {
        for path in ["/v1/locks/k", "/v1/operator/commands", "/v1/queues/q", "/metrics", "/"] {
            let refused = open.get(path).header(name, value).is(403, "forwarded-request");
            assert!(refused.detail().contains("hapax token new"), "{}", refused.detail());
        }
        for path in ["/healthz", "/readyz"] {
            assert_eq!(open.get(path).header(name, value).status(), 200, "{name} {path}");
        }
        let authenticated = guarded.get("/v1/locks/k").bearer("shop").header(name, value);
        assert_eq!(authenticated.status(), 200, "{name}");
    }
}
