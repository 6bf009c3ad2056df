//! Compares responses of `hapax serve` with its OpenAPI document.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::{LazyLock, Mutex};
use std::time::SystemTime;

use serde_json::{Value, json};

use super::http::{HttpRequest, HttpResponse};
use super::server::Server;

const PROBLEM: &str = "application/problem+json";

/// The document. Tests run in processes of their own, so that one of them fetches it for all tests of
/// this build; a request to the server under test would disturb what is counted there.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let built = fs::metadata(env!("CARGO_BIN_EXE_hapax")).and_then(|file| file.modified()).unwrap();
    let built = built.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("openapi-{built}.json"));
    if let Ok(text) = fs::read(&file) {
        return serde_json::from_slice(&text).unwrap();
    }
    let server = Server::start();
    let answer = HttpRequest::new(&server.address, "GET", "/openapi.json").send();
    let written = file.with_extension(std::process::id().to_string());
    fs::write(&written, &answer.body).unwrap();
    fs::rename(&written, &file).unwrap();
    answer.json()
});

/// Responses that were compared in this process: method, template of the path, and status.
static COMPARED: Mutex<BTreeSet<DescribedResponse>> = Mutex::new(BTreeSet::new());

pub(crate) type DescribedResponse = (String, String, u16);

/// The responses that were compared in this process.
pub(crate) fn compared() -> BTreeSet<DescribedResponse> {
    COMPARED.lock().unwrap().clone()
}

/// Every response of the document.
pub(crate) fn described() -> BTreeSet<DescribedResponse> {
    let paths = DOCUMENT["paths"].as_object().unwrap().iter();
    let operations = paths.flat_map(|(path, item)| {
        item.as_object().unwrap().iter().map(move |(method, operation)| (method, path, operation))
    });
    let responses = operations.flat_map(|(method, path, operation)| {
        let statuses = operation["responses"].as_object().unwrap().keys();
        statuses.map(move |status| (method.to_uppercase(), path.clone(), status.parse().unwrap()))
    });
    responses.collect()
}

/// Panics unless the response is as described.
#[track_caller]
pub(crate) fn check(method: &str, path: &str, response: &HttpResponse) {
    let wrong = find_fault(method, path, response, true);
    assert_eq!(wrong, None, "{method} {path}: {} {}", response.status, response.text());
}

/// Panics unless the head of a response, whose body is still to come, is as described.
#[track_caller]
pub(crate) fn check_head(method: &str, path: &str, response: &HttpResponse) {
    let wrong = find_fault(method, path, response, false);
    assert_eq!(wrong, None, "{method} {path}: {}", response.status);
}

/// Why a response is not as described. A path or method without an operation must be refused with
/// a problem document; pages are not described, and neither is a preflight request of CORS.
pub(crate) fn find_fault(
    method: &str,
    path: &str,
    response: &HttpResponse,
    has_body: bool,
) -> Option<String> {
    let kind = response.header("content-type").map(|kind| kind.split(';').next().unwrap().trim());
    let has_body = has_body && method != "HEAD";
    let Some((template, operation)) = operation(method, path) else {
        let is_page = ["/", "/openapi.json"].contains(&path)
            || path.starts_with("/docs")
            || path.starts_with("/console/");
        if is_page || method == "OPTIONS" && response.status < 300 {
            return None;
        }
        let refused = response.status >= 400 && kind == Some(PROBLEM);
        let problem = json!({"$ref": "#/components/schemas/ProblemDocument"});
        return match refused {
            false => Some(format!("{} {kind:?} where no operation is described", response.status)),
            true if has_body => mismatch(&problem, &response.json()),
            true => None,
        };
    };
    let status = response.status;
    let Some(described) = operation["responses"].get(status.to_string()) else {
        return Some(format!("{status} is not described"));
    };
    let seen = (method.replace("HEAD", "GET"), template.to_owned(), status);
    COMPARED.lock().unwrap().insert(seen);
    let Some(contents) = described.get("content") else {
        return (!response.body.is_empty())
            .then(|| format!("{status} is described without a body"));
    };
    let Some(content) = kind.and_then(|kind| contents.get(kind)) else {
        return Some(format!("{status} is not described with {kind:?}"));
    };
    if !has_body || !kind.is_some_and(|kind| kind.ends_with("json")) {
        return None;
    }
    let (schema, body) = (&content["schema"], response.json());
    mismatch(schema, &body).or_else(|| undescribed_member(schema, &body))
}

