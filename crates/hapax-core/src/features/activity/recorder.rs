//! Counts activity in memory. Recording takes one lock that other threads hardly ever hold, and allocates only for what is
//! seen for the first time in an interval.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::entry::{bounded_entry, merge_conflict};
use super::histogram::{BUCKETS, bucket_of};
use super::{
    ActivityCounts, ActivityEntry, CallerConflicts, EdgeActivity, KeyCounts, MAX_CONFLICTS,
    MAX_KEYS, MAX_QUEUES, MAX_RECENT_JOBS, MAX_SAMPLES, QueueOutcomes, RecentJob, StreamCounts,
    SuppressedDuplicate, SuppressionKind, key_hash,
};
use crate::log::{Appended, LogEvent};
use crate::{Clock, Key, KeyKind, Tenant};

/// How many tenants are counted at once; the activity of further ones is not recorded.
const MAX_TENANTS: usize = 1000;
/// How many parts the counts have, so that threads do not wait for each other.
const SHARDS: usize = 8;

/// Something that happened in this process.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Activity<'a> {
    /// A key was claimed, or was not. `took` is how long that took; `None` where it is part of a request that is
    /// recorded by itself.
    Claim {
        /// The key.
        key: &'a Key,
        /// The answer.
        answer: ClaimActivity,
        /// The latency.
        took: Option<Duration>,
    },
    /// The lease of a key was renewed. That alone is not reported: it happens all the time.
    Renewed(&'a Key),
    /// A key was settled, or released.
    Settled(&'a Key),
    /// A write was refused because the value had changed meanwhile.
    Outdated(&'a Key),
    /// A request was answered.
    Request {
        /// The tenant.
        tenant: &'a Tenant,
        /// How it ended.
        result: RequestActivity,
        /// The latency.
        took: Duration,
    },
    /// A request was refused before it was read, because there was no room for it.
    Refused(&'a Tenant),
    /// Events of one tenant were appended, or were not.
    Published {
        /// The events.
        events: &'a [LogEvent],
        /// The answer to each.
        answers: &'a [Appended],
    },
    /// A queued item was sent to a sink; counted as a request.
    Sent {
        /// The tenant.
        tenant: &'a Tenant,
        /// How it ended.
        result: SendActivity,
        /// The latency.
        took: Duration,
    },
    /// Leases of queued items have ended.
    Resolved {
        /// The tenant.
        tenant: &'a Tenant,
        /// The queue.
        queue: &'a str,
        /// How they ended.
        outcomes: QueueOutcomes,
    },
    /// A request for an event stream: its first events were ready to be sent, or it was not opened.
    StreamRequest {
        /// The tenant.
        tenant: &'a Tenant,
        /// How it ended.
        result: RequestActivity,
        /// The latency; `None` where it was refused before it was read.
        took: Option<Duration>,
    },
    /// An event stream was opened, has ended, or got a gap.
    Stream {
        /// The tenant.
        tenant: &'a Tenant,
        /// What happened to it.
        change: StreamActivity,
    },
    /// Something about an event of LINE, by a key of [`ActivityEntry::line`].
    Line {
        /// The tenant.
        tenant: &'a Tenant,
        /// What happened.
        what: &'static str,
    },
}

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimActivity {
    /// Granted.
    FirstRun,
    /// The answer of the first one.
    Replayed,
    /// The answer of the first one, after waiting for it.
    Waited,
    /// The first one is running.
    InProgress,
    /// Another owner holds the lock.
    Held,
    /// The key belongs to another request.
    Reused,
    /// The outcome of the first one is unknown.
    Unknown,
    /// The store failed.
    Failed,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestActivity {
    /// It was answered, also with a refusal that another record counts.
    Answered,
    /// There was no room for it, or the server stops.
    Refused,
    /// It failed.
    Failed,
}

impl RequestActivity {
    /// The result of an HTTP request with this status.
    pub const fn of_status(status: u16) -> Self {
        match status {
            429 | 503 => Self::Refused,
            500.. => Self::Failed,
            _ => Self::Answered,
        }
    }
}

/// How the sending of a queued item ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendActivity {
    /// The sink has it.
    Taken,
    /// The sink has it, and what it did with it is recorded by itself.
    Recorded,
    /// The sink answered that it does not take it.
    Refused,
    /// The sink was away, gave no answer, or failed.
    Failed,
}

/// What happened to an event stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamActivity {
    /// It was opened.
    Opened,
    /// It is not open any more; [`StreamActivity::Ended`] tells why.
    Closed,
    /// Why it ended: `complete`, `client`, `slow`, `expired` or `shutdown`.
    Ended(&'static str),
    /// The reader was told that entries are missing.
    Gap,
}

/// Counts the activity of this process, until it is drained.
pub struct ActivityRecorder {
    clock: Arc<dyn Clock>,
    claims_are_requests: bool,
    shards: [Mutex<HashMap<Box<str>, TenantActivity>>; SHARDS],
    open_streams: Mutex<HashMap<Box<str>, u64>>,
}

impl ActivityRecorder {
    /// Counts by this clock. `claims_are_requests` is whether a claim with a latency counts as a request; not where an
    /// edge records the requests that claim.
    pub fn new(clock: Arc<dyn Clock>, claims_are_requests: bool) -> Self {
        let (shards, open_streams) = Default::default();
        Self { clock, claims_are_requests, shards, open_streams }
    }

    /// Counts something that happened.
    pub fn record(&self, activity: Activity<'_>) {
        match activity {
            Activity::Claim { key, answer, took } => {
                self.with(key.tenant(), |tenant| {
                    tenant.claim(key, answer, &*self.clock);
                    if let Some(took) = took.filter(|_| self.claims_are_requests) {
                        tenant.request(took);
                    }
                });
            }
            Activity::Renewed(key) => self.with_tenant(key.tenant(), false, |tenant| {
                tenant.key(key, |counts| counts.renewed += 1);
            }),
            Activity::Settled(key) => {
                self.with(key.tenant(), |tenant| tenant.key(key, |counts| counts.settled += 1));
            }
            Activity::Outdated(key) => self.with(key.tenant(), |tenant| {
                tenant.sample(key, SuppressionKind::OutOfOrder, &*self.clock);
            }),
            Activity::Request { tenant, result, took } => self.with(tenant, |tenant| {
                tenant.request(took);
                count_result(&mut tenant.counts, result);
            }),
            Activity::StreamRequest { tenant, result, took } => self.with(tenant, |tenant| {
                tenant.sse.counts.requests += 1;
                count_result(&mut tenant.sse.counts, result);
                took.into_iter().for_each(|took| tenant.sse.latency.record(took));
            }),
            Activity::Refused(tenant) => self.with(tenant, |tenant| {
                tenant.counts.requests += 1;
                tenant.counts.refusals += 1;
            }),
            Activity::Published { events, answers } => {
                let Some(first) = events.first() else { return };
                self.with(first.job.tenant(), |tenant| {
                    for (event, answer) in events.iter().zip(answers) {
                        tenant.published(event, *answer, &*self.clock);
                    }
                });
            }
            Activity::Sent { tenant, result, took } => self.with(tenant, |tenant| {
                tenant.request(took);
                match result {
                    SendActivity::Taken => tenant.counts.first_runs += 1,
                    SendActivity::Recorded => {}
                    SendActivity::Refused => tenant.counts.refusals += 1,
                    SendActivity::Failed => tenant.counts.errors += 1,
                }
            }),
            Activity::Resolved { tenant, queue, outcomes } => self.with(tenant, |tenant| {
                if let Some(counts) = tenant.queue(queue) {
                    counts.add(&outcomes);
                }
            }),
            Activity::Stream { tenant, change } => self.stream(tenant, change),
            Activity::Line { tenant, what } => self.with(tenant, |tenant| tenant.line(what)),
        }
    }

    fn stream(&self, tenant: &Tenant, change: StreamActivity) {
        let name = unscoped(tenant);
        if matches!(change, StreamActivity::Opened | StreamActivity::Closed) {
            let mut open = self.open_streams.lock().unwrap_or_else(PoisonError::into_inner);
            let count = open.entry(name.into()).or_default();
            match change {
                StreamActivity::Opened => *count += 1,
                _ => *count = count.saturating_sub(1),
            }
            if *count == 0 {
                open.remove(name);
            }
        }
        self.with(tenant, |tenant| match change {
            StreamActivity::Opened | StreamActivity::Closed => {}
            StreamActivity::Gap => tenant.streams.gaps += 1,
            StreamActivity::Ended("complete") => tenant.streams.complete += 1,
            StreamActivity::Ended("slow") => tenant.streams.slow += 1,
            StreamActivity::Ended("expired") => tenant.streams.expired += 1,
            StreamActivity::Ended("shutdown") => tenant.streams.shutdown += 1,
            StreamActivity::Ended(_) => tenant.streams.client += 1,
        });
    }

    /// How many streams of each tenant are open.
    pub(super) fn open_streams(&self) -> HashMap<Box<str>, u64> {
        self.open_streams.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn with(&self, tenant: &Tenant, count: impl FnOnce(&mut TenantActivity)) {
        self.with_tenant(tenant, true, count);
    }

    /// Changes the counts of a tenant; `is_activity` is whether that is worth a report.
    fn with_tenant(
        &self,
        tenant: &Tenant,
        is_activity: bool,
        count: impl FnOnce(&mut TenantActivity),
    ) {
        let name = unscoped(tenant);
        let mut tenants = lock(&self.shards[shard_of_thread()]);
        let room = tenants.len() < MAX_TENANTS;
        let activity = match tenants.get_mut(name) {
            Some(activity) => activity,
            None if room => tenants.entry(name.into()).or_default(),
            None => return,
        };
        activity.is_active |= is_activity;
        count(activity);
    }

    /// Takes what was counted since the last call, of each tenant with activity.
    pub(super) fn drain(&self) -> BTreeMap<Box<str>, TenantActivity> {
        let mut drained: BTreeMap<Box<str>, TenantActivity> = BTreeMap::new();
        for shard in &self.shards {
            let mut tenants = lock(shard);
            for (name, activity) in tenants.extract_if(|_, activity| activity.is_active) {
                match drained.get_mut(&name) {
                    Some(kept) => kept.merge(activity),
                    None => drop(drained.insert(name, activity)),
                }
            }
        }
        drained
    }
}

impl fmt::Debug for ActivityRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActivityRecorder").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unscoped(tenant: &Tenant) -> &str {
    tenant.as_str().split('/').next().unwrap_or_default()
}

fn count_result(counts: &mut ActivityCounts, result: RequestActivity) {
    match result {
        RequestActivity::Answered => {}
        RequestActivity::Refused => counts.refusals += 1,
        RequestActivity::Failed => counts.errors += 1,
    }
}

/// Each thread keeps to one shard.
fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SHARD: Cell<usize> = const { Cell::new(usize::MAX) });
    SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        shard.get()
    })
}

