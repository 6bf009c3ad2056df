//! The real `orders` program as a child process, and a client that retries.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hapax_testkit::wait_for;
use ureq::Agent;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A running shop process, killed when dropped.
pub(crate) struct Running {
    child: Child,
    url: String,
}

impl Running {
    pub(crate) fn start(store: &str) -> Self {
        Self::run(Command::new(env!("CARGO_BIN_EXE_orders")).args(["--store", store]))
    }

    /// Starts a shop that aborts when an order reaches this crash point.
    pub(crate) fn dying_at(point: &str, store: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orders"));
        Self::run(command.args(["--store", store]).env("ORDERS_DIE_AT", point))
    }

    fn run(command: &mut Command) -> Self {
        let command = command.args(["--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
        // A shop whose database is too slow at startup exits; start it again as a supervisor would.
        wait_for("the shop says where it listens", TIMEOUT, || {
            let mut child = command.spawn().expect("the shop starts");
            let mut lines = BufReader::new(child.stdout.take().expect("piped"));
            let mut running = Self { child, url: String::new() };
            lines.read_line(&mut running.url).expect("a line");
            running.url = running.url.trim().strip_prefix("orders on ")?.to_owned();
            Some(running)
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Waits until the process has exited by itself.
    pub(crate) fn ended(mut self) {
        wait_for("the shop dies", TIMEOUT, || self.child.try_wait().expect("a child"));
    }

    /// The number of orders, by `GET /orders`.
    pub(crate) fn count(&self) -> usize {
        wait_for("the orders are counted", TIMEOUT, || {
            let mut response = agent().get(&self.url).call().expect("an answer");
            // 503: the database did not answer in time.
            if response.status() == 503 {
                return None;
            }
            let text = response.body_mut().read_to_string().expect("text");
            let count = text.strip_prefix(r#"{"count":"#).and_then(|rest| rest.strip_suffix('}'));
            Some(count.and_then(|count| count.parse().ok()).expect("a count"))
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A response, without its per-connection headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) location: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) body: String,
}

/// A response, and whether it is a replay.
pub(crate) type Answered = (Answer, bool);

fn agent() -> Agent {
    let config = Agent::config_builder().http_status_as_error(false);
    // Disable connection reuse, so that the client never retries a request by itself.
    config.timeout_global(Some(TIMEOUT)).max_idle_connections(0).build().into()
}

/// Sends one request; `None` if the connection died.
pub(crate) fn post(url: &str, key: Option<&str>, body: &str) -> Option<Answered> {
    let request = agent().post(url).header("content-type", "application/json");
    let request = match key {
        Some(key) => request.header("idempotency-key", key),
        None => request,
    };
    let mut response = request.send(body).ok()?;
    let header = |name| response.headers().get(name).map(|v| v.to_str().expect("text").to_owned());
    let (location, kind) = (header("location"), header("content-type"));
    let replayed = header("idempotent-replayed").as_deref() == Some("true");
    let status = response.status().as_u16();
    let body = response.body_mut().read_to_string().ok()?;
    Some((Answer { status, location, kind, body }, replayed))
}

/// Sends the order until the shop dies. A shop whose database is too slow answers 503 and lives on.
pub(crate) fn order_to_death(url: &str, key: &str, body: &str) {
    wait_for("the shop dies of the order", TIMEOUT, || match post(url, Some(key), body) {
        None => Some(()),
        Some((answer, _)) => {
            assert_eq!(answer.status, 503, "{answer:?}");
            None
        }
    });
}

/// Sends the order until it gets a final answer, retrying on 409 `in-progress` and on 503. A
/// request answered with 503 may still have created the order, so a replay after a 503 can be of
/// this call's order or of an earlier one: the flag is then `None`.
pub(crate) fn order(url: &str, key: &str, body: &str) -> (Answer, Option<bool>) {
    let since = Instant::now();
    let mut unsure = false;
    loop {
        let (answer, replayed) = post(url, Some(key), body).expect("the shop answers");
        let again =
            answer.status == 503 || answer.status == 409 && answer.body.contains("/in-progress");
        if !again {
            return (answer, (!replayed || !unsure).then_some(replayed));
        }
        unsure |= answer.status == 503;
        assert!(since.elapsed() < TIMEOUT, "to be asked again for ever: {}", answer.body);
        thread::sleep(Duration::from_millis(20));
    }
}
