//! Whether calls can be answered, and if not why.

use std::time::Duration;

use tokio::sync::watch;

use super::problem::{Problem, STORE_UNAVAILABLE};

/// How the server stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The store answers.
    Ready,
    /// The store gives no answer, and why. Calls are tried all the same: it may be back by now.
    Down(&'static str),
    /// The store answers, and must not be used like this. Calls are not tried.
    Unfit(String),
    /// The server is shutting down.
    Stopping,
}

/// The state, for everybody to read and to wait for.
pub(crate) struct Readiness(watch::Sender<State>);

impl Default for Readiness {
    fn default() -> Self {
        Self(watch::Sender::new(State::Down("the store was not asked yet")))
    }
}

impl Readiness {
    /// How it stands now.
    pub(crate) fn state(&self) -> State {
        self.0.borrow().clone()
    }

    /// Sets a state; whether it is another one. A server that stops stays stopping.
    pub(crate) fn set(&self, state: State) -> bool {
        self.0.send_if_modified(|current| {
            let changes = *current != State::Stopping && *current != state;
            if changes {
                *current = state;
            }
            changes
        })
    }

    /// Refuses calls to a store that must not be used.
    pub(crate) fn fit(&self) -> Result<(), Problem> {
        match &*self.0.borrow() {
            State::Unfit(reason) => Err(Problem::new(&STORE_UNAVAILABLE, reason.clone())
                .retry_after(Duration::from_secs(5))),
            _ => Ok(()),
        }
    }

    /// Completes when the server shuts down.
    pub(crate) async fn stopping(&self) {
        let mut state = self.0.subscribe();
        // The sender lives as long as we do.
        let _ = state.wait_for(|state| *state == State::Stopping).await;
    }
}
