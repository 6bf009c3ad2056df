use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::MemoryStore;
use crate::claim_rules::{self, ClaimChange, ClaimDecision, ClaimRow};
use crate::{
    ClaimRequest, ClaimStep, ClaimView, Claimed, Claims, Fence, Key, Step, StoreResult, Token,
    Watch,
};

pub(super) type ClaimTable = HashMap<Key, ClaimRow>;

/// The claims, in parts with a lock each: a part that grows or is swept holds up no other one.
#[derive(Debug)]
pub(super) struct ClaimParts([Mutex<ClaimTable>; ClaimParts::COUNT]);

impl Default for ClaimParts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl ClaimParts {
    pub(super) const COUNT: usize = 256;

    fn part_of(&self, key: &Key) -> MutexGuard<'_, ClaimTable> {
        lock(&self.0[usize::from(key.partition(Self::COUNT as u16))])
    }

    /// One part, locked while the caller looks at it.
    pub(super) fn part(&self, part: usize) -> MutexGuard<'_, ClaimTable> {
        lock(&self.0[part])
    }

    /// Each part, locked while the caller looks at it.
    pub(super) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, ClaimTable>> {
        self.0.iter().map(lock)
    }

    /// Forgets the claims of one part for which this is true.
    pub(super) fn sweep(&self, part: usize, mut is_over: impl FnMut(&ClaimRow) -> bool) {
        self.part(part).retain(|_, row| !is_over(row));
    }

    /// All parts at one moment.
    pub(super) fn all(&self) -> Vec<MutexGuard<'_, ClaimTable>> {
        self.each().collect()
    }
}

fn lock(part: &Mutex<ClaimTable>) -> MutexGuard<'_, ClaimTable> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Claims for MemoryStore {
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
        let mut claims = self.claims.part_of(key);
        let now = self.clock.now();
        let row = match claim_rules::claim(claims.get(key), ask, now) {
            ClaimDecision::Answer(answer) => return Ok(answer),
            ClaimDecision::Grant { attempt } => {
                claim_rules::granted(ask, Fence(self.sequence.next()), attempt, now)
            }
            ClaimDecision::Regrant(row) => row,
        };
        let answer = row.grant();
        claims.insert(key.clone(), row);
        Ok(answer)
    }

    async fn step(&self, key: &Key, token: &Token, step: ClaimStep) -> StoreResult<Step> {
        let done = {
            let mut claims = self.claims.part_of(key);
            let row = claims.get_mut(key);
            match claim_rules::step(row.as_deref(), token, &step, self.clock.now()) {
                ClaimChange::Nothing(step) => step,
                ClaimChange::Write(new) => {
                    let fence = new.fence;
                    if let Some(row) = row {
                        *row = new;
                    }
                    Step::Done(fence)
                }
                ClaimChange::Delete(fence) => {
                    claims.remove(key);
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
        Ok(claim_rules::look(self.claims.part_of(key).get(key), self.clock.now()))
    }

    fn watch(&self, key: &Key) -> Watch {
        self.wakes.watch(key)
    }
}