/// The counts of one tenant. Keys are hashed when they are reported, not when they are counted.
#[derive(Debug, Default)]
pub(super) struct TenantActivity {
    is_active: bool,
    counts: ActivityCounts,
    /// The count of each bucket; empty before the first one.
    latency: Vec<u32>,
    samples: Vec<SampledDuplicate>,
    conflicts: Vec<CallerConflicts>,
    keys: HashMap<Key, KeyCounts>,
    jobs: Vec<(Key, Arc<str>, u64)>,
    queues: BTreeMap<String, QueueOutcomes>,
    streams: StreamCounts,
    sse: EdgeActivity,
    line: Vec<(&'static str, u64)>,
}

/// A duplicate with its key, whose claim tells when the first one was.
#[derive(Clone, Debug)]
pub(super) struct SampledDuplicate {
    pub(super) at: u64,
    pub(super) kind: SuppressionKind,
    pub(super) key: Key,
    pub(super) after_first_ms: Option<u64>,
}

impl TenantActivity {
    fn request(&mut self, took: Duration) {
        self.counts.requests += 1;
        if self.latency.is_empty() {
            self.latency.resize(BUCKETS, 0);
        }
        if let Some(count) = self.latency.get_mut(usize::from(bucket_of(took))) {
            *count = count.saturating_add(1);
        }
    }

