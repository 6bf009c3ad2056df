//! A store in memory behind an imagined connection that can lose answers.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use hapax_conformance::{LossyConnection, StorePart, StoreWrapper};
use hapax_core::{Store, StoreError, StoreResult};
use tokio::sync::watch;

/// The behaviour of a store whose answer was lost.
#[derive(Clone, Copy)]
pub(crate) enum AfterACut {
    /// Returns an error, which is right.
    Fails,
    /// Makes the call again, whatever it is: a planted bug.
    Repeats,
}

#[derive(Clone)]
pub(crate) struct CutOff {
    store: Arc<dyn Store>,
    after: AfterACut,
    answers_held: watch::Sender<bool>,
}

impl CutOff {
    pub(crate) fn new(store: Arc<dyn Store>, after: AfterACut) -> Self {
        Self { store, after, answers_held: watch::Sender::new(false) }
    }
}

impl LossyConnection for CutOff {
    fn hold_answers(&self) {
        self.answers_held.send_replace(true);
    }

    fn lose_answers(&self) {
        self.answers_held.send_replace(false);
    }
}

#[async_trait]
impl StoreWrapper for CutOff {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn call<T, F, C>(&self, _part: StorePart, call: C) -> StoreResult<T>
    where
        T: Send,
        F: Future<Output = StoreResult<T>> + Send,
        C: Fn() -> F + Send + Sync,
    {
        let mut held = self.answers_held.subscribe();
        let answer = call().await;
        if !*held.borrow() {
            return answer;
        }
        let _ = held.wait_for(|held| !held).await;
        match self.after {
            AfterACut::Fails => {
                Err(StoreError::Unavailable { reason: "the reply was lost".into(), source: None })
            }
            AfterACut::Repeats => call().await,
        }
    }
}
