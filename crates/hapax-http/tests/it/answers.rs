//! Which responses are stored and replayed.

use crate::common::fed::fed;
use crate::common::{Runs, app, claim_elsewhere, counting_app, memory, post, send, without_wait};
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use hapax_core::Claims;
use hapax_core::command;
use hapax_http::{IdempotencyConfig, Verdict, Verdicts};

/// The fate of a response.
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
    // An abandoned claim becomes unknown after the shortest lease.
    clock.advance(std::time::Duration::from_millis(1));
    let again = send(&app, post("k", "")).await;
    match (again.is_replay(), runs.count()) {
        (true, 1) => {
            assert_eq!((again.status, again.body), (first.status, first.body));
            Became::Replayed
        }
        (false, 2) => Became::RanAgain,
        (false, 1) => {
            again.assert_problem(409, "outcome-unknown");
            Became::Unknown
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn verdict_follows_the_status() {
    for (statuses, expected) in [
        (&[200, 201, 204, 302, 304, 400, 404, 409, 422][..], Became::Replayed),
        (&[401, 403, 408, 425, 429, 500, 501, 503], Became::RanAgain),
        (&[502, 504], Became::Unknown),
    ] {
        for status in statuses {
            let status = StatusCode::from_u16(*status).unwrap();
            let became = became(without_wait(), move || status.into_response()).await;
            assert_eq!(became, expected, "{status}");
        }
    }
}

#[tokio::test]
async fn verdict_table_overrides_the_status() {
    let verdicts = Verdicts::default()
        .with(StatusCode::OK, Verdict::Unknown)
        .with(StatusCode::BAD_GATEWAY, Verdict::Keep);
    let config = without_wait().with_verdicts(verdicts);
    assert_eq!(became(config.clone(), || "ok".into_response()).await, Became::Unknown);
    let gateway = || StatusCode::BAD_GATEWAY.into_response();
    assert_eq!(became(config, gateway).await, Became::Replayed);
}

#[tokio::test]
async fn verdict_header_never_frees_the_key() {
    let never = || ([("idempotency-store", "Never")], "ok").into_response();
    assert_eq!(became(without_wait(), never).await, Became::RanAgain);
    let other = || ([("idempotency-store", "always")], "ok").into_response();
    assert_eq!(became(without_wait(), other).await, Became::Replayed);
    let app = app(memory().0, without_wait(), move || async move { never() });
    let answer = send(&app, post("k", "")).await;
    assert_eq!(answer.header("idempotency-store"), None, "it is said to the layer alone");
}

#[tokio::test]
async fn verdict_extension_wins() {
    let with = |verdict: Verdict, status: StatusCode| {
        move || {
            let mut response = (status, [("idempotency-store", "never")]).into_response();
            response.extensions_mut().insert(verdict);
            response
        }
    };
    let keep = with(Verdict::Keep, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(became(without_wait(), keep).await, Became::Replayed);
    let back = with(Verdict::GiveBack, StatusCode::OK);
    assert_eq!(became(without_wait(), back).await, Became::RanAgain);
    let unknown = with(Verdict::Unknown, StatusCode::OK);
    assert_eq!(became(without_wait(), unknown).await, Became::Unknown);
}

/// Where a gRPC response has its status, and when it comes.
#[derive(Clone, Copy, Debug)]
enum GrpcStatus {
    Header(&'static str),
    Trailer(&'static str),
    /// Trailers that come after the head.
    LateTrailer(&'static str),
    /// As above, after as many bytes as were announced.
    AfterLength(&'static str),
    Nowhere,
}

fn grpc(content_type: &'static str, status: GrpcStatus) -> Response<Body> {
    let length = matches!(status, GrpcStatus::AfterLength(_)).then_some(7);
    let (tap, body) = fed(length);
    let mut response = ([("content-type", content_type)], Body::new(body)).into_response();
    tap.send("message");
    match status {
        GrpcStatus::Header(code) => {
            response.headers_mut().insert("grpc-status", HeaderValue::from_static(code));
        }
        GrpcStatus::Trailer(code) => tap.trailers("grpc-status", code),
        GrpcStatus::LateTrailer(code) | GrpcStatus::AfterLength(code) => {
            tokio::spawn(async move {
                tokio::task::yield_now().await;
                tap.trailers("grpc-status", code);
            });
        }
        GrpcStatus::Nowhere => {}
    }
    response
}

#[tokio::test]
async fn fault_26_grpc_status_decides_like_http() {
    use GrpcStatus::{AfterLength, Header, LateTrailer, Nowhere, Trailer};
    for (codes, expected) in [
        (&["0", "3", "5", "6", "9", "10", "11"][..], Became::Replayed),
        (&["2", "7", "8", "12", "13", "14", "15", "16", "99", "x"], Became::RanAgain),
        (&["1", "4"], Became::Unknown),
    ] {
        for code in codes {
            for place in [Header(code), Trailer(code), LateTrailer(code), AfterLength(code)] {
                let became = became(without_wait(), move || grpc("application/grpc+proto", place));
                assert_eq!(became.await, expected, "{place:?}");
            }
        }
    }
    let cut = || grpc("application/grpc", Nowhere);
    assert_eq!(became(without_wait(), cut).await, Became::Unknown);
    for other in ["application/grpc-web", "application/json"] {
        let unavailable = move || grpc(other, Trailer("14"));
        assert_eq!(became(without_wait(), unavailable).await, Became::Replayed, "{other}");
    }
}

#[tokio::test]
async fn fault_26_grpc_status_is_overruled_like_http() {
    use GrpcStatus::{LateTrailer, Trailer};
    let verdicts = Verdicts::default().with(StatusCode::NOT_FOUND, Verdict::GiveBack);
    let config = without_wait().with_verdicts(verdicts);
    let missing = || grpc("application/grpc", Trailer("5"));
    assert_eq!(became(config, missing).await, Became::RanAgain);
    let kept = || {
        let mut response = grpc("application/grpc", Trailer("14"));
        response.extensions_mut().insert(Verdict::Keep);
        response
    };
    assert_eq!(became(without_wait(), kept).await, Became::Replayed);
    // A response that is too large to be stored is judged by its trailers too.
    for place in [Trailer("14"), LateTrailer("14")] {
        let large = move || grpc("application/grpc;charset=x", place);
        let became = became(without_wait().with_max_body(4), large).await;
        assert_eq!(became, Became::RanAgain, "{place:?}");
    }
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
async fn replay_of_an_empty_body() {
    let app = app(memory().0, IdempotencyConfig::new(), || async { StatusCode::CREATED });
    let first = send(&app, post("k", "")).await;
    let again = send(&app, post("k", "")).await;
    assert_eq!((again.status, &again.body, again.is_replay()), (first.status, &first.body, true));
}

#[tokio::test]
async fn replay_leaves_out_hop_by_hop_headers_and_date() {
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
async fn service_sees_attempt_and_fence_that_callers_cannot_fake() {
    let app = app(memory().0, without_wait(), |headers: HeaderMap| async move {
        let all = |name| {
            let values = headers.get_all(name).iter().map(|v| v.to_str().unwrap());
            values.collect::<Vec<_>>().join(",")
        };
        let told = [all("hapax-attempt"), all("hapax-fence"), all("idempotency-key")].join("|");
        (StatusCode::INTERNAL_SERVER_ERROR, told)
    });
    let spoofed = || {
        let mut request = post("k", "");
        for (name, value) in [("hapax-attempt", 99), ("hapax-attempt", 98), ("hapax-fence", 99)] {
            request.headers_mut().append(name, value.into());
        }
        request
    };
    assert_eq!(send(&app, spoofed()).await.body, "1|1|k");
    assert_eq!(send(&app, spoofed()).await.body, "2|2|k");
    let mut without_key = spoofed();
    without_key.headers_mut().remove("idempotency-key");
    assert_eq!(send(&app, without_key).await.body, "||");
}

#[tokio::test]
async fn response_head_too_large_leaves_a_tombstone() {
    for (count, size) in [(40_000, 1), (100, 20_000)] {
        let app = app(memory().0, without_wait(), move || async move {
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
async fn tombstone_cannot_be_forged_by_a_handler() {
    for name in ["hapax-response-not-kept", "hapax-not-kept"] {
        let app = app(memory().0, without_wait(), move || async move { ([(name, "true")], "ok") });
        send(&app, post("k", "")).await;
        assert!(send(&app, post("k", "")).await.is_replay());
    }
}

#[tokio::test]
async fn replay_of_operator_value_drops_invalid_headers() {
    let (store, _) = memory();
    let config = without_wait();
    let settled = async |key: &str, status: u16, headers: Vec<(&str, &'static [u8])>| {
        let (key, ticket) = claim_elsewhere(&*store, &config, key).await;
        let headers = headers.into_iter().map(|(n, v)| (n.to_owned(), v.into())).collect();
        let stored = command::StoredResponse { status, headers, body: "by hand".into() };
        let _ = store.settle(&key, &ticket.token, stored.encode()).await.unwrap();
    };
    settled("fine", 200, vec![("Content-Length", b"999"), ("transfer-encoding", b"chunked")]).await;
    settled("status", 99, vec![]).await;
    settled("interim", 100, vec![]).await;
    settled("name", 200, vec![("a b", b"")]).await;
    settled("value", 200, vec![("a", b"\r\n")]).await;
    let app = app(store.clone(), config.clone(), || async { "ran" });
    let fine = send(&app, post("fine", "")).await;
    assert_eq!((&fine.body[..], fine.header("transfer-encoding")), (&b"by hand"[..], None));
    assert_eq!(fine.header("content-length"), Some("7"));
    for key in ["status", "interim", "name", "value"] {
        let answer = send(&app, post(key, "")).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (500, "internal"), "{key}");
    }
}

#[tokio::test]
async fn request_above_max_body_is_413_and_runs_nothing() {
    let config = without_wait().with_max_body(4);
    let (app, runs) = counting_app(memory().0, config);
    assert_eq!(send(&app, post("k", "12345")).await.code(), "payload-too-large");
    let chunks = futures_util::stream::iter(["123", "45"].map(Ok::<_, std::io::Error>));
    let streamed = post("k", "").map(|_| Body::from_stream(chunks));
    assert_eq!(send(&app, streamed).await.status, 413);
    assert_eq!(runs.count(), 0);
    assert_eq!(send(&app, post("k", "1234")).await.body, "1");
}

#[tokio::test]
async fn request_cut_short_runs_and_claims_nothing() {
    let app = app(memory().0, without_wait(), || async { "ran" });
    let broken = futures_util::stream::iter([Ok("half"), Err(std::io::Error::other("gone"))]);
    let answer = send(&app, post("k", "").map(|_| Body::from_stream(broken))).await;
    answer.assert_problem(400, "invalid-request");
    assert_eq!(answer.problem()["retryable"], true);
    assert_eq!(send(&app, post("k", "whole")).await.body, "ran");
}
