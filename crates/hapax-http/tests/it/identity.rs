//! The caller and the operation of a key, and the fingerprint of a request.

use crate::common::{FullResponse, Runs, app, counting_app, memory, post, post_to, send};
use axum::body::Body;
use axum::http::{Method, Request};
use hapax_core::Tenant;
use hapax_http::{CallerScope, FingerprintOf, IdempotencyConfig};

/// Sends requests with the key `k` and these headers in turn, and returns how many ran.
async fn ran(config: IdempotencyConfig, requests: &[&[(&str, &str)]]) -> usize {
    let (app, runs) = counting_app(memory().0, config);
    for headers in requests {
        let mut request = post("k", "");
        for (name, value) in *headers {
            let name: axum::http::HeaderName = name.parse().unwrap();
            request.headers_mut().append(name, value.parse().unwrap());
        }
        assert_eq!(send(&app, request).await.status, 200);
    }
    runs.count()
}

async fn asked(config: IdempotencyConfig, request: Request<Body>) -> FullResponse {
    send(&app(memory().0, config, || async { "ran" }), request).await
}

fn scoped(scope: CallerScope) -> IdempotencyConfig {
    IdempotencyConfig::new().with_scope(scope)
}

#[tokio::test]
async fn key_bare_and_quoted_are_the_same() {
    let (app, runs) = counting_app(memory().0, IdempotencyConfig::new());
    for key in ["8e03-978e", "\"8e03-978e\"", " 8e03-978e", "\"8e03-978e\" "] {
        assert_eq!(send(&app, post(key, "")).await.body, "1");
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn key_invalid_is_400_and_runs_nothing() {
    let long = "k".repeat(256);
    for key in ["", " ", "\"\"", "\"k", "\"k\"x", "\"a b\"", "a b", "k\u{e9}", "\"k\";a=1", &long] {
        let mut request = post("k", "");
        let value = axum::http::HeaderValue::from_bytes(key.as_bytes()).unwrap();
        request.headers_mut().insert("idempotency-key", value);
        let answer = asked(IdempotencyConfig::new(), request).await;
        assert_eq!((answer.status.as_u16(), &*answer.code()), (400, "invalid-key"), "{key:?}");
        assert!(key.trim().len() < 5 || !String::from_utf8_lossy(&answer.body).contains(key));
    }
    let mut doubled = post("k", "");
    doubled.headers_mut().append("idempotency-key", "k".parse().unwrap());
    assert_eq!(asked(IdempotencyConfig::new(), doubled).await.code(), "invalid-key");
    assert_eq!(asked(IdempotencyConfig::new(), post(&long[..255], "")).await.status, 200);
}

fn with_method(method: &Method) -> Request<Body> {
    let mut request = post("k", "");
    *request.method_mut() = method.clone();
    request
}

#[tokio::test]
async fn key_required_and_missing_is_400() {
    let config = IdempotencyConfig::new().with_required_key(true);
    let bare = |method: Method| Request::builder().method(method).body(Body::empty()).unwrap();
    let post = asked(config.clone(), bare(Method::POST)).await;
    post.assert_problem(400, "key-missing");
    assert_eq!(asked(config.clone(), bare(Method::GET)).await.body, "ran");
    assert_eq!(asked(config, bare(Method::DELETE)).await.body, "ran");
}

#[tokio::test]
async fn methods_configured_take_keys_and_safe_ones_never() {
    let default = IdempotencyConfig::new().methods().to_vec();
    let all = vec![Method::GET, Method::HEAD, Method::PUT, Method::DELETE];
    for (methods, method, runs_expected) in [
        (default.clone(), Method::POST, 1),
        (default.clone(), Method::PATCH, 1),
        (default, Method::PUT, 2),
        (all.clone(), Method::PUT, 1),
        (all.clone(), Method::DELETE, 1),
        (all.clone(), Method::POST, 2),
        (all, Method::GET, 2),
    ] {
        let config = IdempotencyConfig::new().with_methods(methods);
        let (app, runs) = counting_app(memory().0, config);
        for _ in 0..2 {
            send(&app, with_method(&method)).await;
        }
        assert_eq!(runs.count(), runs_expected, "{method}");
    }
}

#[tokio::test]
async fn method_is_part_of_the_operation() {
    let (app, runs) = counting_app(memory().0, IdempotencyConfig::new());
    for method in [Method::POST, Method::PATCH] {
        send(&app, with_method(&method)).await;
    }
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn scope_repeated_authorization_is_another_caller() {
    let (a, b) = (("authorization", "a"), ("authorization", "b"));
    let none: &[(&str, &str)] = &[];
    let requests = [&[a, b][..], &[a][..], &[b][..], &[b, a][..], none];
    assert_eq!(ran(IdempotencyConfig::new(), &requests).await, 5);
    assert_eq!(ran(IdempotencyConfig::new(), &[&[a, b], &[a, b]]).await, 1);
}

#[tokio::test]
async fn scope_missing_with_cookie_and_no_authorization() {
    let mut request = post("k", "");
    request.headers_mut().insert("cookie", "session=1".parse().unwrap());
    let answer = asked(IdempotencyConfig::new(), request).await;
    answer.assert_problem(400, "scope-missing");
    let who = [("authorization", "a"), ("cookie", "session=1")];
    let also = [("authorization", "a"), ("cookie", "session=2")];
    assert_eq!(ran(IdempotencyConfig::new(), &[&who, &also]).await, 1);
}

#[tokio::test]
async fn scope_by_cookie() {
    let scope = || scoped(CallerScope::Cookie("sid".into()));
    let same: [&[(&str, &str)]; 4] = [
        &[("cookie", "sid=1")],
        &[("cookie", "theme=dark; sid=1")],
        &[("cookie", "theme=dark"), ("cookie", " sid = 1 ;x")],
        &[("cookie", "sid=1"), ("authorization", "any")],
    ];
    assert_eq!(ran(scope(), &same).await, 1);
    // A second cookie of the same name, set by a neighbouring domain, does not make its sender the
    // caller whose cookie it is.
    let tossed: [&[(&str, &str)]; 3] =
        [&[("cookie", "sid=1")], &[("cookie", "sid=1; sid=2")], &[("cookie", "sid=2; sid=1")]];
    assert_eq!(ran(scope(), &tossed).await, 3);
    assert_eq!(asked(scope(), post("k", "")).await.code(), "scope-missing");
}

#[tokio::test]
async fn scope_by_cookie_ignores_other_non_ascii_cookies() {
    let mut request = post("k", "");
    let line = axum::http::HeaderValue::from_bytes(b"name=J\xf6rg; sid=1").unwrap();
    request.headers_mut().insert("cookie", line);
    assert_eq!(asked(scoped(CallerScope::Cookie("sid".into())), request).await.status, 200);
}

#[tokio::test]
async fn scope_by_header() {
    let scope = || scoped(CallerScope::Header("x-user".parse().unwrap()));
    let (a, b) = (("x-user", "a"), ("x-user", "b"));
    let token = ("authorization", "changes between attempts");
    assert_eq!(ran(scope(), &[&[a], &[b], &[a, token]]).await, 2);
    assert_eq!(asked(scope(), post("k", "")).await.code(), "scope-missing");
}

#[tokio::test]
async fn scope_single_has_one_caller() {
    let requests: [&[(&str, &str)]; 3] =
        [&[], &[("authorization", "a")], &[("cookie", "session=1")]];
    assert_eq!(ran(scoped(CallerScope::Single), &requests).await, 1);
}

#[tokio::test]
async fn hole_19_two_tenants_with_one_key_never_meet() {
    let (store, _) = memory();
    let runs = Runs::default();
    for tenant in ["a", "b"] {
        let tenant = Tenant::new(tenant).unwrap();
        let config = IdempotencyConfig::new().with_tenant(tenant);
        let counted = runs.clone();
        let app = app(store.clone(), config, || async move { counted.add().to_string() });
        send(&app, post("k", "")).await;
    }
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn operation_of_long_paths_differs() {
    let (app, runs) = counting_app(memory().0, IdempotencyConfig::new());
    let long = format!("/{}", "a".repeat(400));
    let longer = format!("{long}b");
    for path in [&*long, &longer, "/caf\u{e9}", "/caf\u{e8}", &long, "/caf\u{e9}"] {
        assert_eq!(send(&app, post_to(path)).await.status, 200);
    }
    assert_eq!(runs.count(), 4);
}

/// Whether two requests with the key `k` have the same fingerprint.
async fn same(how: FingerprintOf, one: Request<String>, other: Request<String>) -> bool {
    let config = IdempotencyConfig::new().with_fingerprint(how);
    let app = app(memory().0, config, || async { "ran" });
    let keyed = |mut request: Request<String>| {
        request.headers_mut().insert("idempotency-key", "k".parse().unwrap());
        request.map(Body::from)
    };
    assert_eq!(send(&app, keyed(one)).await.status, 200);
    let answer = send(&app, keyed(other)).await;
    match answer.status.as_u16() {
        200 => answer.is_replay(),
        422 => false,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn fingerprint_covers_query_content_type_and_body() {
    let request = |uri: &str, kind: &str, body: &str| {
        Request::post(uri).header("content-type", kind).body(body.to_owned()).unwrap()
    };
    let one = || request("/o?a=1", "application/json", "{}");
    assert!(same(FingerprintOf::Bytes, one(), one()).await);
    for other in [
        request("/o?a=2", "application/json", "{}"),
        request("/o", "application/json", "{}"),
        request("/o?a=1", "text/plain", "{}"),
        request("/o?a=1", "application/json", "{} "),
    ] {
        assert!(!same(FingerprintOf::Bytes, one(), other).await);
    }
}

#[tokio::test]
async fn fingerprint_json_falls_back_to_bytes_if_ambiguous() {
    let request = |body: &str| Request::post("/o").body(body.to_owned()).unwrap();
    let json = |one: &str, other: &str| same(FingerprintOf::Json, request(one), request(other));
    assert!(json(r#"{"a":1,"b":2}"#, r#"{ "b":2, "a":1 }"#).await);
    assert!(!json(r#"{"a":2}"#, r#"{"a":1,"a":2}"#).await, "which a counts?");
    assert!(!json("1", "1.0").await);
    assert!(!json("not json", "not json ").await);
}

#[tokio::test]
async fn with_path_as_operation_still_fingerprints_the_path() {
    let config = IdempotencyConfig::new().with_path(|_| "/orders/{id}".to_owned());
    let app = app(memory().0, config, || async { "ran" });
    assert_eq!(send(&app, post_to("/orders/1")).await.status, 200);
    assert_eq!(send(&app, post_to("/orders/2")).await.code(), "key-reused");
}

/// A request with the key `k` and these headers.
fn with_headers(headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = post("k", "");
    for (name, value) in headers {
        let name: axum::http::HeaderName = name.parse().unwrap();
        request.headers_mut().append(name, value.parse().unwrap());
    }
    request
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SecondCaller {
    Same,
    Other,
    Missing,
}

/// Whether the second of two requests with one key gets the first one's response.
async fn second_caller(
    config: IdempotencyConfig,
    first: &[(&str, &str)],
    second: &[(&str, &str)],
) -> SecondCaller {
    let app = app(memory().0, config, || async { "ran" });
    send(&app, with_headers(first)).await;
    let answer = send(&app, with_headers(second)).await;
    match answer.status.as_u16() {
        200 if answer.is_replay() => SecondCaller::Same,
        200 => SecondCaller::Other,
        _ => {
            answer.assert_problem(400, "scope-missing");
            SecondCaller::Missing
        }
    }
}

#[tokio::test]
async fn fault_17_caller_is_every_credential() {
    use SecondCaller::{Missing, Other, Same};
    let (key_a, key_b) = (("x-api-key", "a"), ("x-api-key", "b"));
    let (session_1, session_2) = (("cookie", "sid=1"), ("cookie", "sid=2"));
    let (empty, bearer) = (("authorization", ""), ("authorization", "Bearer t"));
    let (basic, loud_basic) = (("authorization", "Basic eA=="), ("authorization", "bAsIc eA=="));
    let bare_scheme = ("authorization", "Bearer");
    let name_as_value = ("authorization", "x-api-key:a");
    for (first, second, expected) in [
        (&[key_a][..], &[][..], Other),
        (&[key_a], &[key_b], Other),
        (&[key_a], &[key_a], Same),
        (&[("api-key", "a")], &[("x-auth-token", "a")], Other),
        (&[("x-access-token", "a")], &[], Other),
        (&[empty, session_1], &[empty, session_2], Missing),
        (&[bare_scheme, session_1], &[bare_scheme, session_2], Missing),
        (&[("x-api-key", " "), session_1], &[("x-api-key", " "), session_2], Missing),
        (&[basic, session_1], &[basic, session_2], Missing),
        (&[loud_basic, session_1], &[loud_basic, session_2], Missing),
        (&[basic], &[basic], Same),
        (&[basic, ("cookie", "")], &[basic], Same),
        (&[bearer, session_1], &[bearer, session_2], Same),
        (&[key_a, session_1], &[key_a, session_2], Same),
        (&[basic, key_a, session_1], &[basic, key_a, session_2], Same),
        (&[empty], &[], Same),
        (&[name_as_value], &[key_a], Other),
        (&[bearer], &[bearer, key_a], Other),
        (&[bearer], &[bearer], Same),
    ] {
        let seen = second_caller(IdempotencyConfig::new(), first, second).await;
        assert_eq!(seen, expected, "{first:?} then {second:?}");
    }
}

#[tokio::test]
async fn fault_17_empty_scope_header_or_cookie_is_missing() {
    let by_header = scoped(CallerScope::Header("x-user".parse().unwrap()));
    let by_cookie = scoped(CallerScope::Cookie("sid".into()));
    for (config, headers) in
        [(by_header, ("x-user", "")), (by_cookie, ("cookie", "theme=dark; sid= "))]
    {
        asked(config, with_headers(&[headers])).await.assert_problem(400, "scope-missing");
    }
}

#[tokio::test]
async fn fault_22_method_override_is_part_of_the_request() {
    for name in ["x-http-method-override", "x-http-method", "x-method-override"] {
        let app = app(memory().0, IdempotencyConfig::new(), || async { "ran" });
        assert_eq!(send(&app, post("k", "")).await.body, "ran");
        let other = send(&app, with_headers(&[(name, "DELETE")])).await;
        other.assert_problem(422, "key-reused");
        // The service would run a POST, for which the layer has checked no key.
        let mut disguised = with_headers(&[(name, " post ")]);
        *disguised.method_mut() = Method::PUT;
        send(&app, disguised).await.assert_problem(400, "invalid-request");
        let mut keyless = with_headers(&[(name, "POST")]);
        *keyless.method_mut() = Method::PUT;
        keyless.headers_mut().remove("idempotency-key");
        assert_eq!(send(&app, keyless).await.body, "ran");
    }
    let mut keyless = with_headers(&[("x-http-method-override", "PATCH")]);
    *keyless.method_mut() = Method::PUT;
    keyless.headers_mut().remove("idempotency-key");
    let required = IdempotencyConfig::new().with_required_key(true);
    asked(required, keyless).await.assert_problem(400, "invalid-request");
}