    fn claim(&mut self, key: &Key, answer: ClaimActivity, clock: &dyn Clock) {
        let counts = &mut self.counts;
        match answer {
            ClaimActivity::FirstRun => {
                counts.first_runs += 1;
                self.key(key, |counts| counts.claimed += 1);
            }
            ClaimActivity::Replayed => {
                counts.replays += 1;
                self.key(key, |counts| counts.replayed += 1);
                self.sample(key, SuppressionKind::Replayed, clock);
            }
            ClaimActivity::Waited => {
                counts.waits += 1;
                self.key(key, |counts| counts.waited += 1);
                self.sample(key, SuppressionKind::Waited, clock);
            }
            ClaimActivity::InProgress => {
                counts.refusals += 1;
                counts.in_progress += 1;
                self.refused(key, clock);
                self.conflict(key, 0, 1);
            }
            ClaimActivity::Held => {
                counts.refusals += 1;
                self.refused(key, clock);
            }
            ClaimActivity::Reused => {
                counts.refusals += 1;
                counts.reused += 1;
                self.key(key, |counts| counts.refused += 1);
                self.conflict(key, 1, 0);
            }
            ClaimActivity::Unknown => {
                counts.refusals += 1;
                self.key(key, |counts| counts.refused += 1);
            }
            ClaimActivity::Failed => counts.errors += 1,
        }
    }

