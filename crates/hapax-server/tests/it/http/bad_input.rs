//! Every endpoint × every malformed request: refused with the name of the field, and nothing is stored.

use crate::support::http::{HttpRequest, HttpResponse};
use crate::support::server::Server;

/// A request, and the word that the problem detail must contain.
type Case = (&'static str, String, Vec<(&'static str, String)>, Option<Vec<u8>>, &'static str);

fn send(server: &Server, case: &Case) -> HttpResponse {
    let (method, path, headers, body, _) = case;
    let ask = server.ask(method, path);
    let ask = headers.iter().fold(ask, |ask, (name, value)| ask.header(name, value));
    body.iter().fold(ask, |ask, body| HttpRequest::body(ask, body)).send()
}

fn all_refused(server: &Server, cases: &[Case]) {
    for case in cases {
        let answer = send(server, case);
        let shown = format!(
            "{} {} {:?} {:?}",
            case.0,
            case.1,
            case.2,
            case.3
                .as_deref()
                .map(|body| String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned())
        );
        assert_eq!(answer.status, 400, "{shown}: {}", answer.text());
        answer.is(400, "invalid-request");
        assert_eq!(answer.json()["retryable"], false);
        assert!(
            answer.detail().contains(case.4),
            "{shown}: `{}` is not in {}",
            case.4,
            answer.text()
        );
    }
    assert_eq!(server.get("/v1/locks/k").send().json()["held"], false);
    server.get("/v1/records/k").send().is(404, "record-missing");
    server.get("/v1/commands/op/k").send().is(404, "command-missing");
}

const ENDPOINTS: [(&str, &str); 18] = [
    ("POST", "/v1/locks/"),
    ("PUT", "/v1/locks/"),
    ("DELETE", "/v1/locks/"),
    ("GET", "/v1/locks/"),
    ("GET", "/v1/records/"),
    ("PUT", "/v1/records/"),
    ("PATCH", "/v1/records/"),
    ("DELETE", "/v1/records/"),
    ("POST", "/v1/commands/op/"),
    ("PUT", "/v1/commands/op/"),
    ("DELETE", "/v1/commands/op/"),
    ("GET", "/v1/commands/op/"),
    ("POST", "/v1/inbox/op/"),
    ("PUT", "/v1/inbox/op/"),
    ("DELETE", "/v1/inbox/op/"),
    ("GET", "/v1/operator/commands/op/"),
    ("PUT", "/v1/operator/commands/op/"),
    ("DELETE", "/v1/operator/commands/op/"),
];

