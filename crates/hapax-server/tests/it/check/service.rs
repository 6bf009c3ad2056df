//! Services to be checked: a right one, which is the layer around a handler that counts, and wrong ones,
//! each with one fault before or behind that layer.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use example_check_target::routes;
use hapax::memory::MemoryStore;
use hapax_http::{CallerScope, FingerprintOf, IdempotencyConfig, IdempotencyLayer, Verdict};
use hyper::body::Body as _;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, SET_COOKIE};
use hyper::{StatusCode, Uri};
use tokio::net::TcpListener;

/// The faults that are planted, each with the check that finds it.
pub(super) const FAULTS: &[(Fault, &str)] = &[
    (Fault::ForgetsAnswers, "replay"),
    (Fault::DropsHeaders, "replay-headers"),
    (Fault::ReplaysCookies, "replay-headers"),
    (Fault::HasNoMarker, "replay-marker"),
    (Fault::HasNoExpiry, "replay-expiry"),
    (Fault::ChecksThenActs, "race"),
    (Fault::FailsWaiters, "race-answers"),
    (Fault::ChecksThenActs, "in-flight"),
    (Fault::ChecksThenActs, "client-leaves"),
    (Fault::IgnoresBody, "other-body"),
    (Fault::IgnoresBody, "other-body-in-flight"),
    (Fault::IgnoresQuery, "other-query"),
    (Fault::ChecksThenActs, "other-path"),
    (Fault::IgnoresCaller, "other-caller"),
    (Fault::OneKeyForAll, "without-key"),
    (Fault::IgnoresLetterCase, "key-letter-case"),
    (Fault::KeepsQuotes, "key-quoted"),
    (Fault::RefusesLongKeys, "key-of-255-bytes"),
    (Fault::TruncatesKeys, "key-too-long"),
    (Fault::IgnoresEmptyKey, "key-empty"),
    (Fault::TakesFirstKey, "key-doubled"),
    (Fault::ChecksThenActs, "key-not-ascii"),
    (Fault::RerunsEmpty, "empty-answer"),
    (Fault::RerunsNoContent, "no-content"),
    (Fault::ReplaysText, "binary-answer"),
    (Fault::TruncatesReplays, "large-answer"),
    (Fault::RerunsHuge, "huge-answer"),
    (Fault::RerunsStreams, "streamed-answer"),
    (Fault::RerunsRedirects, "redirect"),
    (Fault::KeepsServerErrors, "server-error-not-kept"),
    (Fault::KeepsRefusals, "refusals-not-kept"),
    (Fault::RerunsClientErrors, "client-error"),
    (Fault::RerunsBadGateway, "bad-gateway"),
    (Fault::RefusesInPlainText, "error-format"),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    None,
    ForgetsAnswers,
    DropsHeaders,
    ReplaysCookies,
    HasNoMarker,
    HasNoExpiry,
    /// Looks for an answer, runs, and stores the answer, as three steps.
    ChecksThenActs,
    /// Answers 502 to those who wait.
    FailsWaiters,
    IgnoresBody,
    IgnoresQuery,
    IgnoresCaller,
    /// Takes requests without a key for requests with the same one.
    OneKeyForAll,
    IgnoresLetterCase,
    /// Takes the quotes around a key for a part of it.
    KeepsQuotes,
    /// Refuses keys of more than 128 bytes.
    RefusesLongKeys,
    TruncatesKeys,
    IgnoresEmptyKey,
    TakesFirstKey,
    RerunsEmpty,
    RerunsNoContent,
    ReplaysText,
    /// Keeps the first 65,535 bytes of an answer, as a column of some databases does.
    TruncatesReplays,
    RerunsHuge,
    RerunsStreams,
    RerunsRedirects,
    KeepsServerErrors,
    KeepsRefusals,
    RerunsClientErrors,
    RerunsBadGateway,
    RefusesInPlainText,
    /// Keeps answers for 3 s instead of a day.
    KeepsForThreeSeconds,
    /// Not faults by all rules.
    RefusesKeysWith422,
    RefusesReuseWith409,
    IgnoresKeysNotAscii,
    /// Refuses everything, the count too, without `Authorization`. Not a fault.
    WantsCaller,
    WantsAndIgnoresCaller,
}

/// Serves the routes behind the layer with this fault; ends with the test's runtime. Returns its address.
pub(super) async fn start(fault: Fault) -> String {
    let config = config(fault, IdempotencyConfig::new());
    let layer = IdempotencyLayer::new(Arc::new(MemoryStore::default())).with_config(config);
    let app = match fault {
        Fault::ChecksThenActs => {
            routes().layer(from_fn_with_state(Answers::default(), check_then_act))
        }
        _ => routes().layer(from_fn_with_state(fault, behind)).layer(layer),
    };
    serve(app.layer(from_fn_with_state(fault, before))).await
}

pub(super) async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

fn config(fault: Fault, config: IdempotencyConfig) -> IdempotencyConfig {
    let verdict = |config: IdempotencyConfig, status: u16, verdict| {
        config.with_verdict(StatusCode::from_u16(status).expect("a status"), verdict)
    };
    match fault {
        Fault::IgnoresBody => config.with_fingerprint(FingerprintOf::Only(Vec::new())),
        Fault::IgnoresCaller | Fault::WantsAndIgnoresCaller => {
            config.with_scope(CallerScope::Single)
        }
        Fault::KeepsForThreeSeconds => config.with_retention(Duration::from_secs(3)),
        Fault::RerunsNoContent => verdict(config, 204, Verdict::GiveBack),
        Fault::RerunsRedirects => verdict(config, 303, Verdict::GiveBack),
        Fault::KeepsServerErrors => verdict(config, 500, Verdict::Keep),
        Fault::KeepsRefusals => verdict(config, 429, Verdict::Keep),
        Fault::RerunsClientErrors => verdict(config, 404, Verdict::GiveBack),
        Fault::RerunsBadGateway => verdict(config, 502, Verdict::GiveBack),
        Fault::FailsWaiters => config.with_wait(Duration::ZERO),
        _ => config,
    }
}