/// The operation of a request, with the template of its path.
fn operation(method: &str, path: &str) -> Option<(&'static str, &'static Value)> {
    let path = path.split('?').next()?;
    let fits = |template: &str| {
        template.split('/').count() == path.split('/').count()
            && template.split('/').zip(path.split('/')).all(|(expected, segment)| {
                expected == segment || expected.starts_with('{') && !segment.is_empty()
            })
    };
    let paths = DOCUMENT["paths"].as_object()?.iter().filter(|(template, _)| fits(template));
    // A fixed segment wins over a parameter.
    let (template, item) = paths.min_by_key(|(template, _)| template.matches('{').count())?;
    // The router answers HEAD where it answers GET.
    Some((template, item.get(method.replace("HEAD", "GET").to_lowercase())?))
}

fn resolve(schema: &Value) -> &Value {
    match schema["$ref"].as_str() {
        Some(reference) => DOCUMENT.pointer(&reference[1..]).expect("a schema"),
        None => schema,
    }
}

/// Why a value does not match a schema.
fn mismatch(schema: &Value, value: &Value) -> Option<String> {
    let rules = schema.as_object().expect("a schema is an object");
    rules.iter().find_map(|(keyword, rule)| broken_rule(schema, keyword, rule, value))
}

fn broken_rule(schema: &Value, keyword: &str, rule: &Value, value: &Value) -> Option<String> {
    let unless = |holds: bool| (!holds).then(|| format!("{keyword} {rule} and {value}"));
    let list = || rule.as_array().into_iter().flatten();
    let members = || value.as_object().into_iter().flatten();
    let length = || value.as_str().map_or(0, |text| text.chars().count() as u64);
    match keyword {
        "description" | "example" | "default" | "format" | "title" => None,
        "$ref" => mismatch(resolve(schema), value),
        "type" if rule.is_array() => unless(list().any(|rule| has_type(rule, value))),
        "type" => unless(has_type(rule, value)),
        "enum" => unless(list().any(|allowed| allowed == value)),
        "minimum" => unless(value.as_f64().is_none_or(|number| Some(number) >= rule.as_f64())),
        "maximum" => unless(value.as_f64().is_none_or(|number| Some(number) <= rule.as_f64())),
        "minLength" => unless(!value.is_string() || Some(length()) >= rule.as_u64()),
        "maxLength" => unless(Some(length()) <= rule.as_u64()),
        "required" => unless(
            !value.is_object() || list().all(|name| value.get(name.as_str().unwrap()).is_some()),
        ),
        "properties" => members().find_map(|(name, value)| {
            let wrong = mismatch(rule.get(name)?, value)?;
            Some(format!("{name}: {wrong}"))
        }),
        "additionalProperties" => members()
            .filter(|(name, _)| schema["properties"].get(name).is_none())
            .find_map(|(name, value)| match rule {
                Value::Bool(true) => None,
                Value::Bool(false) => Some(format!("{name} is not allowed")),
                rule => mismatch(rule, value),
            }),
        "propertyNames" => {
            members().find_map(|(name, _)| mismatch(rule, &Value::String(name.clone())))
        }
        "items" => value.as_array().into_iter().flatten().find_map(|item| mismatch(rule, item)),
        "allOf" => list().find_map(|rule| mismatch(rule, value)),
        "anyOf" => unless(list().any(|rule| mismatch(rule, value).is_none())),
        "oneOf" => unless(list().filter(|rule| mismatch(rule, value).is_none()).count() == 1),
        other => panic!("the keyword {other} is not known here"),
    }
}

fn has_type(name: &Value, value: &Value) -> bool {
    match name.as_str().expect("a type's name") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("the type {other} is not known here"),
    }
}

/// A member of the response that its schema does not have. Schemas allow further members, so that old
/// clients bear new ones; but hapax itself describes what it sends. Problem documents have members of
/// their own kind (RFC 9457).
fn undescribed_member(schema: &Value, value: &Value) -> Option<String> {
    if let Some(items) = value.as_array() {
        let schema = resolve(schema).get("items")?;
        return items.iter().find_map(|item| undescribed_member(schema, item));
    }
    let mut names = BTreeSet::new();
    if is_open(schema, &mut names) {
        return None;
    }
    value.as_object()?.iter().find_map(|(name, value)| {
        if !names.contains(name) {
            return Some(format!("{name} is not described"));
        }
        undescribed_member(resolve(schema)["properties"].get(name)?, value)
    })
}

/// Collects the members that a schema describes; whether others are expected too.
fn is_open(schema: &Value, names: &mut BTreeSet<String>) -> bool {
    if schema["$ref"] == "#/components/schemas/ProblemDocument" {
        return true;
    }
    let schema = resolve(schema);
    let properties = schema["properties"].as_object();
    names.extend(properties.into_iter().flatten().map(|(name, _)| name.clone()));
    let parts = ["allOf", "anyOf", "oneOf"].map(|keyword| schema[keyword].as_array());
    let parts: Vec<_> = parts.into_iter().flatten().flatten().collect();
    let open = parts.iter().filter(|part| is_open(part, names)).count() > 0;
    open || properties.is_none() && parts.is_empty() || schema.get("additionalProperties").is_some()
}
