//! Which calls the client repeats, and which it never repeats, against the simulated LINE API.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hapax_http_client::{HttpClient, HttpError, get};
use hapax_line::simulator::{ApiEndpoint, ApiFault, SimulatedApi};
use hapax_line::{LineClient, LineMessage, SendError, SendStatus};
use hapax_testkit::{HttpStub, StubAnswer};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::time::Instant;
use uuid::Uuid;

const USER: &str = "Uf00d0123456789";
/// Long enough that no pending answer times out on a busy machine.
const GENEROUS: Duration = Duration::from_secs(60);
/// For answers that never come.
const SHORT: Duration = Duration::from_millis(200);

async fn line() -> (SimulatedApi, LineClient) {
    let api = SimulatedApi::start("127.0.0.1:0", "token").await.unwrap();
    let client = LineClient::new(&api.base(), "token").unwrap().timeout(GENEROUS);
    (api, client)
}

fn hello() -> [LineMessage; 1] {
    [LineMessage::text("您好 🥚")]
}

fn too_many(retry_after: Option<u64>) -> ApiFault {
    ApiFault::TooMany { retry_after }
}

#[tokio::test]
async fn a_reply_arrives_as_it_was_said() {
    let (api, client) = line().await;
    let messages = [LineMessage::text("一"), LineMessage::text("二")];
    assert_eq!(client.reply("r1", &messages).await, Ok(SendStatus::Accepted));
    let said = api.next(GENEROUS).await.unwrap();
    assert_eq!(said.reply_token.as_deref(), Some("r1"));
    assert_eq!(said.texts(), ["一", "二"]);
    assert_eq!((said.endpoint, said.retry_key), (ApiEndpoint::Reply, None));
    assert!(api.violations().is_empty());
}

#[tokio::test]
async fn a_token_works_once() {
    let (api, client) = line().await;
    client.reply("r1", &hello()).await.unwrap();
    assert_eq!(client.reply("r1", &hello()).await, Err(SendError::Refused(400)));
    assert_eq!(api.violations(), ["Invalid reply token"]);
    assert_eq!(api.accepted_calls().len(), 1);
}

#[tokio::test]
async fn a_reply_whose_fate_is_unknown_is_never_repeated() {
    let doubts = [ApiFault::Status(500), ApiFault::Status(503), ApiFault::Cut];
    for fault in doubts {
        let (api, client) = line().await;
        api.inject(ApiEndpoint::Reply, fault);
        assert_eq!(client.reply("r1", &hello()).await, Err(SendError::OutcomeUnknown), "{fault:?}");
        // A second attempt would have been accepted.
        assert!(api.accepted_calls().is_empty(), "{fault:?}");
    }
    for fault in [ApiFault::CutAfter, ApiFault::StatusAfter(500)] {
        let (api, client) = line().await;
        api.inject(ApiEndpoint::Reply, fault);
        assert_eq!(client.reply("r1", &hello()).await, Err(SendError::OutcomeUnknown), "{fault:?}");
        assert_eq!(api.accepted_calls().len(), 1, "{fault:?}");
        assert!(api.violations().is_empty(), "{fault:?}");
    }
}

#[tokio::test]
async fn a_reply_that_is_not_answered_in_time_is_uncertain() {
    let (api, client) = line().await;
    api.inject(ApiEndpoint::Reply, ApiFault::Hang);
    assert_eq!(client.timeout(SHORT).reply("r1", &hello()).await, Err(SendError::OutcomeUnknown));
    assert!(api.accepted_calls().is_empty());
}

#[tokio::test]
async fn a_reply_is_not_repeated_where_a_kept_connection_is_cut() {
    let (api, client) = line().await;
    client.reply("r1", &hello()).await.unwrap();
    api.inject(ApiEndpoint::Reply, ApiFault::CutAfter);
    assert_eq!(client.reply("r2", &hello()).await, Err(SendError::OutcomeUnknown));
    assert_eq!(api.accepted_calls().len(), 2);
    assert!(api.violations().is_empty());
}

#[tokio::test]
async fn a_reply_waits_for_as_long_as_line_asks_and_is_then_sent() {
    let (api, client) = line().await;
    api.inject(ApiEndpoint::Reply, too_many(None));
    api.inject(ApiEndpoint::Reply, too_many(Some(1)));
    let begun = Instant::now();
    assert_eq!(client.reply("r1", &hello()).await, Ok(SendStatus::Accepted));
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert!(api.violations().is_empty());
}

