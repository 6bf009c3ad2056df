//! A store that grants no claims while it must not be used, although it answers.

use std::sync::Arc;

use async_trait::async_trait;
use hapax::{
    ClaimRequest, ClaimStep, ClaimView, Claimed, Claims, Key, Step, Store, StoreError, Token, Watch,
};

use crate::daemon::{Readiness, ReadinessState};

pub(crate) struct HealthGatedClaims {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) readiness: Readiness,
}

#[async_trait]
impl Claims for HealthGatedClaims {
    async fn claim(&self, key: &Key, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        match self.readiness.state() {
            ReadinessState::Unfit(reason) => Err(StoreError::Incompatible { reason }),
            _ => self.store.claim(key, request).await,
        }
    }

    async fn step(&self, key: &Key, token: &Token, step: ClaimStep) -> Result<Step, StoreError> {
        self.store.step(key, token, step).await
    }

    async fn look(&self, key: &Key) -> Result<Option<ClaimView>, StoreError> {
        self.store.look(key).await
    }

    fn watch(&self, key: &Key) -> Watch {
        self.store.watch(key)
    }
}
