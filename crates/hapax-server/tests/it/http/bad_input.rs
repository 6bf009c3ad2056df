//! Every endpoint × every malformed request: refused with the name of the field, and nothing is stored.

use serde_json::json;

use crate::support::http::HttpRequest;
use crate::support::server::Server;

/// Sends a request that must be refused, with this word in the problem's detail.
#[track_caller]
fn refused(ask: HttpRequest, named: &str) {
    let answer = ask.send();
    assert_eq!(answer.status, 400, "{ask}: {}", answer.text());
    answer.is(400, "invalid-request");
    assert_eq!(answer.json()["retryable"], false);
    assert!(answer.detail().contains(named), "{ask}: `{named}` is not in {}", answer.text());
}

fn nothing_is_stored(server: &Server) {
    assert_eq!(server.get("/v1/locks/k").send().json()["held"], false);
    server.get("/v1/records/k").is(404, "record-missing");
    server.get("/v1/commands/op/k").is(404, "command-missing");
}

/// Method, path up to the key, and the body that makes a request valid apart from its key.
const ENDPOINTS: [(&str, &str, &str); 18] = [
    ("POST", "/v1/locks/", "{}"),
    ("PUT", "/v1/locks/", r#"{"token":"t"}"#),
    ("DELETE", "/v1/locks/", ""),
    ("GET", "/v1/locks/", ""),
    ("GET", "/v1/records/", ""),
    ("PUT", "/v1/records/", "{}"),
    ("PATCH", "/v1/records/", "{}"),
    ("DELETE", "/v1/records/", ""),
    ("POST", "/v1/commands/op/", "{}"),
    ("PUT", "/v1/commands/op/", r#"{"token":"t","status":200}"#),
    ("DELETE", "/v1/commands/op/", ""),
    ("GET", "/v1/commands/op/", ""),
    ("POST", "/v1/inbox/op/", "{}"),
    ("PUT", "/v1/inbox/op/", r#"{"token":"t"}"#),
    ("DELETE", "/v1/inbox/op/", ""),
    ("GET", "/v1/operator/commands/op/", ""),
    ("PUT", "/v1/operator/commands/op/", r#"{"status":200}"#),
    ("DELETE", "/v1/operator/commands/op/", ""),
];

/// A request to every endpoint, valid apart from this key.
fn to_all(server: &Server, key: &str) -> impl Iterator<Item = HttpRequest> {
    ENDPOINTS.into_iter().map(move |(method, path, body)| {
        let ask = server.ask(method, &format!("{path}{key}"));
        match method {
            "GET" => ask,
            "DELETE" => ask.header("Hapax-Token", "t"),
            _ => ask.body(body.as_bytes()),
        }
    })
}

#[test]
fn keys_are_1_to_255_bytes_of_printable_ascii() {
    let server = Server::start();
    let (long, encoded) = ("x".repeat(256), "%41".repeat(256));
    for (named, keys) in [
        ("key is empty; it takes 1 to 255", &[""][..]),
        ("256 bytes; it takes 1 to 255", &[&long, &encoded]),
        ("percent-encoding", &["%", "%4", "%zz", "a%G0", "%E0%A4%A"]),
        (
            "printable ASCII (0x21 to 0x7E)",
            &["a%20b", "a%00", "%0A", "%7F", "caf%C3%A9", "%FF", "caf\u{e9}"],
        ),
    ] {
        for ask in keys.iter().flat_map(|key| to_all(&server, key)) {
            refused(ask, named);
        }
    }
    for operation in ["", &"o".repeat(256), "%0A", "%C3%A9"] {
        refused(server.post(&format!("/v1/commands/{operation}/k")), "operation");
    }
    refused(server.post("/v1/commands/%q/k"), "path");
    nothing_is_stored(&server);
    for longest in ["x", "%7E"] {
        assert_eq!(server.post(&format!("/v1/locks/{}", longest.repeat(255))).status(), 201);
    }
}

/// Fields that are numbers: method, path, the other fields that are needed, the field, its limits.
fn numbers() -> Vec<(&'static str, &'static str, &'static str, &'static str, u64, u64)> {
    const HOUR: u64 = 3_600_000;
    const YEAR: u64 = 366 * 86_400_000;
    vec![
        ("POST", "/v1/locks/k", "", "ttl_ms", 1, HOUR),
        ("POST", "/v1/locks/k", "", "wait_ms", 0, 60_000),
        ("PUT", "/v1/locks/k", r#""token":"t","#, "ttl_ms", 1, HOUR),
        ("POST", "/v1/commands/op/k", "", "lease_ms", 1, HOUR),
        ("POST", "/v1/commands/op/k", "", "retention_ms", 1, YEAR),
        ("POST", "/v1/commands/op/k", "", "wait_ms", 0, 60_000),
        ("PUT", "/v1/commands/op/k", r#""token":"t","#, "status", 100, 599),
    ]
}

#[test]
fn numbers_are_whole_and_within_their_limits() {
    let server = Server::start();
    for (method, path, rest, field, least, most) in numbers() {
        let send = |value: &str, named: &str| {
            let body = format!("{{{rest}\"{field}\":{value}}}");
            refused(server.ask(method, path).body(body.as_bytes()), named);
        };
        let above = (most + 1).to_string();
        let below = least.checked_sub(1).map_or("-1".to_owned(), |n| n.to_string());
        let wrong = "-1 1.5 1.0 1e3 9223372036854775808 18446744073709551616 1e400 -0 \"5000\" \
                     null true [] {} [5000]";
        for value in [&*above, &*below].into_iter().chain(wrong.split_whitespace()) {
            send(value, field);
        }
        for broken in ["NaN", "Infinity", "05", "+5", "0x10", "5.", ".5", "1_000", ""] {
            send(broken, "not JSON");
        }
        // The field twice.
        send(&format!("{least},\"{field}\":{least}"), field);
    }
    nothing_is_stored(&server);
    // The detail says what would do.
    let answer = server.post("/v1/locks/k").json("{\"ttl_ms\":0}").send();
    assert!(answer.detail().contains("1 to 3600000"), "{}", answer.text());
}

#[test]
fn limits_themselves_are_accepted() {
    let server = Server::start();
    for (i, (method, path, rest, field, least, most)) in numbers().into_iter().enumerate() {
        for (j, good) in [least, most].into_iter().enumerate() {
            let ask = server.ask(method, &format!("{path}{i}{j}"));
            let answer = ask.json(format!("{{{rest}\"{field}\":{good}}}")).send();
            assert!([201, 409].contains(&answer.status), "{field} {good}: {}", answer.text());
        }
    }
}

#[test]
fn query_parameters_must_be_known_single_and_in_range() {
    let server = Server::start();
    let wrong = "0 -1 1.5 %2B1 +1 1e3 31622400001 9223372036854775808 99999999999999999999999 \
                 1&ttl_ms=1 1&%74tl_ms=1";
    let wrong = wrong.split_whitespace().map(|value| (format!("ttl_ms={value}"), "ttl_ms"));
    let others = [
        ("ttl_ms=", "ttl_ms"),
        ("ttl_ms", "ttl_ms"),
        ("ttl=5", "`ttl`"),
        ("ttl_ms=5&x=1", "`x`"),
        ("&", "unknown"),
        ("%zz=1", "percent-encoding"),
        ("ttl_ms=%zz", "percent-encoding"),
        ("TTL_MS=5", "`TTL_MS`"),
    ];
    for (query, named) in wrong.chain(others.map(|(query, named)| (query.to_owned(), named))) {
        for method in ["PUT", "PATCH"] {
            let ask = server.ask(method, &format!("/v1/records/k?{query}")).body(b"{}");
            refused(ask, named);
        }
    }
    to_all(&server, "k?x=1").for_each(|ask| refused(ask, "`x`"));
    nothing_is_stored(&server);
}

#[test]
fn bodies_are_objects_of_known_fields() {
    let server = Server::start();
    for (method, path, rest) in [
        ("POST", "/v1/locks/k", ""),
        ("PUT", "/v1/locks/k", r#""token":"t","#),
        ("POST", "/v1/commands/op/k", ""),
        ("PUT", "/v1/commands/op/k", r#""token":"t","status":200,"#),
        ("PUT", "/v1/operator/commands/op/k", r#""status":200,"#),
        ("POST", "/v1/operator/sweep", ""),
    ] {
        let send = |body: &[u8], named: &str| refused(server.ask(method, path).body(body), named);
        let deep = "[".repeat(200) + "1" + &"]".repeat(200);
        for (more, named) in [
            ("\"surprise\":1}", "`surprise`"),
            ("\"a\":1,\"a\":1}", "\"a\""),
            ("\"x\":1} trailing", "not JSON"),
            (&*format!("\"x\":{deep}}}"), "nested"),
        ] {
            send(format!("{{{rest}{more}").as_bytes(), named);
        }
        for whole in ["[]", "1", "\"{}\"", "null"] {
            send(whole.as_bytes(), "object");
        }
        for broken in
            ["{", "}", "{,}", "{'a':1}", "{a:1}", "{\"a\":}", "// x", "\u{feff}{}", "{}{}"]
        {
            send(broken.as_bytes(), "not JSON");
        }
        send(b"{\"\xff\":1}", "UTF-8");
    }
    nothing_is_stored(&server);
}

#[test]
fn records_take_strict_json_only() {
    let server = Server::start();
    let deep = "[".repeat(500) + &"]".repeat(500);
    for method in ["PUT", "PATCH"] {
        let ask = || server.ask(method, "/v1/records/k");
        for (body, named) in [
            ("", "not JSON"),
            (" ", "not JSON"),
            ("{", "not JSON"),
            ("NaN", "not JSON"),
            ("{} {}", "not JSON"),
            ("[1,]", "not JSON"),
            ("{\"a\":1,\"a\":2}", "\"a\""),
            ("[{\"a\":{\"b\":1,\"b\":2}}]", "repeated"),
            ("{\"a\":1,\"\\u0061\":2}", "repeated"),
            ("\"\\ud800\"", "Unicode"),
            ("{\"$serde_json::private::Number\":\"1\"}", "reserved"),
            (&*"[".repeat(100_000), "not JSON"),
            (&*deep, "nested"),
        ] {
            refused(ask().body(body.as_bytes()), named);
        }
        refused(ask(), "not JSON");
    }
    nothing_is_stored(&server);
}

#[test]
fn command_tokens_fingerprints_and_policies_are_checked() {
    let server = Server::start();
    let long = "x".repeat(256);
    for (path, rest) in [("/v1/locks/k", ""), ("/v1/commands/op/k", ",\"status\":200")] {
        for token in
            ["\"\"", &format!("\"{long}\""), "1", "null", "[\"t\"]", "\"a\\u0000\"", "\"\\n\""]
        {
            let body = format!("{{\"token\":{token}{rest}}}");
            refused(server.put(path).body(body.as_bytes()), "token");
        }
        let without = format!("{{{}}}", rest.trim_start_matches(','));
        refused(server.put(path).body(without.as_bytes()), "`token` is missing");
        refused(server.put(path), "`token` is missing");
        refused(server.delete(path), "Hapax-Token");
        for token in ["", &long, "caf\u{e9}"] {
            refused(server.delete(path).header("Hapax-Token", token), "Hapax-Token");
        }
        let twice = server.delete(path).header("Hapax-Token", "a").header("hapax-token", "a");
        refused(twice, "hapax-token");
    }
    for (body, named) in [
        (&*format!("{{\"fingerprint\":\"{long}\"}}"), "fingerprint"),
        ("{\"fingerprint\":1}", "fingerprint"),
        ("{\"fingerprint\":\"\\u0000\"}", "fingerprint"),
        ("{\"on_unknown\":\"maybe\"}", "on_unknown"),
        ("{\"on_unknown\":\"Rerun\"}", "on_unknown"),
        ("{\"on_unknown\":true}", "on_unknown"),
    ] {
        refused(server.post("/v1/commands/op/k").body(body.as_bytes()), named);
    }
    nothing_is_stored(&server);
    let longest = json!({"fingerprint": "x".repeat(255)});
    assert_eq!(server.post("/v1/commands/op/k").json(longest).status(), 201);
}

#[test]
fn command_completion_with_bad_response_changes_nothing() {
    let server = Server::start();
    let path = "/v1/commands/op/pending";
    let token = server.post(path).send().token();
    let many = format!("{{\"x\":[{}]}}", vec!["\"\""; 257].join(","));
    for (rest, named) in [
        ("", "`status` is missing"),
        ("\"status\":99", "status"),
        ("\"status\":600", "status"),
        ("\"status\":\"200\"", "status"),
        ("\"status\":200,\"body\":{}", "body"),
        ("\"status\":200,\"body\":null", "body"),
        ("\"status\":200,\"body\":\"a\",\"body_base64\":\"YQ==\"", "body_base64"),
        ("\"status\":200,\"body_base64\":\"YQ\"", "body_base64"),
        ("\"status\":200,\"body_base64\":\"*\"", "body_base64"),
        ("\"status\":200,\"headers\":[]", "headers"),
        ("\"status\":200,\"headers\":{\"a\":1}", "headers"),
        ("\"status\":200,\"headers\":{\"a\":[1]}", "headers"),
        ("\"status\":200,\"headers\":{\"a b\":\"\"}", "headers"),
        ("\"status\":200,\"headers\":{\"\":\"\"}", "headers"),
        ("\"status\":200,\"headers\":{\"a\":\"b\\r\\nc: d\"}", "headers"),
        ("\"status\":200,\"headers\":{\"a\":\"1\",\"A\":\"2\"}", "headers"),
        ("\"status\":200,\"headers\":{\"a\":\"1\",\"a\":\"2\"}", "repeated"),
        (&*format!("\"status\":200,\"headers\":{many}"), "256"),
    ] {
        let comma = if rest.is_empty() { "" } else { "," };
        refused(server.put(path).json(format!("{{\"token\":\"{token}\"{comma}{rest}}}")), named);
    }
    assert_eq!(server.get(path).send().json()["state"], "pending");
}

#[test]
fn body_must_be_json() {
    let server = Server::start();
    let wrong = "text/plain application/x-www-form-urlencoded application/jsonx application \
                 text/json multipart/form-data application/xml";
    let wrong: Vec<_> =
        wrong.split_whitespace().chain(["", "application/json; charset=latin1"]).collect();
    for (method, path, body) in ENDPOINTS.into_iter().filter(|(_, _, body)| !body.is_empty()) {
        let ask = || server.ask(method, &format!("{path}k")).body(body.as_bytes());
        for kind in &wrong {
            ask().header("Content-Type", kind).is(415, "unsupported-media-type");
        }
        let merge = ask().header("Content-Type", "application/merge-patch+json").status();
        assert_eq!(merge == 415, method != "PATCH", "{method} {path}");
        ask().header("Content-Encoding", "gzip").is(415, "unsupported-media-type");
        let twice = ask().json("{}").header("Content-Type", "application/json");
        twice.is(400, "invalid-request");
    }
    assert_eq!(server.get("/v1/locks/k").send().json()["held"], false);
    server.get("/v1/records/k").is(404, "record-missing");
    for right in [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/json;charset=\"UTF-8\"",
    ] {
        let ask = server.put("/v1/records/k").header("Content-Type", right).body(b"1");
        assert!(ask.status() < 300, "{right}");
    }
}

#[test]
fn bodies_over_the_limit_are_refused() {
    let server = Server::start();
    let limit = 1 << 20;
    let text = |length: usize| format!("\"{}\"", "x".repeat(length - 2));
    assert_eq!(server.put("/v1/records/most").json(text(limit)).status(), 201);
    assert_eq!(server.get("/v1/records/most").send().body.len(), limit);
    for length in [limit + 1, 3 * limit] {
        for (method, path) in [
            ("PUT", "/v1/records/k"),
            ("PATCH", "/v1/records/k"),
            ("POST", "/v1/locks/k"),
            ("POST", "/v1/commands/op/k"),
            ("PUT", "/v1/commands/op/k"),
        ] {
            server.ask(method, path).json(text(length)).is(413, "payload-too-large");
        }
    }
    server.get("/v1/records/k").is(404, "record-missing");
    assert_eq!(server.get("/v1/locks/k").send().json()["held"], false);
}

#[test]
fn unknown_paths_and_methods_are_problems_too() {
    let server = Server::start();
    let unknown = "/v1 /v1/ /v1/nothing /v1/locks /v1/locks/a/b /v1/locks/a/ /v1/commands/a \
                   /v1/commands/a/b/c /v1/inbox/c /v1/queues/q/alive \
                   /v1/queues/q/dead/i/x /v1/operator /v1/operator/records /v1/operator/commands/a \
                   /v2/locks/k /nothing /v1/LOCKS/k //v1/locks/k";
    for path in unknown.split_whitespace() {
        for method in ["GET", "POST"] {
            server.ask(method, path).is(404, "not-found");
        }
    }
    for (method, path, allowed) in [
        ("PATCH", "/v1/locks/k", vec!["DELETE", "GET", "HEAD", "POST", "PUT"]),
        ("OPTIONS", "/v1/locks/k", vec!["DELETE", "GET", "HEAD", "POST", "PUT"]),
        ("POST", "/v1/records/k", vec!["DELETE", "GET", "HEAD", "PATCH", "PUT"]),
        ("BREW", "/v1/commands/o/k", vec!["DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"]),
        ("GET", "/v1/inbox/c/m", vec!["DELETE", "PATCH", "POST", "PUT"]),
        ("POST", "/v1/queues", vec!["GET", "HEAD"]),
        ("POST", "/v1/queues/q", vec!["GET", "HEAD"]),
        ("POST", "/v1/operator/locks", vec!["GET", "HEAD"]),
        ("GET", "/v1/queues/q/dead/i", vec!["DELETE"]),
        ("POST", "/v1/operator/commands", vec!["GET", "HEAD"]),
        ("POST", "/v1/operator/commands/o/k", vec!["DELETE", "GET", "HEAD", "PUT"]),
        ("GET", "/v1/operator/sweep", vec!["POST"]),
        ("POST", "/healthz", vec!["GET", "HEAD"]),
        ("DELETE", "/metrics", vec!["GET", "HEAD"]),
    ] {
        let answer = server.ask(method, path).json("{}").is(405, "method-not-allowed");
        let mut allow: Vec<_> = answer.header("allow").unwrap().split(',').map(str::trim).collect();
        allow.sort_unstable();
        assert_eq!(allow, allowed, "{method} {path}");
    }
}