#[tokio::test]
async fn too_many_requests_thrice_is_not_now_and_costs_no_token() {
    let (api, client) = line().await;
    for endpoint in [ApiEndpoint::Reply, ApiEndpoint::Push] {
        (0..3).for_each(|_| api.inject(endpoint, too_many(None)));
    }
    assert_eq!(client.reply("r1", &hello()).await, Err(SendError::NotNow));
    assert_eq!(client.push(USER, &hello(), Uuid::new_v4()).await, Err(SendError::NotNow));
    assert!(api.accepted_calls().is_empty());
    assert_eq!(client.reply("r1", &hello()).await, Ok(SendStatus::Accepted));
    assert!(api.violations().is_empty());
}

#[tokio::test]
async fn a_pause_that_is_too_long_for_the_user_is_not_waited_for() {
    let (api, client) = line().await;
    api.inject(ApiEndpoint::Reply, too_many(Some(3)));
    assert_eq!(client.reply("r1", &hello()).await, Err(SendError::NotNow));
    // A second attempt would have been accepted.
    assert!(api.accepted_calls().is_empty());
}

#[tokio::test]
async fn a_push_is_repeated_with_its_key_and_accepted_once() {
    for (fault, expected) in [
        (ApiFault::Cut, SendStatus::Accepted),
        (ApiFault::Status(500), SendStatus::Accepted),
        (too_many(Some(1)), SendStatus::Accepted),
        (ApiFault::CutAfter, SendStatus::AlreadyAccepted),
        (ApiFault::StatusAfter(502), SendStatus::AlreadyAccepted),
    ] {
        let (api, client) = line().await;
        let key = Uuid::new_v4();
        api.inject(ApiEndpoint::Push, fault);
        assert_eq!(client.push(USER, &hello(), key).await, Ok(expected), "{fault:?}");
        let said = api.accepted_calls();
        assert_eq!(said.len(), 1, "{fault:?}");
        assert_eq!(said[0].to.as_deref(), Some(USER));
        assert_eq!(said[0].retry_key, Some(key.to_string()));
        assert!(api.violations().is_empty(), "{fault:?}");
    }
}

#[tokio::test]
async fn a_push_that_hangs_is_repeated_with_its_key() {
    let (api, client) = line().await;
    let client = client.timeout(Duration::from_secs(5));
    api.inject(ApiEndpoint::Push, ApiFault::Hang);
    // On a stalled machine the second attempt may time out as well, so any accepted status will do.
    client.push(USER, &hello(), Uuid::new_v4()).await.unwrap();
    assert_eq!(api.accepted_calls().len(), 1);
    assert!(api.violations().is_empty());
}

#[tokio::test]
async fn push_is_given_up_after_three_attempts() {
    let (api, client) = line().await;
    let key = Uuid::new_v4();
    for fault in [ApiFault::Cut, too_many(None), ApiFault::Status(503)] {
        api.inject(ApiEndpoint::Push, fault);
    }
    assert_eq!(client.push(USER, &hello(), key).await, Err(SendError::OutcomeUnknown));
    // A fourth attempt would have been accepted.
    assert!(api.accepted_calls().is_empty());

    // One attempt with an unknown outcome makes the outcome unknown, whatever later attempts say.
    api.inject(ApiEndpoint::Push, ApiFault::CutAfter);
    api.inject(ApiEndpoint::Push, too_many(Some(3600)));
    assert_eq!(client.push(USER, &hello(), key).await, Err(SendError::OutcomeUnknown));
    api.inject(ApiEndpoint::Push, ApiFault::CutAfter);
    api.inject(ApiEndpoint::Push, ApiFault::Status(403));
    assert_eq!(client.push(USER, &hello(), Uuid::new_v4()).await, Err(SendError::OutcomeUnknown));
    assert_eq!(client.push(USER, &hello(), key).await, Ok(SendStatus::AlreadyAccepted));
    assert!(api.violations().is_empty());
}

#[tokio::test]
async fn a_push_that_another_process_sent_was_sent_before() {
    let (api, client) = line().await;
    let key = Uuid::new_v4();
    assert_eq!(client.push(USER, &hello(), key).await, Ok(SendStatus::Accepted));
    let other = LineClient::new(&api.base(), "token").unwrap().timeout(GENEROUS);
    assert_eq!(other.push(USER, &hello(), key).await, Ok(SendStatus::AlreadyAccepted));
    assert_eq!(api.accepted_calls().len(), 1);
}

#[tokio::test]
async fn client_repeats_no_refused_call() {
    let (api, client) = line().await;
    for status in [400, 401, 403, 404] {
        api.inject(ApiEndpoint::Reply, ApiFault::Status(status));
        api.inject(ApiEndpoint::Push, ApiFault::Status(status));
        let refused = Err(SendError::Refused(status));
        assert_eq!(client.reply("r1", &hello()).await, refused);
        assert_eq!(client.push(USER, &hello(), Uuid::new_v4()).await, refused);
    }
    assert!(api.accepted_calls().is_empty());
    let stranger = LineClient::new(&api.base(), "wrong").unwrap().timeout(GENEROUS);
    assert_eq!(stranger.reply("r1", &hello()).await, Err(SendError::Refused(401)));
    assert_eq!(api.violations().len(), 1);
}