    fn refused(&mut self, key: &Key, clock: &dyn Clock) {
        self.key(key, |counts| counts.refused += 1);
        self.sample(key, SuppressionKind::Refused, clock);
    }

    fn published(&mut self, event: &LogEvent, answer: Appended, clock: &dyn Clock) {
        let counts = &mut self.counts;
        match answer {
            Appended::Published(_) => {
                counts.first_runs += 1;
                self.job(event, clock);
            }
            Appended::Duplicate(_) => {
                counts.replays += 1;
                self.sample(&event.job, SuppressionKind::Replayed, clock);
            }
            Appended::Conflict => {
                counts.refusals += 1;
                counts.reused += 1;
                self.conflict(&event.job, 1, 0);
            }
            Appended::Closed => {
                counts.refusals += 1;
                self.sample(&event.job, SuppressionKind::OutOfOrder, clock);
            }
        }
    }

    /// Notes the job of an event; the newest ones stay.
    fn job(&mut self, event: &LogEvent, clock: &dyn Clock) {
        let at = clock.now().0;
        let known = self.jobs.iter_mut().rev().find(|(job, ..)| *job == event.job);
        if let Some((_, stage, last)) = known {
            (*stage, *last) = (event.stage.clone(), at);
            return;
        }
        if self.jobs.len() >= MAX_RECENT_JOBS {
            self.jobs.remove(0);
        }
        self.jobs.push((event.job.clone(), event.stage.clone(), at));
    }

    fn key(&mut self, key: &Key, count: impl FnOnce(&mut KeyCounts)) {
        if let Some(counts) = self.keys.get_mut(key) {
            count(counts);
        } else if self.keys.len() < MAX_KEYS {
            count(self.keys.entry(key.clone()).or_default());
        }
    }

    fn sample(&mut self, key: &Key, kind: SuppressionKind, clock: &dyn Clock) {
        if self.samples.len() < MAX_SAMPLES {
            let (at, key) = (clock.now().0, key.clone());
            self.samples.push(SampledDuplicate { at, kind, key, after_first_ms: None });
        }
    }

    fn conflict(&mut self, key: &Key, reused: u64, in_progress: u64) {
        let (caller, operation) = (caller(key), operation(key).to_owned());
        let conflict = CallerConflicts { caller, operation, reused, in_progress };
        merge_conflict(&mut self.conflicts, conflict, MAX_CONFLICTS);
    }

