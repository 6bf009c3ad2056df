//! What is stored, what is replayed, and what is never.

use crate::common::{Runs, app, memory, post, send};
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use hapax_core::Claims;
use hapax_core::command;
use hapax_http::{IdempotencyConfig, Verdict, Verdicts};

/// What became of an answer.
#[derive(Debug, PartialEq, Eq)]
enum Became {
    Replayed,
    RanAgain,
    Unknown,
}

async fn became(
    config: IdempotencyConfig,
    make: impl Fn() -> Response<Body> + Clone + Send + Sync + 'static,
) -> Became {
    let runs = Runs::default();
    let counted = runs.clone();
    let (store, clock) = memory();
    let app = app(store, config, || async move {
        counted.add();
        make()
    });
    let first = send(&app, post("k", "")).await;
    assert!(!first.is_replay());
    // The shortest lease there is, after which an abandoned claim is unknown.
    clock.advance(std::time::Duration::from_millis(1));
    let again = send(&app, post("k", "")).await;
    match (again.is_replay(), runs.count()) {
        (true, 1) => {
            assert_eq!((again.status, again.body), (first.status, first.body));
            Became::Replayed
        }
        (false, 2) => Became::RanAgain,
        (false, 1) => {
            assert_eq!((again.status.as_u16(), again.code().as_str()), (409, "outcome-unknown"));
            Became::Unknown
        }
        other => panic!("{other:?}"),
    }
}

fn at_once() -> IdempotencyConfig {
    crate::common::impatient()
}

#[tokio::test]
async fn the_status_says_what_becomes_of_an_answer() {
    for (status, expected) in [
        (200, Became::Replayed),
        (201, Became::Replayed),
        (204, Became::Replayed),
        (304, Became::Replayed),
        (302, Became::Replayed),
        (400, Became::Replayed),
        (404, Became::Replayed),
        (409, Became::Replayed),
        (422, Became::Replayed),
        (401, Became::RanAgain),
        (403, Became::RanAgain),
        (408, Became::RanAgain),
        (425, Became::RanAgain),
        (429, Became::RanAgain),
        (500, Became::RanAgain),
        (501, Became::RanAgain),
        (503, Became::RanAgain),
        (502, Became::Unknown),
        (504, Became::Unknown),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(became(at_once(), move || status.into_response()).await, expected, "{status}");
    }
}

#[tokio::test]
async fn a_table_may_say_otherwise() {
    let verdicts = Verdicts::default()
        .with(StatusCode::OK, Verdict::Unknown)
        .with(StatusCode::BAD_GATEWAY, Verdict::Keep);
    let config = at_once().with_verdicts(verdicts);
    assert_eq!(became(config.clone(), || "ok".into_response()).await, Became::Unknown);
    let gateway = || StatusCode::BAD_GATEWAY.into_response();
    assert_eq!(became(config, gateway).await, Became::Replayed);
}

#[tokio::test]
async fn the_handler_may_say_never() {
    let never = || ([("idempotency-store", "Never")], "ok").into_response();
    assert_eq!(became(at_once(), never).await, Became::RanAgain);
    let other = || ([("idempotency-store", "always")], "ok").into_response();
    assert_eq!(became(at_once(), other).await, Became::Replayed);
    let app = app(memory().0, at_once(), move || async move { never() });
    let answer = send(&app, post("k", "")).await;
    assert_eq!(answer.header("idempotency-store"), None, "it is said to the layer alone");
}

