//! A store that grants no claims while it must not be used, although it answers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax::{
    ClaimRequest, ClaimView, Claimed, Claims, GiveBack, Key, Step, Store, StoreError, Token, Watch,
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

    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> Result<Step, StoreError> {
        self.store.extend(key, token, lease).await
    }

    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> Result<Step, StoreError> {
        self.store.settle(key, token, value).await
    }

    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> Result<Step, StoreError> {
        self.store.give_back(key, token, how).await
    }

    async fn look(&self, key: &Key) -> Result<Option<ClaimView>, StoreError> {
        self.store.look(key).await
    }

    fn watch(&self, key: &Key) -> Watch {
        self.store.watch(key)
    }
}
