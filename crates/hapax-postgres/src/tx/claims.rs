use std::time::Duration;

use bytes::Bytes;
use hapax_core::{
    ClaimRequest, ClaimStep, ClaimView, Claimed, GiveBack, Key, Step, StoreError, Token,
};

use super::lock::LockRetry;
use super::{HapaxTransaction, PostgresTransaction, run_with_timeout};
use crate::batch::run_single;
use crate::claims;
use crate::claims::claim::{ClaimBatch, ClaimCall};
use crate::claims::step::{StepBatch, StepCall};

impl<T: HapaxTransaction> PostgresTransaction<'_, T> {
    /// Asks for the claim. Never waits for another transaction.
    pub async fn claim(&mut self, key: &Key, ask: &ClaimRequest) -> Result<Claimed, StoreError> {
        let call = ClaimCall { key: key.clone(), ask: ask.clone() };
        run_with_timeout(self.timeout, run_single::<ClaimBatch, _>(self.tx, &call)).await
    }

    /// Makes the lease of a pending claim end `lease` from now.
    pub async fn extend(
        &mut self,
        key: &Key,
        token: &Token,
        lease: Duration,
    ) -> Result<Step, StoreError> {
        self.step(key, token, ClaimStep::Extend(lease)).await
    }

    /// Settles a pending claim with `value`.
    pub async fn settle(
        &mut self,
        key: &Key,
        token: &Token,
        value: Bytes,
    ) -> Result<Step, StoreError> {
        self.step(key, token, ClaimStep::Settle(value)).await
    }

    /// Gives a pending claim back.
    pub async fn give_back(
        &mut self,
        key: &Key,
        token: &Token,
        how: GiveBack,
    ) -> Result<Step, StoreError> {
        self.step(key, token, ClaimStep::GiveBack(how)).await
    }

    /// Reads a claim, as your transaction sees it.
    pub async fn look(&mut self, key: &Key) -> Result<Option<ClaimView>, StoreError> {
        run_with_timeout(self.timeout, claims::look(self.tx, key)).await
    }

    async fn step(
        &mut self,
        key: &Key,
        token: &Token,
        step: ClaimStep,
    ) -> Result<Step, StoreError> {
        let call = StepCall { key: key.clone(), token: token.clone(), step };
        let mut retry = LockRetry::new(self.timeout);
        run_with_timeout(self.timeout, async {
            loop {
                match run_single::<StepBatch, _>(self.tx, &call).await? {
                    Some(step) => return Ok(step),
                    None => retry.wait().await?,
                }
            }
        })
        .await
    }
}