/// The body that makes a request valid apart from its key.
fn good_body(method: &str, path: &str) -> Option<Vec<u8>> {
    match (method, path.contains("locks"), path.contains("records")) {
        ("PUT", true, _) => Some(br#"{"token":"t"}"#.to_vec()),
        ("PUT" | "PATCH", _, true) => Some(b"{}".to_vec()),
        ("PUT", _, _) if path.contains("inbox") => Some(br#"{"token":"t"}"#.to_vec()),
        ("PUT", _, _) if path.contains("operator") => Some(br#"{"status":200}"#.to_vec()),
        ("PUT", _, _) => Some(br#"{"token":"t","status":200}"#.to_vec()),
        ("POST", ..) => Some(b"{}".to_vec()),
        _ => None,
    }
}

fn good_headers(method: &str, path: &str) -> Vec<(&'static str, String)> {
    match method {
        "DELETE" if !path.contains("records") && !path.contains("operator") => {
            vec![("Hapax-Token", "t".into())]
        }
        _ => vec![],
    }
}

#[test]
fn keys_are_1_to_255_bytes_of_printable_ascii() {
    let server = Server::start();
    let wrong = [
        "".into(),
        "x".repeat(256),
        "%41".repeat(256),
        "a%20b".into(),
        "a%00".into(),
        "%0A".into(),
        "%7F".into(),
        "caf%C3%A9".into(),
        "%FF".into(),
        "%".into(),
        "%4".into(),
        "%zz".into(),
        "a%G0".into(),
        "caf\u{e9}".into(),
        "%E0%A4%A".into(),
    ];
    let mut cases: Vec<Case> = Vec::new();
    for (method, path) in ENDPOINTS {
        for key in &wrong {
            let named = match key.as_str() {
                "" => "key is empty; it takes 1 to 255",
                "%" | "%4" | "%zz" | "a%G0" | "%E0%A4%A" => "percent-encoding",
                key if key.len() >= 256 => "256 bytes; it takes 1 to 255",
                _ => "printable ASCII (0x21 to 0x7E)",
            };
            let headers = good_headers(method, path);
            cases.push((method, format!("{path}{key}"), headers, good_body(method, path), named));
        }
    }
    for (operation, named) in [
        ("", "operation"),
        (&*"o".repeat(256), "operation"),
        ("%0A", "operation"),
        ("%C3%A9", "operation"),
        ("%q", "path"),
    ] {
        cases.push(("POST", format!("/v1/commands/{operation}/k"), vec![], None, named));
    }
    all_refused(&server, &cases);
    assert_eq!(server.post(&format!("/v1/locks/{}", "x".repeat(255))).status(), 201);
    assert_eq!(server.post(&format!("/v1/locks/{}", "%7E".repeat(255))).status(), 201);
}

/// Fields of each body: (method, path, everything else that is needed, field, good values, wrong values).
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
    let mut cases: Vec<Case> = Vec::new();
    for (method, path, rest, field, least, most) in numbers() {
        let above = (most + 1).to_string();
        let below = least.checked_sub(1).map_or("-1".to_owned(), |n| n.to_string());
        for wrong in [
            &*above,
            &*below,
            "-1",
            "1.5",
            "1.0",
            "1e3",
            "9223372036854775808",
            "18446744073709551616",
            "1e400",
            "-0",
            "\"5000\"",
            "null",
            "true",
            "[]",
            "{}",
            "[5000]",
        ] {
            let body = format!("{{{rest}\"{field}\":{wrong}}}");
            cases.push((method, path.into(), vec![], Some(body.into()), field));
        }
        for broken in ["NaN", "Infinity", "05", "+5", "0x10", "5.", ".5", "1_000", ""] {
            let body = format!("{{{rest}\"{field}\":{broken}}}");
            cases.push((method, path.into(), vec![], Some(body.into()), "not JSON"));
        }
        let twice = format!("{{{rest}\"{field}\":{least},\"{field}\":{least}}}");
        cases.push((method, path.into(), vec![], Some(twice.into()), field));
    }
    all_refused(&server, &cases);
    // The detail says what would do.
    let answer = server.post("/v1/locks/k").json("{\"ttl_ms\":0}").send();
    assert!(answer.detail().contains("1 to 3600000"), "{}", answer.text());
}

#[test]
fn limits_themselves_are_accepted() {
    let server = Server::start();
    for (i, (method, path, rest, field, least, most)) in numbers().into_iter().enumerate() {
        for (j, good) in [least, most].into_iter().enumerate() {
            let path = format!("{path}{i}{j}");
            let answer =
                server.ask(method, &path).json(&format!("{{{rest}\"{field}\":{good}}}")).send();
            assert!([201, 409].contains(&answer.status), "{field} {good}: {}", answer.text());
        }
    }
}

#[test]
fn query_parameters_must_be_known_single_and_in_range() {
    let server = Server::start();
    let mut cases: Vec<Case> = Vec::new();
    for method in ["PUT", "PATCH"] {
        for (query, named) in [
            ("ttl_ms=0", "ttl_ms"),
            ("ttl_ms=-1", "ttl_ms"),
            ("ttl_ms=", "ttl_ms"),
            ("ttl_ms", "ttl_ms"),
            ("ttl_ms=1.5", "ttl_ms"),
            ("ttl_ms=%2B1", "ttl_ms"),
            ("ttl_ms=+1", "ttl_ms"),
            ("ttl_ms=1e3", "ttl_ms"),
            ("ttl_ms=31622400001", "ttl_ms"),
            ("ttl_ms=9223372036854775808", "ttl_ms"),
            ("ttl_ms=99999999999999999999999", "ttl_ms"),
            ("ttl_ms=1&ttl_ms=1", "ttl_ms"),
            ("ttl_ms=1&%74tl_ms=1", "ttl_ms"),
            ("ttl=5", "`ttl`"),
            ("ttl_ms=5&x=1", "`x`"),
            ("&", "unknown"),
            ("%zz=1", "percent-encoding"),
            ("ttl_ms=%zz", "percent-encoding"),
            ("TTL_MS=5", "`TTL_MS`"),
        ] {
            cases.push((
                method,
                format!("/v1/records/k?{query}"),
                vec![],
                Some(b"{}".to_vec()),
                named,
            ));
        }
    }
    for (method, path) in ENDPOINTS {
        let path = format!("{path}k?x=1");
        cases.push((
            method,
            path.clone(),
            good_headers(method, &path),
            good_body(method, &path),
            "`x`",
        ));
    }
    all_refused(&server, &cases);
}

#[test]
fn bodies_are_objects_of_known_fields() {
    let server = Server::start();
    let mut cases: Vec<Case> = Vec::new();
    for (method, path, rest) in [
        ("POST", "/v1/locks/k", ""),
        ("PUT", "/v1/locks/k", r#""token":"t","#),
        ("POST", "/v1/commands/op/k", ""),
        ("PUT", "/v1/commands/op/k", r#""token":"t","status":200,"#),
        ("PUT", "/v1/operator/commands/op/k", r#""status":200,"#),
        ("POST", "/v1/operator/sweep", ""),
    ] {
        let with =
            |body: String, named| (method, path.to_owned(), vec![], Some(body.into_bytes()), named);
        cases.push(with(format!("{{{rest}\"surprise\":1}}"), "`surprise`"));
        cases.push(with(format!("{{{rest}\"a\":1,\"a\":1}}"), "\"a\""));
        cases.push(with(format!("{{{rest}\"x\":1}} trailing"), "not JSON"));
        cases.push(with(
            format!("{{{rest}\"x\":{}1{}}}", "[".repeat(200), "]".repeat(200)),
            "nested",
        ));
        for whole in ["[]", "1", "\"{}\"", "null"] {
            cases.push(with(whole.into(), "object"));
        }
        for broken in
            ["{", "}", "{,}", "{'a':1}", "{a:1}", "{\"a\":}", "// x", "\u{feff}{}", "{}{}"]
        {
            cases.push(with(broken.into(), "not JSON"));
        }
        cases.push((method, path.into(), vec![], Some(b"{\"\xff\":1}".to_vec()), "UTF-8"));
    }
    all_refused(&server, &cases);
}

#[test]
fn records_take_strict_json_only() {
    let server = Server::start();
    let mut cases: Vec<Case> = Vec::new();
    for method in ["PUT", "PATCH"] {
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
        ] {
            cases.push((method, "/v1/records/k".into(), vec![], Some(body.into()), named));
        }
        cases.push((
            method,
            "/v1/records/k".into(),
            vec![],
            Some("[".repeat(100_000).into()),
            "not JSON",
        ));
        let deep = "[".repeat(500) + &"]".repeat(500);
        cases.push((method, "/v1/records/k".into(), vec![], Some(deep.into()), "nested"));
        cases.push((method, "/v1/records/k".into(), vec![], None, "not JSON"));
    }
    all_refused(&server, &cases);
}

#[test]
fn command_tokens_fingerprints_and_policies_are_checked() {
    let server = Server::start();
    let long = "x".repeat(256);
    let mut cases: Vec<Case> = Vec::new();
    for (path, rest) in [("/v1/locks/k", ""), ("/v1/commands/op/k", ",\"status\":200")] {
        let with = |token: &str| format!("{{\"token\":{token}{rest}}}").into_bytes();
        for token in
            ["\"\"", &format!("\"{long}\""), "1", "null", "[\"t\"]", "\"a\\u0000\"", "\"\\n\""]
        {
            cases.push(("PUT", path.into(), vec![], Some(with(token)), "token"));
        }
        let without = format!("{{{}}}", rest.trim_start_matches(','));
        cases.push(("PUT", path.into(), vec![], Some(without.into()), "`token` is missing"));
        cases.push(("PUT", path.into(), vec![], None, "`token` is missing"));
        cases.push(("DELETE", path.into(), vec![], None, "Hapax-Token"));
        for token in ["", &long, "caf\u{e9}"] {
            cases.push((
                "DELETE",
                path.into(),
                vec![("Hapax-Token", token.into())],
                None,
                "Hapax-Token",
            ));
        }
        let twice = vec![("Hapax-Token", "a".to_owned()), ("hapax-token", "a".to_owned())];
        cases.push(("DELETE", path.into(), twice, None, "hapax-token"));
    }
    for (body, named) in [
        (format!("{{\"fingerprint\":\"{long}\"}}"), "fingerprint"),
        ("{\"fingerprint\":1}".into(), "fingerprint"),
        ("{\"fingerprint\":\"\\u0000\"}".into(), "fingerprint"),
        ("{\"on_unknown\":\"maybe\"}".into(), "on_unknown"),
        ("{\"on_unknown\":\"Rerun\"}".into(), "on_unknown"),
        ("{\"on_unknown\":true}".into(), "on_unknown"),
    ] {
        cases.push(("POST", "/v1/commands/op/k".into(), vec![], Some(body.into()), named));
    }
    all_refused(&server, &cases);
    let longest = format!("{{\"fingerprint\":\"{}\"}}", "x".repeat(255));
    assert_eq!(server.post("/v1/commands/op/k").json(&longest).status(), 201);
}

#[test]
fn command_completion_with_bad_response_changes_nothing() {
    let server = Server::start();
    let path = "/v1/commands/op/pending";
    let begun = server.post(path).send().json();
    let token = begun["token"].as_str().unwrap();
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
        let answer =
            server.put(path).json(&format!("{{\"token\":\"{token}\"{comma}{rest}}}")).send();
        answer.is(400, "invalid-request");
        assert!(answer.detail().contains(named), "{rest}: {}", answer.text());
    }
    assert_eq!(server.get(path).send().json()["state"], "pending");
}

#[test]
fn body_must_be_json() {
    let server = Server::start();
    for (method, path) in
        ENDPOINTS.into_iter().filter(|(method, _)| matches!(*method, "POST" | "PUT" | "PATCH"))
    {
        let path = format!("{path}k");
        let body = good_body(method, &path).unwrap();
        for wrong in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/jsonx",
            "application",
            "",
            "application/json; charset=latin1",
            "text/json",
            "multipart/form-data",
            "application/xml",
        ] {
            let answer = server.ask(method, &path).header("Content-Type", wrong).body(&body).send();
            answer.is(415, "unsupported-media-type");
        }
        let merge = server
            .ask(method, &path)
            .header("Content-Type", "application/merge-patch+json")
            .body(&body)
            .status();
        assert_eq!(merge == 415, method != "PATCH", "{method} {path}");
        let zipped =
            server.ask(method, &path).header("Content-Encoding", "gzip").body(&body).send();
        zipped.is(415, "unsupported-media-type");
        let twice =
            server.ask(method, &path).json("{}").header("Content-Type", "application/json").send();
        twice.is(400, "invalid-request");
    }
    assert_eq!(server.get("/v1/locks/k").send().json()["held"], false);
    server.get("/v1/records/k").send().is(404, "record-missing");
    for right in [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/json;charset=\"UTF-8\"",
    ] {
        assert!(
            server.put("/v1/records/k").header("Content-Type", right).body(b"1").status() < 300,
            "{right}"
        );
    }
}

#[test]
fn bodies_over_the_limit_are_refused() {
    let server = Server::start();
    let limit = 1 << 20;
    let text = |length: usize| format!("\"{}\"", "x".repeat(length - 2));
    assert_eq!(server.put("/v1/records/most").json(&text(limit)).status(), 201);
    assert_eq!(server.get("/v1/records/most").send().body.len(), limit);
    for length in [limit + 1, 3 * limit] {
        for (method, path) in [
            ("PUT", "/v1/records/k"),
            ("PATCH", "/v1/records/k"),
            ("POST", "/v1/locks/k"),
            ("POST", "/v1/commands/op/k"),
            ("PUT", "/v1/commands/op/k"),
        ] {
            server.ask(method, path).json(&text(length)).send().is(413, "payload-too-large");
        }
    }
    server.get("/v1/records/k").send().is(404, "record-missing");
    assert_eq!(server.get("/v1/locks/k").send().json()["held"], false);
}

#[test]
fn unknown_paths_and_methods_are_problems_too() {
    let server = Server::start();
    for path in [
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v1/locks",
        "/v1/locks/a/b",
        "/v1/locks/a/",
        "/v1/commands/a",
        "/v1/commands/a/b/c",
        "/v1/inbox/c",
        "/v1/queues",
        "/v1/queues/q/alive",
        "/v1/queues/q/dead/i/x",
        "/v1/operator",
        "/v1/operator/locks",
        "/v1/operator/commands/a",
        "/v2/locks/k",
        "/nothing",
        "/v1/LOCKS/k",
        "//v1/locks/k",
    ] {
        for method in ["GET", "POST"] {
            server.ask(method, path).send().is(404, "not-found");
        }
    }
    for (method, path, allowed) in [
        ("PATCH", "/v1/locks/k", vec!["DELETE", "GET", "HEAD", "POST", "PUT"]),
        ("OPTIONS", "/v1/locks/k", vec!["DELETE", "GET", "HEAD", "POST", "PUT"]),
        ("POST", "/v1/records/k", vec!["DELETE", "GET", "HEAD", "PATCH", "PUT"]),
        ("BREW", "/v1/commands/o/k", vec!["DELETE", "GET", "HEAD", "POST", "PUT"]),
        ("GET", "/v1/inbox/c/m", vec!["DELETE", "POST", "PUT"]),
        ("POST", "/v1/queues/q", vec!["GET", "HEAD"]),
        ("GET", "/v1/queues/q/dead/i", vec!["DELETE"]),
        ("POST", "/v1/operator/commands", vec!["GET", "HEAD"]),
        ("POST", "/v1/operator/commands/o/k", vec!["DELETE", "GET", "HEAD", "PUT"]),
        ("GET", "/v1/operator/sweep", vec!["POST"]),
        ("POST", "/healthz", vec!["GET", "HEAD"]),
        ("DELETE", "/metrics", vec!["GET", "HEAD"]),
    ] {
        let answer = server.ask(method, path).json("{}").send();
        answer.is(405, "method-not-allowed");
        let mut allow: Vec<_> = answer.header("allow").unwrap().split(',').map(str::trim).collect();
        allow.sort_unstable();
        assert_eq!(allow, allowed, "{method} {path}");
    }
}
