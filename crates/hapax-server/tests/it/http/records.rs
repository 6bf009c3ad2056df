use crate::support::eventually;
use crate::support::http::HttpResponse;
use crate::support::server::Server;

const PATH: &str = "/v1/records/user:U1:last_transaction";

fn put(server: &Server, value: &str, headers: &[(&str, &str)]) -> HttpResponse {
    let ask = server.put(PATH).json(value);
    headers.iter().fold(ask, |ask, (name, value)| ask.header(name, value)).send()
}

#[test]
fn record_is_written_read_changed_and_deleted() {
    let server = Server::start();
    server.get(PATH).is(404, "record-missing");
    let text = r#"{"item":"lunch", "amount": 100.50, "big": 12345678901234567890123}"#;
    let created = put(&server, text, &[]);
    assert_eq!(created.status, 201);
    assert!(created.etag().starts_with('"') && created.etag().ends_with('"'));

    let read = server.get(PATH).send();
    assert_eq!((read.status, read.text().as_str()), (200, text), "as it was written");
    assert_eq!(read.header("content-type"), Some("application/json"));
    assert_eq!(read.etag(), created.etag());
    assert_eq!(read.header("hapax-expires-in-ms"), None);

    let changed = put(&server, "[1]", &[]);
    assert_eq!(changed.status, 200);
    assert_ne!(changed.etag(), created.etag());
    assert_eq!(server.delete(PATH).status(), 204);
    server.delete(PATH).is(404, "record-missing");
}

