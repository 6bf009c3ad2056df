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
///
/// The last part has nearly twice as many claims as the first. A table doubles when it is full, and equal parts would all
/// do that at about the same moment, in which the store has an eighth of its throughput.
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
        lock(&self.0[part_of_digest(key.digest())])
    }

    /// Adds or replaces a claim.
    #[cfg(test)]
    pub(super) fn insert(&self, key: Key, row: ClaimRow) {
        self.part_of(&key).insert(key, row);
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

/// The part of a key, by the digest of the key: of `COUNT` parts whose shares grow evenly from 1 to 2.
fn part_of_digest(digest: u64) -> usize {
    // FNV's own upper bits differ too little from one short name to the next.
    let spread = digest.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let fraction = spread as f64 / (1_u64 << 32) as f64;
    (ClaimParts::COUNT as f64 * (1.0 + fraction).log2()) as usize
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tenant;

    /// How many of the parts' tables grow in each tenth of a doubling of all claims.
    #[test]
    fn tables_of_memory_store_do_not_all_grow_at_once() {
        let mut tables: Vec<HashMap<usize, ()>> = vec![HashMap::new(); ClaimParts::COUNT];
        let tenant = Tenant::default();
        let (mut grown, mut tenth, mut end) = ([0; 11], 0, 100_000.0);
        for n in 0..200_000 {
            let key = Key::lock(&tenant, &format!("order-{n}")).unwrap();
            let table = &mut tables[part_of_digest(key.digest())];
            let capacity = table.capacity();
            table.insert(n, ());
            if n as f64 >= end {
                (tenth, end) = (tenth + 1, end * 2_f64.powf(0.1));
            }
            grown[tenth] += usize::from(table.capacity() > capacity);
        }
        let doubling = &grown[1..];
        assert!((200..=300).contains(&doubling.iter().sum::<usize>()), "{doubling:?}");
        assert!(doubling.iter().all(|&tables| tables < 64), "{doubling:?}");
    }
}