#[tokio::test]
async fn the_handlers_own_verdict_counts_most() {
    let with = |verdict: Verdict, status: StatusCode| {
        move || {
            let mut response = (status, [("idempotency-store", "never")]).into_response();
            response.extensions_mut().insert(verdict);
            response
        }
    };
    let keep = with(Verdict::Keep, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(became(at_once(), keep).await, Became::Replayed);
    let back = with(Verdict::GiveBack, StatusCode::OK);
    assert_eq!(became(at_once(), back).await, Became::RanAgain);
    let unknown = with(Verdict::Unknown, StatusCode::OK);
    assert_eq!(became(at_once(), unknown).await, Became::Unknown);
}

#[tokio::test]
async fn hole_22_an_answer_comes_back_byte_for_byte() {
    let bytes: Vec<u8> = (0..=255).collect();
    let sent = bytes.clone();
    let app = app(memory().0, IdempotencyConfig::new(), || async move {
        let mut response = Response::new(Body::from(sent));
        *response.status_mut() = StatusCode::from_u16(299).unwrap();
        let headers = response.headers_mut();
        headers.append("x-many", "one".parse().unwrap());
        headers.append("x-many", "two, three".parse().unwrap());
        headers.insert("x-empty", "".parse().unwrap());
        headers.insert("x-bytes", HeaderValue::from_bytes(b"caf\xe9").unwrap());
        headers.insert("content-type", "application/octet-stream".parse().unwrap());
        response
    });
    let first = send(&app, post("k", "")).await;
    let mut again = send(&app, post("k", "")).await;
    assert_eq!(again.body, bytes);
    assert_eq!(again.headers.remove("idempotent-replayed").unwrap(), "true");
    let expires = again.headers.remove("idempotency-expires").unwrap();
    assert!(expires.to_str().unwrap().ends_with(" GMT"));
    assert_eq!(again, first);
}

#[tokio::test]
async fn an_empty_body_is_an_answer() {
    let app = app(memory().0, IdempotencyConfig::new(), || async { StatusCode::CREATED });
    let first = send(&app, post("k", "")).await;
    let again = send(&app, post("k", "")).await;
    assert_eq!((again.status, &again.body, again.is_replay()), (first.status, &first.body, true));
}

#[tokio::test]
async fn what_belongs_to_one_connection_or_moment_is_not_stored() {
    let app = app(memory().0, IdempotencyConfig::new(), || async {
        let names = "x-hop, Keep-Alive";
        let headers = [
            ("connection", names),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-authenticate", "Basic"),
            ("te", "trailers"),
            ("trailer", "x"),
            ("upgrade", "h2c"),
            ("date", "Thu, 01 Jan 1970 00:00:00 GMT"),
            ("set-cookie", "a=1"),
            ("x-end-to-end", "1"),
        ];
        (headers, "ok")
    });
    send(&app, post("k", "")).await;
    let again = send(&app, post("k", "")).await;
    let mut names: Vec<_> = again.headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    let kept = ["content-length", "content-type", "idempotency-expires", "idempotent-replayed"];
    assert_eq!(names, [&kept[..], &["x-end-to-end"]].concat());
}

#[tokio::test]
async fn the_service_is_told_attempt_fence_and_key_and_callers_cannot_fake_them() {
    let app = app(memory().0, at_once(), |headers: HeaderMap| async move {
        let all = |name| {
            let values = headers.get_all(name).iter().map(|v| v.to_str().unwrap());
            values.collect::<Vec<_>>().join(",")
        };
        let told = [all("hapax-attempt"), all("hapax-fence"), all("idempotency-key")].join("|");
        (StatusCode::INTERNAL_SERVER_ERROR, told)
    });
    let spoofed = |key: Option<&str>| {
        let mut request = post("k", "");
        request.headers_mut().append("hapax-attempt", "99".parse().unwrap());
        request.headers_mut().append("hapax-attempt", "98".parse().unwrap());
        request.headers_mut().append("hapax-fence", "99".parse().unwrap());
        if key.is_none() {
            request.headers_mut().remove("idempotency-key");
        }
        request
    };
    assert_eq!(send(&app, spoofed(Some("k"))).await.body, "1|1|k");
    assert_eq!(send(&app, spoofed(Some("k"))).await.body, "2|2|k");
    assert_eq!(send(&app, spoofed(None)).await.body, "||");
}

#[tokio::test]
async fn a_head_too_large_for_the_store_is_passed_on_and_remembered() {
    for (count, size) in [(40_000, 1), (100, 20_000)] {
        let app = app(memory().0, at_once(), move || async move {
            let mut response = "ok".into_response();
            for _ in 0..count {
                let value = HeaderValue::from_bytes(&vec![b'x'; size]).unwrap();
                response.headers_mut().append("x-many", value);
            }
            response
        });
        let first = send(&app, post("k", "")).await;
        assert_eq!(first.headers.get_all("x-many").iter().count(), count);
        assert_eq!(send(&app, post("k", "")).await.code(), "response-not-kept");
    }
}

#[tokio::test]
async fn no_handler_can_forge_a_tombstone() {
    for name in ["hapax-response-not-kept", "hapax-not-kept"] {
        let app = app(memory().0, at_once(), move || async move { ([(name, "true")], "ok") });
        send(&app, post("k", "")).await;
        assert!(send(&app, post("k", "")).await.is_replay());
    }
}

#[tokio::test]
async fn what_an_operator_settled_is_sent_without_what_would_break_http() {
    let (store, _) = memory();
    let config = at_once();
    let settled = |key: &'static str, status: u16, headers: Vec<(&str, &'static [u8])>| {
        let (store, config) = (store.clone(), config.clone());
        let headers = headers.into_iter().map(|(n, v)| (n.to_owned(), v.into())).collect();
        async move {
            let keyed = crate::common::keyed(&config, key, "");
            let claimed = store.claim(keyed.key(), keyed.claim()).await.unwrap();
            let hapax_core::Claimed::Granted { ticket, .. } = claimed else { panic!() };
            let stored = command::StoredResponse { status, headers, body: "by hand".into() };
            let _ = store.settle(keyed.key(), &ticket.token, stored.encode()).await.unwrap();
        }
    };
    settled("fine", 200, vec![("Content-Length", b"999"), ("transfer-encoding", b"chunked")]).await;
    settled("status", 99, vec![]).await;
    settled("interim", 100, vec![]).await;
    settled("name", 200, vec![("a b", b"")]).await;
    settled("value", 200, vec![("a", b"\r\n")]).await;
    let app = app(store, config, || async { "ran" });
    let fine = send(&app, post("fine", "")).await;
    assert_eq!((&fine.body[..], fine.header("transfer-encoding")), (&b"by hand"[..], None));
    assert_eq!(fine.header("content-length"), Some("7"));
    for key in ["status", "interim", "name", "value"] {
        let answer = send(&app, post(key, "")).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (500, "internal"), "{key}");
    }
}

#[tokio::test]
async fn a_request_larger_than_the_limit_is_413_and_nothing_runs() {
    let config = at_once().with_max_body(4);
    let runs = Runs::default();
    let counted = runs.clone();
    let app = app(memory().0, config, || async move { counted.add().to_string() });
    assert_eq!(send(&app, post("k", "12345")).await.code(), "payload-too-large");
    let chunks = futures_util::stream::iter(["123", "45"].map(Ok::<_, std::io::Error>));
    let streamed = post("k", "").map(|_| Body::from_stream(chunks));
    assert_eq!(send(&app, streamed).await.status, 413);
    assert_eq!(runs.count(), 0);
    assert_eq!(send(&app, post("k", "1234")).await.body, "1");
}

#[tokio::test]
async fn a_request_that_breaks_off_runs_nothing_and_claims_nothing() {
    let app = app(memory().0, at_once(), || async { "ran" });
    let broken = futures_util::stream::iter([Ok("half"), Err(std::io::Error::other("gone"))]);
    let answer = send(&app, post("k", "").map(|_| Body::from_stream(broken))).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (400, "invalid-request"));
    assert_eq!(answer.problem()["retryable"], true);
    assert_eq!(send(&app, post("k", "whole")).await.body, "ran");
}
