//! One connection that is made when it is needed, and again for ever after it was lost.

use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{RedisError, RedisResult};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::connect::{Connection, Connector};
use crate::fault::Fault;
use crate::history::History;

/// Between two attempts, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Between two attempts at something better than what there is.
const CALM: Duration = Duration::from_millis(500);

/// The connection that all calls share.
pub(crate) struct Link {
    shared: Arc<Shared>,
    pub(crate) history: History,
}

struct Shared {
    connector: Arc<Connector>,
    state: watch::Sender<State>,
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    /// Which connection it is, so that late news about an old one do not harm its successor.
    generation: u64,
    /// How many attempts have failed so far, and why the last one did.
    failures: u64,
    failure: Option<RedisError>,
    last_attempt: Option<Instant>,
    connecting: Option<JoinHandle<()>>,
}

impl Link {
    pub(crate) fn new(connector: Arc<Connector>) -> Self {
        let state = watch::Sender::new(State::default());
        Self { shared: Arc::new(Shared { connector, state }), history: History::default() }
    }

    /// The connection, or else what came of the next attempt to make one.
    pub(crate) async fn connection(&self) -> RedisResult<(Connection, u64)> {
        let up = |state: &State| state.connection.clone().map(|c| (c, state.generation));
        if let Some(found) = up(&self.shared.state.borrow()) {
            return Ok(found);
        }
        let mut news = self.shared.state.subscribe();
        let failures = news.borrow().failures;
        self.connect();
        let known = |state: &State| state.connection.is_some() || state.failures > failures;
        match news.wait_for(|state| known(state)).await {
            Ok(state) => up(&state).ok_or_else(|| state.failure.clone().unwrap_or_else(gone)),
            Err(_) => Err(gone()),
        }
    }

    /// [`Link::report`] of an error, and what it is.
    pub(crate) fn reported(&self, generation: u64, error: RedisError) -> (Fault, RedisError) {
        let fault = Fault::of(&error);
        self.report(generation, fault);
        (fault, error)
    }

    /// What a call over that connection has met. A broken connection is given up. One that is
    /// silent, or has become a replica's, stays in use until there is a better one: perhaps only
    /// one node of many hangs, or the server wakes up.
    pub(crate) fn report(&self, generation: u64, fault: Fault) {
        let current = self.shared.state.borrow().generation == generation;
        match fault {
            _ if !current => {}
            Fault::Cut => {
                self.shared.state.send_if_modified(|state| {
                    let given_up = state.generation == generation
                        && state.connection.as_ref().is_some_and(|c| !c.heals());
                    if given_up {
                        state.connection = None;
                    }
                    given_up
                });
                self.connect();
            }
            Fault::Silent | Fault::Unavailable | Fault::ReadOnly => self.connect(),
            Fault::Unconfirmed
            | Fault::Full
            | Fault::Refused
            | Fault::Corrupt
            | Fault::Internal => {}
        }
    }

    /// A call that began then had no answer in time. Connections can die without a word (a
    /// firewall, a power cut), and a Cluster's client would go on asking the node that hangs.
    pub(crate) fn was_silent(&self, since: Instant) {
        if self.shared.state.borrow().last_attempt.is_some_and(|at| at < since) {
            self.connect();
        }
    }

    /// Starts making a connection, unless that is under way.
    fn connect(&self) {
        self.shared.state.send_if_modified(|state| {
            // A task also ends with the runtime that it was started on.
            if state.connecting.as_ref().is_none_or(JoinHandle::is_finished) {
                let pause = if state.connection.is_some() { CALM } else { FIRST_PAUSE };
                let earliest = state.last_attempt.map(|last| last + pause);
                let task = connect(Arc::downgrade(&self.shared), earliest);
                state.connecting = Some(tokio::spawn(task));
            }
            false
        });
    }
}

/// Tries until there is a connection, or nobody is there any more to use it.
async fn connect(shared: Weak<Shared>, earliest: Option<Instant>) {
    let mut pause = FIRST_PAUSE;
    if let Some(earliest) = earliest {
        tokio::time::sleep_until(earliest).await;
    }
    while let Some(shared) = shared.upgrade() {
        let started = Instant::now();
        let attempt = shared.connector.connect().await;
        let connected = attempt.is_ok();
        if let Err(error) = &attempt {
            match pause {
                FIRST_PAUSE => tracing::warn!(%error, "no connection to redis, trying on"),
                _ => tracing::debug!(%error, "no connection to redis yet"),
            }
        }
        shared.state.send_modify(|state| {
            state.last_attempt = Some(started);
            match attempt {
                Ok(connection) => {
                    state.connection = Some(connection);
                    state.generation += 1;
                    // The end of this task may be noticed late; what comes in between must count.
                    state.connecting = None;
                }
                Err(error) => {
                    state.failures += 1;
                    state.failure = Some(error);
                }
            }
        });
        if connected {
            return;
        }
        drop(shared);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn gone() -> RedisError {
    RedisError::from((redis::ErrorKind::Io, "no connection"))
}