/// Faults outside the layer: they change the key that it gets to see, or its answers.
async fn before(State(fault): State<Fault>, mut request: Request, next: Next) -> Response {
    let key = request.headers().get("idempotency-key").cloned();
    let headers = request.headers_mut();
    let wants_caller = matches!(fault, Fault::WantsCaller | Fault::WantsAndIgnoresCaller);
    if wants_caller && !headers.contains_key(AUTHORIZATION) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    match (fault, key) {
        (Fault::IgnoresKeysNotAscii, Some(key)) if !key.as_bytes().is_ascii() => {
            headers.remove("idempotency-key");
        }
        (Fault::ForgetsAnswers, _) => drop(headers.remove("idempotency-key")),
        (Fault::OneKeyForAll, None) => {
            headers.insert("idempotency-key", HeaderValue::from_static("no-key"));
        }
        (Fault::IgnoresEmptyKey, Some(key)) if key.is_empty() => {
            headers.remove("idempotency-key");
        }
        (Fault::TakesFirstKey, Some(key)) => drop(headers.insert("idempotency-key", key)),
        (Fault::KeepsQuotes, Some(key)) => {
            let other = key.to_str().expect("text").replace('"', "quote");
            headers.insert("idempotency-key", other.parse().expect("a value"));
        }
        (Fault::RefusesLongKeys, Some(key)) if key.len() > 128 => {
            return StatusCode::BAD_REQUEST.into_response();
        }
        (Fault::TruncatesKeys, Some(key)) if key.len() > 255 => {
            let short = HeaderValue::from_bytes(&key.as_bytes()[..255]).expect("a value");
            headers.insert("idempotency-key", short);
        }
        (Fault::IgnoresLetterCase, Some(key)) => {
            let lower = key.as_bytes().to_ascii_lowercase();
            headers.insert("idempotency-key", HeaderValue::from_bytes(&lower).expect("a value"));
        }
        (Fault::IgnoresQuery, _) => {
            let path = request.uri().path().parse::<Uri>().expect("a path");
            *request.uri_mut() = path;
        }
        _ => {}
    }
    let mut answer = next.run(request).await;
    let is_replay = answer.headers().contains_key("idempotent-replayed");
    let status = answer.status();
    let headers = answer.headers_mut();
    match fault {
        Fault::DropsHeaders if is_replay => drop(headers.remove("x-run")),
        Fault::ReplaysCookies => {
            headers.insert(SET_COOKIE, HeaderValue::from_static("session=1"));
        }
        Fault::HasNoMarker => drop(headers.remove("idempotent-replayed")),
        Fault::HasNoExpiry => drop(headers.remove("idempotency-expires")),
        Fault::FailsWaiters if status == StatusCode::CONFLICT => {
            return StatusCode::BAD_GATEWAY.into_response();
        }
        Fault::RefusesKeysWith422 if status == StatusCode::BAD_REQUEST => {
            *answer.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
        }
        Fault::RefusesReuseWith409 if status == StatusCode::UNPROCESSABLE_ENTITY => {
            *answer.status_mut() = StatusCode::CONFLICT;
        }
        Fault::RefusesInPlainText if status.is_client_error() => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        }
        Fault::ReplaysText if is_replay => {
            let as_text = |bytes: Bytes| String::from_utf8_lossy(&bytes).into_owned().into();
            return with_body_changed(answer, as_text).await;
        }
        Fault::TruncatesReplays if is_replay => {
            return with_body_changed(answer, |bytes| bytes.slice(..bytes.len().min(65_535))).await;
        }
        _ => {}
    }
    answer
}

async fn with_body_changed(answer: Response, change: impl FnOnce(Bytes) -> Bytes) -> Response {
    let (mut head, body) = answer.into_parts();
    head.headers.remove("content-length");
    let bytes = to_bytes(body, usize::MAX).await.expect("a body");
    (head.status, head.headers, change(bytes)).into_response()
}

/// Faults inside the layer: the handler says something wrong about its own answer.
async fn behind(State(fault): State<Fault>, request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let is_rerun = match (fault, answer.body().size_hint().exact()) {
        (Fault::RerunsHuge, Some(length)) => length > 1 << 20,
        (Fault::RerunsEmpty, Some(length)) => length == 0,
        (Fault::RerunsStreams, length) => length.is_none(),
        _ => false,
    };
    if is_rerun {
        answer.extensions_mut().insert(Verdict::GiveBack);
    }
    answer
}

type Answers = Arc<std::sync::Mutex<std::collections::HashMap<Vec<u8>, (StatusCode, Bytes)>>>;

async fn check_then_act(State(answers): State<Answers>, request: Request, next: Next) -> Response {
    let Some(key) = request.headers().get("idempotency-key").map(|key| key.as_bytes().to_vec())
    else {
        return next.run(request).await;
    };
    if let Some(answer) = answers.lock().expect("the map").get(&key).cloned() {
        return answer.into_response();
    }
    let (head, body) = next.run(request).await.into_parts();
    let answer = (head.status, to_bytes(body, usize::MAX).await.expect("a body"));
    answers.lock().expect("the map").insert(key, answer.clone());
    answer.into_response()
}
