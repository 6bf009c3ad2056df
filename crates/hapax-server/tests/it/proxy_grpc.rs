//! gRPC through the proxy, over HTTP/2 on both sides: `grpc-status` decides what is kept.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http_body_util::{BodyExt, Full};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use crate::proxy_support::client::{Pooled, keyed};
use crate::proxy_support::upstream::{Log, Seen};
use crate::proxy_support::{Proxy, Upstream, soon};

/// A message in its gRPC frame: not compressed, five bytes long.
const MESSAGE: &[u8] = b"\0\0\0\0\x05hello";

/// Answers with this status in the headers, without a body, or in the trailers after one.
async fn call(
    State(log): State<Log>,
    Path((place, code)): Path<(String, String)>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let run = log.note(Seen { uri, headers, body });
    let mut status = HeaderMap::new();
    status.insert("grpc-status", HeaderValue::from_str(&code).unwrap());
    status.insert("grpc-message", HeaderValue::from_str(&format!("run {run}")).unwrap());
    let content_type = [("content-type", "application/grpc")];
    if place == "headers" {
        return (content_type, status, Body::empty()).into_response();
    }
    let body = Full::new(Bytes::from_static(MESSAGE)).with_trailers(async { Some(Ok(status)) });
    (content_type, Body::new(body)).into_response()
}

/// A response with its trailers.
#[derive(Debug)]
struct GrpcReply {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    trailers: HeaderMap,
}

impl GrpcReply {
    fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    /// `grpc-status` and `grpc-message`, wherever they are.
    fn outcome(&self) -> (&str, &str) {
        let text = |name| {
            let value = self.headers.get(name).or_else(|| self.trailers.get(name));
            value.map_or("", |value| value.to_str().unwrap())
        };
        (text("grpc-status"), text("grpc-message"))
    }
}

async fn ask(client: &Pooled, proxy: &Proxy, path: &str) -> GrpcReply {
    let request = keyed(proxy.url(path), path.rsplit('/').next().unwrap())
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let request = request.body(Full::from(MESSAGE)).unwrap();
    let (head, body) = soon("a head", client.request(request)).await.unwrap().into_parts();
    let whole = soon("the trailers", body.collect()).await.unwrap();
    let trailers = whole.trailers().cloned().unwrap_or_default();
    GrpcReply { status: head.status, headers: head.headers, body: whole.to_bytes(), trailers }
}

async fn grpc_upstream() -> (Upstream, Proxy, Pooled) {
    let upstream = Upstream::with(Router::new().route("/{place}/{code}", post(call))).await;
    let proxy = Proxy::start(&upstream.url(), "memory:", &["--upstream-http2"]);
    (upstream, proxy, Client::builder(TokioExecutor::new()).http2_only(true).build_http())
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_26_grpc_errors_are_kept_as_http_would() {
    let (upstream, proxy, client) = grpc_upstream().await;
    for place in ["headers", "trailers"] {
        // NOT_FOUND is 404, which is kept; UNAVAILABLE is 503 and PERMISSION_DENIED 403, which are not.
        for (code, is_kept) in [("0", true), ("5", true), ("14", false), ("7", false)] {
            let (path, before) = (format!("/{place}/{code}"), upstream.log.count());
            let first = ask(&client, &proxy, &path).await;
            let second = ask(&client, &proxy, &path).await;
            assert_eq!((first.status, second.status), (StatusCode::OK, StatusCode::OK), "{path}");
            assert_eq!(first.outcome(), (code, &*format!("run {}", before + 1)));
            let runs = if is_kept { 1 } else { 2 };
            assert_eq!(second.outcome(), (code, &*format!("run {}", before + runs)), "{path}");
            assert_eq!((first.is_replay(), second.is_replay()), (false, is_kept), "{path}");
            assert_eq!(upstream.log.count(), before + runs, "{path}");
        }
        // DEADLINE_EXCEEDED is 504: it may have run.
        let (path, before) = (format!("/{place}/4"), upstream.log.count());
        assert_eq!(ask(&client, &proxy, &path).await.outcome().0, "4");
        let second = ask(&client, &proxy, &path).await;
        assert_eq!(second.status, StatusCode::CONFLICT, "{path}");
        assert!(String::from_utf8_lossy(&second.body).contains("outcome-unknown"), "{second:?}");
        assert_eq!(upstream.log.count(), before + 1, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_26_grpc_success_is_replayed_with_its_trailers() {
    let (upstream, proxy, client) = grpc_upstream().await;
    let first = ask(&client, &proxy, "/trailers/0").await;
    let second = ask(&client, &proxy, "/trailers/0").await;
    assert!(second.is_replay() && !first.is_replay());
    for reply in [&first, &second] {
        assert_eq!(reply.body, MESSAGE);
        assert_eq!(reply.trailers["grpc-status"], "0");
        assert_eq!(reply.trailers["grpc-message"], "run 1");
        assert!(!reply.headers.contains_key("grpc-status"), "{reply:?}");
        assert_eq!(reply.headers["content-type"], "application/grpc");
    }
    assert_eq!(upstream.log.count(), 1);
    assert_eq!(upstream.log.last().header("te"), Some("trailers"));
}
