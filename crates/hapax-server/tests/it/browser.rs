//! Pages of other origins in a real browser: what they may read of the proxy and of event streams.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use hapax_testkit::Browser;
use hyper::{HeaderMap, Method, StatusCode, Uri};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::proxy_support::upstream::{Log, Seen};
use crate::proxy_support::{Proxy, Upstream, eventually};
use crate::support::server::Setup;

/// A site with one empty page.
async fn site() -> Upstream {
    Upstream::with(Router::new().route("/", get(async || Html("<!doctype html>")))).await
}

/// An upstream that every origin may read, preflights included; calls of `/gated` wait for the gate.
async fn open_upstream(gate: Arc<Notify>) -> Upstream {
    let answer =
        async move |State(log): State<Log>, method: Method, uri: Uri, headers: HeaderMap| {
            let cors = [
                ("access-control-allow-origin", "*"),
                ("access-control-allow-headers", "idempotency-key"),
            ];
            if method == Method::OPTIONS {
                return (StatusCode::NO_CONTENT, cors, "").into_response();
            }
            log.note(Seen { uri: uri.clone(), headers, body: Default::default() });
            if uri.path() == "/gated" {
                gate.notified().await;
            }
            (StatusCode::CREATED, cors, "made").into_response()
        };
    let routes = Router::new().route("/orders", axum::routing::any(answer.clone()));
    Upstream::with(routes.route("/gated", axum::routing::any(answer))).await
}

/// JavaScript that posts a body with a key and tells what the page can read of the answer.
fn post(url: &str, key: &str, body: &str) -> String {
    format!(
        "fetch('{url}', {{ method: 'POST', headers: {{ 'Idempotency-Key': '{key}' }}, body: '{body}' }})
            .then(async answer => ({{ status: answer.status, body: await answer.text() }}),
                error => ({{ failure: String(error) }}))"
    )
}

fn is_unreadable(seen: &Value) -> bool {
    seen["failure"].as_str().is_some_and(|failure| failure.starts_with("TypeError"))
}

/// The status and the problem's code that a page reads.
fn problem(seen: &Value) -> (u64, String) {
    let body: Value = serde_json::from_str(seen["body"].as_str().unwrap_or("null")).unwrap();
    let kind = body["type"].as_str().unwrap_or_default();
    (seen["status"].as_u64().unwrap_or(0), kind.rsplit('/').next().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_46_browser_reads_problems_where_its_origin_is_allowed() {
    let (site, gate) = (site().await, Arc::new(Notify::new()));
    let upstream = open_upstream(gate.clone()).await;
    let browser = Browser::start();
    browser.open(&site.url());
    let ask = |script: &str| browser.run(&format!("return {script}"));
    for (origins, is_allowed) in [(site.url(), true), ("https://app.example".to_owned(), false)] {
        let flags = ["--wait", "0s", "--cors-origins", &origins];
        let proxy = Proxy::start(&upstream.url(), "memory:", &flags);
        let orders = proxy.url("/orders");
        let made = json!({ "status": 201, "body": "made" });
        assert_eq!(ask(&post(&orders, "k", "a")), made, "the upstream's own answer");
        let reused = ask(&post(&orders, "k", "b"));

        let (gated, before) = (proxy.url("/gated"), upstream.log.count());
        ask(&format!("(window.first = {}, null)", post(&gated, "k", "a")));
        eventually("the first one runs", || upstream.log.count() == before + 1);
        let in_progress = ask(&post(&gated, "k", "a"));
        gate.notify_one();
        assert_eq!(ask("window.first"), made);
        match is_allowed {
            true => {
                assert_eq!(problem(&reused), (422, "key-reused".into()), "{reused}");
                assert_eq!(problem(&in_progress), (409, "in-progress".into()), "{in_progress}");
            }
            false => {
                assert!(is_unreadable(&reused), "{reused}");
                assert!(is_unreadable(&in_progress), "{in_progress}");
            }
        }
    }
}

/// Opens a stream without and one with `?event=message`, each with `onmessage` and a handler of the stage.
const FOLLOW: &str = "
    window.seen = {};
    for (const query of ['', '?event=message']) {
        const stream = new EventSource(URL + query), seen = { message: [], named: [] };
        const show = event => `${event.lastEventId} ${JSON.parse(event.data).seq}`;
        stream.onmessage = event => seen.message.push(show(event));
        stream.addEventListener('vision', event => seen.named.push(show(event)));
        window.seen[query || 'named'] = seen;
    }";

#[tokio::test(flavor = "multi_thread")]
async fn fault_46_onmessage_fires_with_event_message() {
    let site = site().await;
    let server = Setup::memory().flags(&["--sse-origins", &site.url()]).start();
    let (_, epoch) = server.publish("j1", "vision", 1);
    let browser = Browser::start();
    browser.open(&site.url());
    let url = format!("'{}/v1/jobs/scan/j1/events'", server.url());
    browser.run(&FOLLOW.replace("URL", &url));
    let (one, both) = ([format!("{epoch}-1 1")], [1, 2].map(|n| format!("{epoch}-{n} {n}")));
    let shows = |events: &[String]| {
        eventually("both streams show the events", || {
            let seen = browser.run("return window.seen");
            seen == json!({
                "named": { "message": [], "named": events },
                "?event=message": { "message": events, "named": [] },
            })
        });
    };
    shows(&one);
    // One that is stored before the streams begin, and one that comes while they run.
    server.publish("j1", "vision", 2);
    shows(&both);
}