    fn queue(&mut self, queue: &str) -> Option<&mut QueueOutcomes> {
        // Two lookups, but no allocation for a queue that is known.
        if !self.queues.contains_key(queue) {
            bounded_entry(&mut self.queues, queue.to_owned(), MAX_QUEUES)?;
        }
        self.queues.get_mut(queue)
    }

    fn line(&mut self, what: &'static str) {
        match self.line.iter_mut().find(|(known, _)| *known == what) {
            Some((_, count)) => *count += 1,
            None => self.line.push((what, 1)),
        }
    }

    fn merge(&mut self, other: Self) {
        self.is_active |= other.is_active;
        self.counts.add(&other.counts);
        if self.latency.is_empty() {
            self.latency = other.latency;
        } else {
            let pairs = self.latency.iter_mut().zip(other.latency);
            pairs.for_each(|(count, more)| *count = count.saturating_add(more));
        }
        self.samples.extend(other.samples);
        self.samples.truncate(MAX_SAMPLES);
        for conflict in other.conflicts {
            merge_conflict(&mut self.conflicts, conflict, MAX_CONFLICTS);
        }
        for (key, more) in other.keys {
            self.key(&key, |counts| counts.add(&more));
        }
        self.jobs.extend(other.jobs);
        for (queue, outcomes) in other.queues {
            if let Some(counts) = self.queue(&queue) {
                counts.add(&outcomes);
            }
        }
        self.streams.add_ended(&other.streams);
        self.sse.merge(&other.sse);
        for (what, count) in other.line {
            match self.line.iter_mut().find(|(known, _)| *known == what) {
                Some((_, kept)) => *kept += count,
                None => self.line.push((what, count)),
            }
        }
    }

    /// The samples whose claims may tell when the first one was.
    pub(super) fn samples_mut(&mut self) -> impl Iterator<Item = &mut SampledDuplicate> {
        self.samples.iter_mut().filter(|sample| {
            matches!(sample.key.kind(), KeyKind::Command | KeyKind::Inbox | KeyKind::Lock)
        })
    }

    /// The counts as an entry, without its time and its node.
    pub(super) fn into_entry(mut self) -> ActivityEntry {
        self.jobs.sort_by_key(|(.., at)| *at);
        let mut entry = ActivityEntry {
            counts: self.counts,
            conflicts: self.conflicts,
            queues: self.queues,
            streams: self.streams,
            sse: self.sse,
            ..ActivityEntry::default()
        };
        for (bucket, count) in self.latency.iter().enumerate().filter(|(_, count)| **count > 0) {
            entry.latency.add(bucket as u16, u64::from(*count));
        }
        entry.suppressed = self.samples.into_iter().map(SampledDuplicate::into_reported).collect();
        entry.keys = self.keys.iter().map(|(key, counts)| (key_hash(key), *counts)).collect();
        for (job, stage, at) in self.jobs {
            let (domain, job_id) = (job.scope().to_owned(), job.name().to_owned());
            let job = RecentJob { domain, job_id, stage: stage.to_string(), at };
            super::entry::push_recent_job(&mut entry.jobs, job);
        }
        entry.line = self.line.into_iter().map(|(what, n)| (what.to_owned(), n)).collect();
        entry
    }
}

impl SampledDuplicate {
    fn into_reported(self) -> SuppressedDuplicate {
        SuppressedDuplicate {
            at: self.at,
            operation: operation(&self.key).to_owned(),
            kind: self.kind,
            caller: caller(&self.key),
            key_hash: key_hash(&self.key),
            after_first_ms: self.after_first_ms,
        }
    }
}

/// The caller of a key, which is a hash.
fn caller(key: &Key) -> Option<String> {
    key.tenant().as_str().split_once('/').map(|(_, scope)| scope.to_owned())
}

fn operation(key: &Key) -> &str {
    match key.kind() {
        KeyKind::Lock | KeyKind::Record => key.kind().as_str(),
        _ => key.scope(),
    }
}
