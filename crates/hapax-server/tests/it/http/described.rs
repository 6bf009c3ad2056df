//! The OpenAPI document and the pages.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use serde_json::Value;

use crate::support::has;
use crate::support::http::HttpResponse;
use crate::support::server::Server;

const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

fn description(server: &Server) -> Value {
    let answer = server.get("/openapi.json").send();
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    answer.json()
}

#[test]
fn openapi_describes_exactly_the_existing_routes() {
    let server = Server::start();
    let api = description(&server);
    assert!(api["openapi"].as_str().unwrap().starts_with("3.1"));
    let mut described = BTreeMap::new();
    for (path, item) in api["paths"].as_object().unwrap() {
        let known: BTreeSet<_> =
            METHODS.into_iter().filter(|method| item.get(*method).is_some()).collect();
        // The `Allow` header lists the methods that exist.
        let answer = server.ask("BREW", &path.replace(['{', '}'], "")).send();
        let allow = answer.header("allow").unwrap().to_lowercase();
        let allow: BTreeSet<_> = allow.split(',').map(str::trim).filter(|m| *m != "head").collect();
        assert_eq!(allow, known, "{path}");
        described.insert(path.as_str(), known);
    }
    let contract = [
        ("/v1/locks/{key}", "post put delete get"),
        ("/v1/records/{key}", "get put patch delete"),
        ("/v1/commands/{operation}/{key}", "post patch put delete get"),
        ("/v1/inbox/{consumer}/{message_id}", "post patch put delete"),
        ("/v1/queues", "get"),
        ("/v1/queues/{queue}", "get"),
        ("/v1/queues/{queue}/dead", "get"),
        ("/v1/queues/{queue}/dead/reasons", "get"),
        ("/v1/queues/{queue}/dead/requeue", "post"),
        ("/v1/queues/{queue}/dead/discard", "post"),
        ("/v1/queues/{queue}/pause", "post"),
        ("/v1/queues/{queue}/resume", "post"),
        ("/v1/queues/{queue}/dead/{id}", "delete"),
        ("/v1/queues/{queue}/dead/{id}/requeue", "post"),
        ("/v1/events", "post"),
        ("/v1/events/stream", "get"),
        ("/v1/jobs/{domain}/{job_id}", "get"),
        ("/v1/jobs/{domain}/{job_id}/events", "get"),
        ("/v1/session", "get post delete"),
        ("/v1/operator/overview", "get"),
        ("/v1/operator/activity", "get"),
        ("/v1/operator/suppressed", "get"),
        ("/v1/operator/conflicts", "get"),
        ("/v1/operator/keys/{kind}/{scope}/{key}", "get"),
        ("/v1/operator/queues", "get"),
        ("/v1/operator/jobs", "get"),
        ("/v1/operator/jobs/{domain}/{job_id}", "get"),
        ("/v1/operator/jobs/{domain}/{job_id}/events", "get"),
        ("/v1/operator/jobs/{domain}/{job_id}/link", "post"),
        ("/v1/operator/streams", "get"),
        ("/v1/operator/line", "get"),
        ("/v1/operator/audit", "get"),
        ("/v1/operator/commands/decide", "post"),
        ("/v1/operator/queues/{queue}/waiting", "get"),
        ("/v1/operator/tasks", "get"),
        ("/v1/operator/tasks/{id}", "get delete"),
        ("/v1/operator/tenants", "get"),
        ("/v1/operator/commands", "get"),
        ("/v1/operator/locks", "get"),
        ("/v1/operator/locks/{key}", "delete"),
        ("/v1/operator/commands/{operation}/{key}", "get put delete"),
        ("/v1/operator/sweep", "post"),
        ("/healthz", "get"),
        ("/readyz", "get"),
        ("/metrics", "get"),
    ];
    let contract = contract.map(|(path, methods)| (path, methods.split(' ').collect()));
    assert_eq!(described, contract.into());
}

#[test]
fn openapi_references_resolve() {
    let server = Server::start();
    let api = description(&server);
    every_reference(&api, &mut |reference| {
        let pointer = reference.strip_prefix('#').expect("nothing from elsewhere");
        assert!(api.pointer(pointer).is_some(), "{reference}");
    });
    let mut ids = BTreeSet::new();
    for (path, item) in api["paths"].as_object().unwrap() {
        for operation in METHODS.iter().filter_map(|method| item.get(*method)) {
            let is_new = ids.insert(operation["operationId"].to_string());
            assert!(is_new || !path.starts_with("/v1"), "{path}");
            let named: BTreeSet<_> = path.split(['{', '}']).skip(1).step_by(2).collect();
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let in_path = parameters.filter(|parameter| parameter["in"] == "path");
            let given: BTreeSet<_> = in_path.map(|p| p["name"].as_str().unwrap()).collect();
            assert_eq!(named, given, "{path}");
            if path.starts_with("/v1") {
                for status in ["400", "401", "403", "413", "415", "429", "500", "503"] {
                    let problem =
                        &operation["responses"][status]["content"]["application/problem+json"];
                    assert!(problem.is_object(), "{path} {status}");
                }
            }
        }
    }
}

fn every_reference(value: &Value, see: &mut impl FnMut(&str)) {
    match value {
        Value::Object(members) => members.iter().for_each(|(name, value)| match value {
            Value::String(text) if name == "$ref" => see(text),
            value => every_reference(value, see),
        }),
        Value::Array(items) => items.iter().for_each(|item| every_reference(item, see)),
        _ => {}
    }
}

