use async_trait::async_trait;

use super::MemoryStore;
use crate::claim_rules::{self, ClaimChange, ClaimDecision};
use crate::{
    ClaimRequest, ClaimStep, ClaimView, Claimed, Claims, Fence, Key, Step, StoreResult, Token,
    Watch,
};

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

    async fn step(&self, key: &Key, token: &Token, step: ClaimStep) -> StoreResult<Step> {
        let done = {
            let mut tables = self.tables();
            match claim_rules::step(tables.claims.get(key), token, &step, self.clock.now()) {
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
        };
        if !matches!(step, ClaimStep::Extend(_)) {
            self.wakes.wake(key.digest());
        }
        Ok(done)
    }

    async fn look(&self, key: &Key) -> StoreResult<Option<ClaimView>> {
        Ok(claim_rules::look(self.tables().claims.get(key), self.clock.now()))
    }

    fn watch(&self, key: &Key) -> Watch {
        self.wakes.watch(key)
    }
}