#[test]
fn record_is_any_json_value() {
    let server = Server::start();
    for value in
        ["null", "false", "0", "-1.5e300", "\"\"", "[]", "{}", r#""\u0000""#, r#"{"a":{"a":[]}}"#]
    {
        assert!(put(&server, value, &[]).status < 300, "{value}");
        assert_eq!(server.get(PATH).send().text(), value);
    }
}

#[test]
fn record_version_is_changed_by_one_of_two_writers() {
    let server = Server::start();
    let first = put(&server, "1", &[]).etag();
    assert_eq!(put(&server, "2", &[("If-Match", &first)]).status, 200);
    let late = put(&server, "3", &[("If-Match", &first)]);
    late.is(412, "version-mismatch");
    assert_eq!(late.json()["retryable"], false);
    assert_eq!(server.get(PATH).send().text(), "2");
}

#[test]
fn preconditions_mean_what_http_says() {
    let server = Server::start();
    // (method, precondition, stored?) → status. `V` stands for the version that is stored.
    let table = [
        ("PUT", "If-Match", "V", true, 200),
        ("PUT", "If-Match", "\"x\", V", true, 200),
        ("PUT", "If-Match", "*", true, 200),
        ("PUT", "If-Match", "\"x\"", true, 412),
        ("PUT", "If-Match", "W/V", true, 412),
        ("PUT", "If-Match", "*", false, 412),
        ("PUT", "If-Match", "\"x\"", false, 412),
        ("PUT", "If-None-Match", "*", true, 412),
        ("PUT", "If-None-Match", "*", false, 201),
        ("PUT", "If-None-Match", "\"x\"", false, 400),
        ("PUT", "If-Match", "x", true, 400),
        ("PUT", "If-Match", "", true, 400),
        ("PATCH", "If-Match", "V", true, 200),
        ("PATCH", "If-Match", "\"x\",V", true, 200),
        ("PATCH", "If-Match", "*", true, 200),
        ("PATCH", "If-Match", "\"x\"", true, 412),
        ("PATCH", "If-Match", "\"x\"", false, 412),
        ("PATCH", "If-Match", "*", false, 412),
        ("PATCH", "If-None-Match", "*", true, 400),
        ("DELETE", "If-Match", "V", true, 204),
        ("DELETE", "If-Match", "*", true, 204),
        ("DELETE", "If-Match", "\"x\"", true, 412),
        ("DELETE", "If-Match", "\"x\"", false, 412),
        ("DELETE", "If-Match", "*", false, 412),
        ("DELETE", "If-None-Match", "*", true, 400),
        ("GET", "If-None-Match", "V", true, 304),
        ("GET", "If-None-Match", "*", true, 304),
        ("GET", "If-None-Match", "\"x\"", true, 200),
        ("GET", "If-None-Match", "V", false, 404),
        ("GET", "If-Match", "V", true, 200),
        ("GET", "If-Match", "\"x\"", true, 412),
    ];
    for (method, header, value, stored, status) in table {
        server.delete(PATH).status();
        let version = if stored { put(&server, "{\"a\":1}", &[]).etag() } else { "\"v\"".into() };
        let ask = server.ask(method, PATH).header(header, &value.replace('V', &version));
        let ask = if matches!(method, "GET" | "DELETE") { ask } else { ask.json("{\"b\":2}") };
        let answer = ask.send();
        assert_eq!(answer.status, status, "{method} {header}: {value}, stored: {stored}");
        if status >= 400 {
            answer.problem();
            let now = server.get(PATH).send();
            let untouched = if stored { "{\"a\":1}" } else { "" };
            assert_eq!(if now.status == 200 { now.text() } else { String::new() }, untouched);
        }
    }
    let both = put(&server, "1", &[("If-Match", "*"), ("If-None-Match", "*")]);
    both.is(400, "invalid-request");
}

#[test]
fn record_ttl_is_kept_unless_a_new_one_is_given() {
    let server = Server::start();
    let expires = |answer: &HttpResponse| {
        answer.header("hapax-expires-in-ms").map(|ms| ms.parse::<u64>().unwrap())
    };
    let with = |ttl: &str| format!("{PATH}?ttl_ms={ttl}");
    let created = server.put(&with("60000")).json("{}").send();
    assert_eq!((created.status, expires(&created)), (201, Some(60_000)));
    for changed in [
        put(&server, "{}", &[]),
        server.get(PATH).send(),
        server.patch(PATH).json("{\"a\":1}").send(),
    ] {
        assert_eq!(changed.status, 200);
        assert!((1..=60_000).contains(&expires(&changed).unwrap()), "{changed:?}");
    }
    let longer = server.patch(&with("90000")).json("{}").send();
    assert_eq!(expires(&longer), Some(90_000));
    assert!(expires(&server.get(PATH).send()).unwrap() > 60_000);
    assert_eq!(server.delete(PATH).status(), 204);
    assert_eq!(expires(&put(&server, "1", &[])), None);
}

#[test]
fn expired_record_is_missing() {
    let server = Server::start();
    assert_eq!(server.put(&format!("{PATH}?ttl_ms=1")).json("1").status(), 201);
    eventually("it expires", || server.get(PATH).status() == 404);
}

#[test]
fn merge_patch_merges() {
    let server = Server::start();
    server.patch(PATH).json("{}").is(404, "record-missing");
    put(&server, r#"{"item":"lunch","amount":100,"note":{"a":1,"b":2}}"#, &[]);
    let patch = server.patch(PATH).header("Content-Type", "application/merge-patch+json");
    let merged = patch.body(br#"{"amount":120.0,"note":{"a":null},"tag":"x"}"#).send();
    assert_eq!(merged.status, 200);
    assert_eq!(merged.text(), r#"{"item":"lunch","amount":120.0,"note":{"b":2},"tag":"x"}"#);
    let read = server.get(PATH).send();
    assert_eq!((read.text(), read.etag()), (merged.text(), merged.etag()));
}

#[test]
fn concurrent_patches_without_version_all_apply() {
    let server = Server::start();
    put(&server, "{}", &[]);
    let sent: Vec<_> =
        (0..8).map(|i| server.patch(PATH).json(format!("{{\"m{i}\":{i}}}")).begin()).collect();
    for sent in sent {
        assert_eq!(sent.answer().status, 200);
    }
    assert_eq!(server.get(PATH).send().json().as_object().unwrap().len(), 8);
}

#[test]
fn patch_cannot_grow_record_past_the_limit() {
    let server = Server::start();
    server.put("/v1/records/r").json("{}").send();
    let half = |name: &str| format!("{{\"{name}\":\"{}\"}}", "x".repeat(600_000));
    assert_eq!(server.patch("/v1/records/r").json(half("a")).send().status, 200);
    server.patch("/v1/records/r").json(half("b")).is(413, "payload-too-large");
    assert!(server.get("/v1/records/r").send().text().len() < 700_000);
}