/// A value that the schema of a field allows.
fn sample(field: &Value) -> String {
    if let Some(least) = field.get("minimum") {
        return least.to_string();
    }
    match field["enum"].as_array().and_then(|values| values.first()) {
        Some(value) => value.to_string(),
        None if field["type"] == "object" => "{}".into(),
        None => "\"a\"".into(),
    }
}

#[test]
fn openapi_fields_are_accepted_one_by_one() {
    let server = Server::start();
    let api = description(&server);
    let resolved = |field: &Value| match field["$ref"].as_str() {
        Some(reference) => api.pointer(&reference[1..]).unwrap().clone(),
        None => field["allOf"][0]["$ref"]
            .as_str()
            .map_or(field.clone(), |r| api.pointer(&r[1..]).unwrap().clone()),
    };
    let needed = |schema: &Value, but: &str| -> String {
        let names = schema["required"].as_array().into_iter().flatten();
        let names = names.map(|name| name.as_str().unwrap()).filter(|name| *name != but);
        let field = |name| format!("\"{name}\":{},", sample(&schema["properties"][name]));
        names.map(field).collect()
    };
    for (name, method, path) in [
        ("TakeLock", "POST", "/v1/locks/k"),
        ("RenewLock", "PUT", "/v1/locks/k"),
        ("BeginCommand", "POST", "/v1/commands/o/k"),
        ("CompleteCommand", "PUT", "/v1/commands/o/k"),
        ("RenewLease", "PATCH", "/v1/commands/o/k"),
        ("ReceiveMessage", "POST", "/v1/inbox/c/m"),
        ("SettleMessage", "PUT", "/v1/inbox/c/m"),
        ("RenewLease", "PATCH", "/v1/inbox/c/m"),
        ("SettleCommand", "PUT", "/v1/operator/commands/o/k"),
        ("Sweep", "POST", "/v1/operator/sweep"),
    ] {
        let schema = &api["components"]["schemas"][name];
        assert_eq!(schema["additionalProperties"], false, "{name}");
        for (i, (field, shape)) in schema["properties"].as_object().unwrap().iter().enumerate() {
            let value =
                if field == "body_base64" { "\"YQ==\"".into() } else { sample(&resolved(shape)) };
            let body = format!("{{{}\"{field}\":{value}}}", needed(schema, field));
            let (path, other) = match path.strip_suffix("sweep") {
                Some(_) => (path.to_owned(), path.to_owned()),
                None => (format!("{path}{i}"), format!("{path}{i}{i}")),
            };
            let answer = server.ask(method, &path).json(&body).send();
            assert_ne!(answer.status, 400, "{name}.{field}: {body}: {}", answer.text());
            let missing = format!("{{{}}}", needed(schema, field).trim_end_matches(','));
            let status = server.ask(method, &other).json(&missing).status();
            let required =
                schema["required"].as_array().is_some_and(|r| r.iter().any(|n| n == field));
            assert_eq!(status == 400, required, "{name} without {field}");
        }
    }
}

/// The text of a page, which is sent compressed if it says so.
fn unpacked(page: &HttpResponse) -> String {
    let Some(encoding) = page.header("content-encoding") else { return page.text() };
    assert_eq!(encoding, "gzip");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&page.body[..]).read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn pages_load_nothing_from_another_host() {
    let server = Server::start();
    for path in ["/", "/docs/"] {
        let page = server.get(path).send();
        assert_eq!(page.status, 200);
        assert!(page.header("content-type").unwrap().starts_with("text/html"));
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("http"), "{policy}");
        let text = unpacked(&page);
        let foreign = |part: &&str| part.starts_with("http") || part.starts_with("//");
        assert_eq!(text.split(['"', '\'']).find(foreign), None, "{path}");
        let loaded = |part: &&str| [".js", ".css", ".png"].iter().any(|end| part.ends_with(end));
        for file in text.split(['"', '\'']).filter(loaded) {
            let file = format!("{path}{}", file.trim_start_matches("./").trim_start_matches('/'));
            let file = server.get(&file).send();
            assert_eq!(file.status, 200);
            assert!(!unpacked(&file).is_empty());
        }
    }
    let configured = server.get("/docs/swagger-initializer.js").send().text();
    has(&configured, &["/openapi.json", "\"validatorUrl\": \"none\""]);
    assert_eq!(server.get("/docs").send().header("location"), Some("/docs/"));
    server.get("/docs/nothing.js").is(404, "not-found");
}

#[test]
fn console_files_have_policy_tag_and_type() {
    let server = Server::start();
    let page = server.get("/").send();
    has(&page.text(), &["<!doctype html>", "/console/main.js"]);
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/console/main.js", "text/javascript; charset=utf-8"),
        ("/console/pages/overview.js", "text/javascript; charset=utf-8"),
        ("/console/base.css", "text/css; charset=utf-8"),
        ("/console/icon.svg", "image/svg+xml"),
    ] {
        let file = server.get(path).send();
        assert_eq!((file.status, file.header("content-type")), (200, Some(kind)), "{path}");
        let policy = file.header("content-security-policy").unwrap();
        has(policy, &["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"]);
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(file.header("cache-control"), Some("no-cache"));
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"));
        let again = server.get(path).header("If-None-Match", &file.etag()).send();
        assert_eq!((again.status, again.body.len(), again.etag()), (304, 0, page.etag()));
        assert_eq!(server.get(path).header("If-None-Match", "\"older\"").status(), 200);
    }
    for path in ["/console/nothing.js", "/console/index.html", "/console/../Cargo.toml"] {
        server.get(path).is(404, "not-found");
    }
}
