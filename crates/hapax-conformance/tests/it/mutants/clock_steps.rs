//! Planted bugs of a store that measures by a clock which goes back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_conformance::StoreWrapper;
use hapax_core::claims::ClaimState;
use hapax_core::log::{Appended, Attached, LogEvent, LogRetention, PageRequest};
use hapax_core::memory::MemoryStore;
use hapax_core::{
    ClaimRequest, ClaimView, Claimed, Claims, Clock, Expect, GiveBack, Key, Log, ManualClock, Put,
    Record, Records, Store, StoreResult, Timestamp, Token,
};

use super::bugs;

bugs! {
    /// A lease ends by the clock at its grant, also if that was set back then.
    LeaseEndsEarly => "lease_lasts_while_the_clock_goes_back_and_returns",
    /// A lease that has lapsed runs again.
    LeaseRunsAgain => "lapsed_lease_stays_lapsed_when_the_clock_goes_back",
    /// A record that has expired is there again.
    RecordReturns => "expired_record_stays_gone_when_the_clock_goes_back",
    /// A job that was forgotten is there again.
    JobReturns => "forgotten_job_stays_gone_when_the_clock_goes_back",
}

pub(crate) struct ClockMutant {
    bug: Bug,
    store: MemoryStore,
    /// The clock that goes back.
    clock: Arc<ManualClock>,
    leases: Mutex<HashMap<Key, (Token, Timestamp)>>,
    records: Mutex<HashMap<Key, (Record, Timestamp)>>,
    jobs: Mutex<HashMap<Key, (Attached, Timestamp)>>,
}

impl ClockMutant {
    pub(crate) fn new(bug: Bug, store: MemoryStore, clock: &Arc<ManualClock>) -> Self {
        let clock = clock.clone();
        let (leases, records, jobs) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { bug, store, clock, leases, records, jobs }
    }

    /// The part of a table that has not ended by the clock.
    fn alive<T: Clone>(&self, table: &Mutex<HashMap<Key, (T, Timestamp)>>, key: &Key) -> Option<T> {
        let table = table.lock().unwrap();
        let (value, end) = table.get(key)?;
        (*end > self.clock.now()).then(|| value.clone())
    }
}

#[async_trait]
impl StoreWrapper for ClockMutant {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
        let lapsed = match self.leases.lock().unwrap().get(key) {
            Some((token, end)) if *end <= self.clock.now() => Some(token.clone()),
            _ => None,
        };
        if let Some(token) = lapsed.filter(|_| self.bug == Bug::LeaseEndsEarly) {
            let _ = self.store.give_back(key, &token, GiveBack::Forget).await?;
        }
        let answer = self.store.claim(key, ask).await?;
        if matches!(answer, Claimed::Granted { .. }) {
            let end = self.clock.now().plus(ask.lease);
            self.leases.lock().unwrap().insert(key.clone(), (ask.token.clone(), end));
        }
        Ok(answer)
    }

    async fn look(&self, key: &Key) -> StoreResult<Option<ClaimView>> {
        let mut view = self.store.look(key).await?;
        if let Some(view) = &mut view
            && self.bug == Bug::LeaseRunsAgain
            && matches!(view.state, ClaimState::Unknown { .. })
            && self.alive(&self.leases, key).is_some()
        {
            view.state = ClaimState::Pending { lease_left: Duration::from_secs(1) };
        }
        Ok(view)
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> StoreResult<Put> {
        let answer = self.store.put(key, value, expect, ttl).await?;
        if let (Some(ttl), Some(record)) = (ttl, self.store.get(key).await?) {
            let end = self.clock.now().plus(ttl);
            self.records.lock().unwrap().insert(key.clone(), (record, end));
        }
        Ok(answer)
    }

    async fn get(&self, key: &Key) -> StoreResult<Option<Record>> {
        let found = self.store.get(key).await?;
        let expired = self.alive(&self.records, key).filter(|_| self.bug == Bug::RecordReturns);
        Ok(found.or(expired))
    }

    async fn append(&self, events: &[LogEvent], keep: &LogRetention) -> StoreResult<Vec<Appended>> {
        let answers = self.store.append(events, keep).await?;
        for event in events {
            let page = PageRequest::new(0, 10_000).with_state();
            if let Some(attached) = self.store.attach(&event.job, &page).await? {
                let end = self.clock.now().plus(keep.retention);
                self.jobs.lock().unwrap().insert(event.job.clone(), (attached, end));
            }
        }
        Ok(answers)
    }

    async fn attach(&self, job: &Key, page: &PageRequest) -> StoreResult<Option<Attached>> {
        let found = self.store.attach(job, page).await?;
        Ok(found.or(self.alive(&self.jobs, job).filter(|_| self.bug == Bug::JobReturns)))
    }
}
