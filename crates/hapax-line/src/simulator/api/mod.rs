//! LINE's Messaging API, simulated on loopback.

mod check;
mod serve;
mod state;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use self::state::ApiState;

/// LINE's API as a local server, which stops when it is dropped.
///
/// The server accepts and refuses the same calls as LINE, and records both. For tests and for
/// development.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use hapax_line::simulator::SimulatedApi;
/// use hapax_line::{LineClient, LineMessage, SendStatus};
///
/// let api = SimulatedApi::start("127.0.0.1:0", "access-token").await.unwrap();
/// let line = LineClient::new(&api.base(), "access-token").unwrap();
/// assert_eq!(line.reply("token", &[LineMessage::text("你好")]).await, Ok(SendStatus::Accepted));
/// assert_eq!(api.accepted_calls()[0].texts(), ["你好"]);
///
/// // A token works once.
/// assert!(line.reply("token", &[LineMessage::text("你好")]).await.is_err());
/// assert_eq!(api.violations().len(), 1);
/// # });
/// ```
pub struct SimulatedApi {
    address: SocketAddr,
    state: Arc<ApiState>,
    serving: JoinHandle<()>,
}

/// An endpoint of LINE's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApiEndpoint {
    /// Replies to an event, by its reply token.
    Reply,
    /// Pushes to a chat.
    Push,
    /// Shows the loading animation.
    Loading,
}

/// A fault that is injected into a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiFault {
    /// The call is refused with this status.
    Status(u16),
    /// The call is processed, and answered with this status.
    StatusAfter(u16),
    /// The call is refused with 429.
    TooMany {
        /// How many seconds the caller is asked to wait.
        retry_after: Option<u64>,
    },
    /// The call is neither processed nor ever answered.
    Hang,
    /// The call is not processed, and the connection is closed.
    Cut,
    /// The call is processed, and the connection is closed without an answer.
    CutAfter,
}

/// A call that was accepted.
#[derive(Clone, Debug)]
pub struct AcceptedCall {
    /// The endpoint that was called.
    pub endpoint: ApiEndpoint,
    /// The token of a reply.
    pub reply_token: Option<String>,
    /// The chat of a push, or the chat that shows the animation.
    pub to: Option<String>,
    /// The retry key of a push.
    pub retry_key: Option<String>,
    /// The messages, as JSON.
    pub messages: Vec<Value>,
    /// How long the animation is shown.
    pub loading_seconds: Option<u64>,
}

impl SimulatedApi {
    /// Listens at an address, such as `127.0.0.1:0`, and accepts this access token.
    pub async fn start(listen: &str, access_token: &str) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(ApiState::new(access_token));
        let serving = tokio::spawn(serve::serve(listener, state.clone()));
        Ok(Self { address, state, serving })
    }

    /// The base URL of the server: `http://127.0.0.1:PORT`.
    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All accepted calls, in order.
    pub fn accepted_calls(&self) -> Vec<AcceptedCall> {
        self.state.calls().accepted.clone()
    }

    /// Waits for the next accepted call that this method has not returned yet; `None` if none comes
    /// within this time.
    pub async fn next(&self, within: Duration) -> Option<AcceptedCall> {
        let unreturned = tokio::time::timeout(within, self.state.unreturned.acquire());
        unreturned.await.ok()?.ok()?.forget();
        let mut calls = self.state.calls();
        calls.returned += 1;
        calls.accepted.get(calls.returned - 1).cloned()
    }

    /// Violations of LINE's rules: a reply token that was used twice, or again after an unknown
    /// outcome; a wrong access token; messages that LINE would refuse; a retry key with another
    /// message. They contain no ids.
    pub fn violations(&self) -> Vec<String> {
        self.state.calls().violations.clone()
    }

    /// Limits the pushes of a month, as LINE tells bots that ask; it does not refuse them. Without a limit by default.
    pub fn set_monthly_limit(&self, limit: impl Into<Option<u64>>) {
        self.state.calls().monthly_limit = limit.into();
    }

    /// Makes the next call of this endpoint fail. Several faults apply to the next calls, in order.
    pub fn inject(&self, endpoint: ApiEndpoint, fault: ApiFault) {
        self.state.calls().faults.entry(endpoint).or_default().push_back(fault);
    }
}

/// Aborts the accept loop, which owns every connection.
impl Drop for SimulatedApi {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl AcceptedCall {
    /// The texts of the text messages.
    pub fn texts(&self) -> Vec<String> {
        let texts = self.messages.iter().filter_map(|message| message["text"].as_str());
        texts.map(str::to_owned).collect()
    }
}
