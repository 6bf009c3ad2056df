//! What a store that must not be used means for calls.

use std::time::Duration;

use super::problem::{Problem, ProblemKind};
use crate::health::{Health, State};

impl Health {
    /// Refuses calls to a store that must not be used.
    pub(crate) fn fit(&self) -> Result<(), Problem> {
        match self.state() {
            State::Unfit(reason) => Err(Problem::new(ProblemKind::StoreUnavailable, reason)
                .retry_after(Duration::from_secs(5))),
            _ => Ok(()),
        }
    }
}
