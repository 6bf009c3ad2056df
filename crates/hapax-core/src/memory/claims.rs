use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::MemoryStore;
use crate::claim_rules::{self, ClaimChange, ClaimDecision, ClaimRow};
use crate::{
    ClaimRequest, ClaimView, Claimed, Claims, Fence, GiveBack, Key, Step, StoreResult, Timestamp,
    Token, Watch,
};

impl MemoryStore {
    /// Executes an extend, settle or give-back, which differ only in the function that decides.
    fn step(
        &self,
        key: &Key,
        decide: impl FnOnce(Option<&ClaimRow>, Timestamp) -> ClaimChange,
    ) -> Step {
        let mut tables = self.tables();
        match decide(tables.claims.get(key), self.clock.now()) {
            ClaimChange::Nothing(step) => step,
            ClaimChange::Write(row) => {
                let fence = row.fence;
                tables.claims.insert(key.clone(), row);
                Step::Done(fence)
            }
            ClaimChange::Delete(fence) => {
                tables.claims.remove(key);
                Step::Done(fence)
            }
        }
    }
}

#[async_trait]
impl Claims for MemoryStore {
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
        let mut tables = self.tables();
        let now = self.clock.now();
        let row = match claim_rules::claim(tables.claims.get(key), ask, now) {
            ClaimDecision::Answer(answer) => return Ok(answer),
            ClaimDecision::Grant { attempt } => {
                claim_rules::granted(ask, Fence(tables.next()), attempt, now)
            }
            ClaimDecision::Regrant(row) => row,
        };
        let answer = row.grant();
        tables.claims.insert(key.clone(), row);
        Ok(answer)
    }

    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> StoreResult<Step> {
        Ok(self.step(key, |row, now| claim_rules::extend(row, token, lease, now)))
    }

    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> StoreResult<Step> {
        let step = self.step(key, |row, now| claim_rules::settle(row, token, &value, now));
        self.hub.wake(key.digest());
        Ok(step)
    }

    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> StoreResult<Step> {
        let step = self.step(key, |row, now| claim_rules::give_back(row, token, how, now));
        self.hub.wake(key.digest());
        Ok(step)
    }

    async fn look(&self, key: &Key) -> StoreResult<Option<ClaimView>> {
        Ok(claim_rules::look(self.tables().claims.get(key), self.clock.now()))
    }

    fn watch(&self, key: &Key) -> Watch {
        self.hub.watch(key)
    }
}