#[tokio::test]
async fn nothing_and_more_than_five_messages_are_not_sent() {
    let (api, client) = line().await;
    let six = vec![LineMessage::text("六"); 6];
    assert_eq!(client.reply("r1", &six).await, Err(SendError::MessageCount(6)));
    assert_eq!(client.push(USER, &[], Uuid::new_v4()).await, Err(SendError::MessageCount(0)));
    assert!(api.violations().is_empty());
    assert_eq!(client.reply("r1", &six[..5]).await, Ok(SendStatus::Accepted));
}

#[tokio::test]
async fn the_animation_is_asked_for_once_and_in_steps() {
    let (api, client) = line().await;
    assert_eq!(client.show_loading(USER, 7).await, Ok(()));
    assert_eq!(api.next(GENEROUS).await.unwrap().loading_seconds, Some(10));
    for (fault, expected) in [
        (too_many(None), SendError::NotNow),
        (ApiFault::Status(500), SendError::OutcomeUnknown),
        (ApiFault::Status(400), SendError::Refused(400)),
    ] {
        api.inject(ApiEndpoint::Loading, fault);
        assert_eq!(client.show_loading(USER, 20).await, Err(expected));
    }
    assert_eq!(api.accepted_calls().len(), 1);
}

#[tokio::test]
async fn client_without_a_server_gets_not_now() {
    let base = format!("http://127.0.0.1:{}", hapax_testkit::free_port());
    let client = LineClient::new(&base, "token").unwrap();
    assert_eq!(client.reply("r1", &hello()).await, Err(SendError::NotNow));
    assert_eq!(client.push(USER, &hello(), Uuid::new_v4()).await, Err(SendError::NotNow));
    assert_eq!(client.show_loading(USER, 5).await, Err(SendError::NotNow));
    let nowhere = get(base.parse().unwrap());
    let refused = HttpClient::new().call(nowhere, GENEROUS).await.unwrap_err();
    assert_eq!(refused, HttpError::NotSent(ErrorKind::ConnectionRefused));
}

#[tokio::test]
async fn client_without_connection_tries_messages_three_times() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // A server without TLS ends the handshake, and so the connection, before a request is sent.
    let base = format!("https://{}", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let counting = connections.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counting.fetch_add(1, Ordering::SeqCst);
            let _ = stream.write_all(b"no TLS here\r\n").await;
        }
    });
    let client = LineClient::new(&base, "token").unwrap().timeout(GENEROUS);
    assert_eq!(client.reply("r1", &hello()).await, Err(SendError::NotNow));
    reach(&connections, 3).await;
    assert_eq!(client.push(USER, &hello(), Uuid::new_v4()).await, Err(SendError::NotNow));
    reach(&connections, 6).await;
    assert_eq!(client.show_loading(USER, 5).await, Err(SendError::NotNow));
    reach(&connections, 7).await;
}

/// Waits until the count reaches `expected`, and asserts that it is not higher.
async fn reach(count: &AtomicUsize, expected: usize) {
    let reached = async {
        while count.load(Ordering::SeqCst) < expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let _ = tokio::time::timeout(GENEROUS, reached).await;
    assert_eq!(count.load(Ordering::SeqCst), expected);
}

/// The base URL of a server that answers each request with this text.
fn answering(text: String) -> String {
    HttpStub::start(move |_| StubAnswer::RespondAndClose(text.clone())).url("")
}

#[tokio::test]
async fn client_trusts_the_status_of_a_cut_or_long_body() {
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_owned();
    let long = "HTTP/1.1 200 OK\r\ncontent-length: 2000000\r\n\r\n";
    for answer in [cut, long.to_owned() + &" ".repeat(2_000_000)] {
        let base = answering(answer);
        let unreadable = HttpClient::new().call(get(base.parse().unwrap()), GENEROUS).await;
        assert_eq!(unreadable.unwrap_err(), HttpError::Unreadable(hyper::StatusCode::OK));
        let client = LineClient::new(&base, "token").unwrap().timeout(GENEROUS);
        assert_eq!(client.reply("r1", &hello()).await, Ok(SendStatus::Accepted));
    }
}

#[tokio::test]
async fn http_client_reports_a_broken_answer_as_unknown() {
    for answer in ["", "HTTP/1.1 200", "no HTTP\r\n\r\n"] {
        let base = answering(answer.into());
        let reply = HttpClient::new().call(get(base.parse().unwrap()), GENEROUS).await;
        assert_eq!(reply.unwrap_err(), HttpError::Unknown, "{answer}");
    }
}
