//! The simulated LINE API refuses the calls that LINE refuses; otherwise the tests that rely on it
//! would prove little.

use std::time::Duration;

use hapax_http_client::{FullResponse, HttpClient};
use hapax_line::simulator::{ApiEndpoint, ApiFault, SimulatedApi};
use hapax_line::{LineClient, LineMessage, SendError, SendStatus};
use serde_json::{Value, json};
use uuid::Uuid;

const LIMIT: Duration = Duration::from_secs(60);
const PUSH: &str = "/v2/bot/message/push";
const REPLY: &str = "/v2/bot/message/reply";
const LOADING: &str = "/v2/bot/chat/loading/start";

async fn post(
    api: &SimulatedApi,
    path: &str,
    headers: &[(&'static str, &str)],
    body: &Value,
) -> FullResponse {
    let mut request =
        hapax_http_client::post(format!("{}{path}", api.base()).parse().unwrap(), body);
    request.headers_mut().insert("authorization", "Bearer token".parse().unwrap());
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    let reply = HttpClient::new().call(request, LIMIT).await.unwrap();
    assert!(reply.headers.contains_key("x-line-request-id"));
    reply
}

async fn refuses(path: &str, headers: &[(&'static str, &str)], body: Value, status: u16) {
    let api = SimulatedApi::start("127.0.0.1:0", "token").await.unwrap();
    let reply = post(&api, path, headers, &body).await;
    assert_eq!(reply.status.as_u16(), status, "{body}");
    assert!(reply.json::<Value>().unwrap()["message"].is_string());
    assert_eq!(api.violations().len(), 1);
    assert!(api.accepted_calls().is_empty());
}

fn push(messages: Value) -> Value {
    json!({ "to": "Uf00d", "messages": messages })
}

fn text(text: impl Into<String>) -> Value {
    json!({ "type": "text", "text": text.into() })
}

#[tokio::test]
async fn simulator_refuses_what_line_would_refuse() {
    let good = || push(json!([text("蛋 🥚")]));
    refuses("/v2/bot/message/multicast", &[], good(), 404).await;
    refuses(PUSH, &[("authorization", "Bearer other")], good(), 401).await;
    refuses(PUSH, &[("content-type", "text/plain")], good(), 415).await;
    refuses(PUSH, &[("x-line-retry-key", "1234")], good(), 400).await;
    refuses(PUSH, &[], json!({ "messages": [text("a")] }), 400).await;
    refuses(PUSH, &[], push(json!([])), 400).await;
    refuses(PUSH, &[], push(json!(vec![text("a"); 6])), 400).await;
    refuses(PUSH, &[], push(json!([text("")])), 400).await;
    refuses(PUSH, &[], push(json!([text("🥚".repeat(2501))])), 400).await;
    refuses(PUSH, &[], push(json!([{ "text": "a" }])), 400).await;
    let reply = json!({ "replyToken": "r", "messages": [text("a")] });
    refuses(REPLY, &[("x-line-retry-key", &Uuid::new_v4().to_string())], reply, 400).await;
    refuses(LOADING, &[], json!({ "chatId": "Uf00d", "loadingSeconds": 7 }), 400).await;
    refuses(LOADING, &[], json!({ "chatId": "Cgroup", "loadingSeconds": 5 }), 400).await;
}

#[tokio::test]
async fn simulator_accepts_what_line_accepts() {
    let api = SimulatedApi::start("127.0.0.1:0", "token").await.unwrap();
    let longest = push(json!(vec![text("🥚".repeat(2500)); 5]));
    assert_eq!(post(&api, PUSH, &[], &longest).await.status, 200);
    let loading = json!({ "chatId": "Uf00d", "loadingSeconds": 60 });
    assert_eq!(post(&api, LOADING, &[], &loading).await.status, 202);
    assert!(api.violations().is_empty());
    assert_eq!(api.next(LIMIT).await.unwrap().messages.len(), 5);
    assert_eq!(api.next(LIMIT).await.unwrap().loading_seconds, Some(60));
    assert!(api.next(Duration::ZERO).await.is_none());
}

#[tokio::test]
async fn simulator_tells_the_quota_and_counts_pushes() {
    let api = SimulatedApi::start("127.0.0.1:0", "token").await.unwrap();
    let line = LineClient::new(&api.base(), "token").unwrap();
    let quota = line.quota().await.unwrap();
    assert_eq!((quota.limit, quota.used), (None, 0));
    api.set_monthly_limit(500);
    assert_eq!(post(&api, PUSH, &[], &push(json!([text("a"), text("b")]))).await.status, 200);
    let quota = line.quota().await.unwrap();
    assert_eq!((quota.limit, quota.used), (Some(500), 1));
    assert!(api.violations().is_empty());
    let stranger = LineClient::new(&api.base(), "other").unwrap();
    assert_eq!(stranger.quota().await, Err(SendError::Refused(401)));
}

#[tokio::test]
async fn a_retry_key_is_accepted_once_and_names_the_first_request() {
    let api = SimulatedApi::start("127.0.0.1:0", "token").await.unwrap();
    let key = Uuid::new_v4().to_string();
    let headers = [("x-line-retry-key", key.as_str())];
    let first = post(&api, PUSH, &headers, &push(json!([text("a")]))).await;
    let again = post(&api, PUSH, &headers, &push(json!([text("a")]))).await;
    assert_eq!((first.status.as_u16(), again.status.as_u16()), (200, 409));
    assert_eq!(again.headers["x-line-accepted-request-id"], first.headers["x-line-request-id"]);
    assert!(api.violations().is_empty());
    let other = post(&api, PUSH, &headers, &push(json!([text("b")]))).await;
    assert_eq!(other.status, 409);
    assert_eq!(api.violations(), ["A retry key came again with another message"]);
    assert_eq!(api.accepted_calls().len(), 1);
}

#[tokio::test]
async fn a_reply_that_comes_again_after_no_answer_is_a_violation() {
    let api = SimulatedApi::start("127.0.0.1:0", "token").await.unwrap();
    let client = LineClient::new(&api.base(), "token").unwrap().timeout(LIMIT);
    api.inject(ApiEndpoint::Reply, ApiFault::Cut);
    client.reply("r1", &[LineMessage::text("a")]).await.unwrap_err();
    assert!(api.violations().is_empty());
    assert_eq!(client.reply("r1", &[LineMessage::text("a")]).await, Ok(SendStatus::Accepted));
    assert_eq!(api.violations().len(), 1);
}
