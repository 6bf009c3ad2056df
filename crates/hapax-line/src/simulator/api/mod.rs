//! LINE's Messaging API on loopback.

mod check;
mod serve;
mod state;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use self::state::State;

/// LINE's API as a server of its own; it stops when it is dropped.
///
/// It takes what LINE would take and refuses what LINE would refuse, and it remembers both, for as
/// long as it lives: it is for tests and for a desk.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use hapax_line::simulator::Api;
/// use hapax_line::{LineClient, Message, Sent};
///
/// let api = Api::start("127.0.0.1:0", "access-token").await.unwrap();
/// let line = LineClient::new(&api.base(), "access-token").unwrap();
/// assert_eq!(line.reply("token", &[Message::text("你好")]).await, Ok(Sent::Accepted));
/// assert_eq!(api.said()[0].texts(), ["你好"]);
///
/// // A token works once.
/// assert!(line.reply("token", &[Message::text("你好")]).await.is_err());
/// assert_eq!(api.violations().len(), 1);
/// # });
/// ```
pub struct Api {
    address: SocketAddr,
    state: Arc<State>,
    serving: JoinHandle<()>,
}

/// What of LINE's API is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// Answers an event, by its token.
    Reply,
    /// Says something to a chat.
    Push,
    /// Shows the loading animation.
    Loading,
}

/// What goes wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is accepted, and this is answered.
    Status(u16),
    /// The request is treated as usual, and this is answered.
    StatusAfter(u16),
    /// Nothing is accepted: 429.
    TooMany {
        /// How many seconds the caller is asked to wait.
        retry_after: Option<u64>,
    },
    /// Nothing is accepted, and nothing is ever answered.
    Hang,
    /// Nothing is accepted, and the connection is closed.
    Cut,
    /// The request is treated as usual, and the connection is closed without an answer.
    CutAfter,
}

/// Something that LINE accepted.
#[derive(Clone, Debug)]
pub struct Said {
    /// Where it was accepted.
    pub endpoint: Endpoint,
    /// The token of a reply.
    pub reply_token: Option<String>,
    /// The chat that was pushed to, or that shows the animation.
    pub to: Option<String>,
    /// The retry key of a push.
    pub retry_key: Option<String>,
    /// What was said.
    pub messages: Vec<Value>,
    /// For how long the animation is shown.
    pub loading_seconds: Option<u64>,
}

impl Api {
    /// Listens at an address, such as `127.0.0.1:0`, and takes this access token.
    pub async fn start(listen: &str, access_token: &str) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State::new(access_token));
        let serving = tokio::spawn(serve::all(listener, state.clone()));
        Ok(Self { address, state, serving })
    }

    /// Where it is: `http://127.0.0.1:PORT`.
    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All that was accepted, in order.
    pub fn said(&self) -> Vec<Said> {
        self.state.said()
    }

    /// The next one that was accepted and that this has not given out before, waiting for it if need
    /// be.
    pub async fn next(&self, within: Duration) -> Option<Said> {
        self.state.next(within).await
    }

    /// What no client may do: a token used twice, or again after nobody knew what became of it, a
    /// wrong access token, messages that LINE would refuse, a retry key with another message.
    /// Names nobody.
    pub fn violations(&self) -> Vec<String> {
        self.state.violations()
    }

    /// Makes the next request fail; called several times, that many of the next ones, in this order.
    pub fn fault(&self, endpoint: Endpoint, fault: Fault) {
        self.state.plan(endpoint, fault);
    }
}

/// Every connection ends with the task that accepted it.
impl Drop for Api {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Said {
    /// The texts of its text messages.
    pub fn texts(&self) -> Vec<String> {
        let texts = self.messages.iter().filter_map(|message| message["text"].as_str());
        texts.map(str::to_owned).collect()
    }
}
