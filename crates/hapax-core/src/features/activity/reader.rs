//! Reading the logs of activity, for operators.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::keys::{self, LogSlots};
use super::{ActivityEntry, EdgeActivity, NodeReport, RecentJob};
use crate::log::{Attached, JobHead, LogEntry, PageRequest};
use crate::{Clock, Key, Log, StoreResult, SystemClock, Tenant, with_timeout};

/// The most entries that one call reads.
pub const MAX_ENTRIES_READ: usize = 5_000;
/// The most entries of one page.
const PAGE: u64 = 200;
/// An entry is written when its time is over, and later if the store was away: how much older than their neighbours entries are
/// looked for.
const LATE: u64 = 5 * 60_000;
/// How long a node that sends no heartbeat is shown.
const NODE_GONE: u64 = 2 * 60_000;
/// How long a node that has stopped is shown.
const NODE_STOPPED: u64 = 3_600_000;

/// Reads activity and heartbeats.
#[derive(Clone)]
pub struct ActivityReader<'a> {
    store: &'a dyn Log,
    clock: &'a dyn Clock,
    timeout: Duration,
}

impl<'a> ActivityReader<'a> {
    /// Reads from this store, by the clock of the machine; a store call may take 5 s.
    pub fn new(store: &'a dyn Log) -> Self {
        Self { store, clock: &SystemClock, timeout: Duration::from_secs(5) }
    }

    crate::builder_methods! {
        /// The clock that tells the present time.
        clock: &'a dyn Clock;
        /// The longest that one store call may take.
        timeout: Duration;
    }

    /// The entries per node and minute of a tenant that began at this time or later, oldest first: at most
    /// [`MAX_ENTRIES_READ`] of the newest ones.
    pub async fn minutes(&self, tenant: &Tenant, since_ms: u64) -> StoreResult<Vec<ActivityEntry>> {
        let tenant = tenant.without_scope();
        let mut found: Vec<ActivityEntry> = self
            .read_since(&keys::MINUTES, tenant.as_str(), since_ms, |entry: &ActivityEntry| entry.at)
            .await?;
        found.sort_by_key(|entry| entry.at);
        Ok(found)
    }

    /// One page of the entries of some seconds of a tenant, newest first, before this cursor.
    pub async fn live(
        &self,
        tenant: &Tenant,
        before: Option<LiveCursor>,
        at_most: usize,
    ) -> StoreResult<LivePage> {
        let tenant = tenant.without_scope();
        let jobs = keys::LIVE.jobs(tenant.as_str());
        let order = self.slots_newest_first(&jobs).await?;
        let at_most = at_most.clamp(1, MAX_ENTRIES_READ);
        let mut page = LivePage::default();
        let mut before = before;
        let resume = before.and_then(|at| order.iter().position(|(slot, _)| *slot == at.slot));
        for (slot, head) in order.iter().skip(resume.unwrap_or(0)) {
            let end = before.take().filter(|at| at.slot == *slot).map_or(u64::MAX, |at| at.offset);
            let mut end = end.min(head.last + 1);
            while end > head.first {
                let room = (at_most - page.entries.len()) as u64;
                let start = end.saturating_sub(PAGE.min(room)).max(head.first);
                let entries = self.page(&jobs[*slot], start, end).await?;
                page.entries.extend(entries.iter().rev().filter_map(decoded::<ActivityEntry>));
                end = start;
                if page.entries.len() >= at_most {
                    page.next = Some(LiveCursor { slot: *slot, offset: end });
                    return Ok(page);
                }
            }
        }
        Ok(page)
    }

    /// The jobs of a tenant that had events lately, newest first.
    pub async fn recent_jobs(
        &self,
        tenant: &Tenant,
        at_most: usize,
    ) -> StoreResult<Vec<RecentJob>> {
        let (tenant, now) = (tenant.without_scope(), self.clock.now());
        let mut found: Vec<RecentJob> = Vec::new();
        for job in keys::RECENT_JOBS.jobs_newest_first(tenant.as_str(), now) {
            let Some(head) = self.head(&job).await? else { continue };
            let mut end = head.last + 1;
            while end > head.first && found.len() < at_most {
                let start = end.saturating_sub(PAGE).max(head.first);
                let lists = self.page(&job, start, end).await?;
                let lists = lists.iter().rev().filter_map(decoded::<Vec<RecentJob>>);
                for recent in lists.flat_map(|list| list.into_iter().rev()) {
                    let is_known = |kept: &RecentJob| {
                        kept.domain == recent.domain && kept.job_id == recent.job_id
                    };
                    if found.len() < at_most && !found.iter().any(is_known) {
                        found.push(recent);
                    }
                }
                end = start;
            }
        }
        Ok(found)
    }

    /// The ends of the logs of [`keys::live_jobs`], from which a follower gets only what is new.
    #[cfg(feature = "bus")]
    pub async fn live_end(&self, tenant: &Tenant) -> StoreResult<crate::bus::MultiCursor> {
        let mut cursor = crate::bus::MultiCursor::default();
        for job in keys::live_jobs(tenant) {
            if let Some(head) = self.head(&job).await? {
                cursor.put(&job, head.end());
            }
        }
        Ok(cursor)
    }

    /// The latest heartbeat of each node that was seen in the last two minutes, or stopped in the last hour, by name.
    pub async fn nodes(&self) -> StoreResult<Vec<NodeReport>> {
        let now = self.clock.now().0;
        let since = now.saturating_sub(NODE_STOPPED);
        let reports = self.read_since(&keys::NODES, "", since, |report: &NodeReport| report.at);
        let mut latest: BTreeMap<String, NodeReport> = BTreeMap::new();
        for report in reports.await? {
            let kept = latest.entry(report.node.clone()).or_insert_with(|| report.clone());
            if report.at >= kept.at {
                *kept = report;
            }
        }
        let is_shown = |node: &NodeReport| node.stopped || node.at + NODE_GONE >= now;
        Ok(latest.into_values().filter(is_shown).collect())
    }

    /// Reads each log backwards from its end, until its entries are older than `since`.
    async fn read_since<T: DeserializeOwned>(
        &self,
        slots: &LogSlots,
        tenant: &str,
        since: u64,
        at: impl Fn(&T) -> u64,
    ) -> StoreResult<Vec<T>> {
        let mut found = Vec::new();
        for job in slots.jobs_newest_first(tenant, self.clock.now()) {
            let Some(head) = self.head(&job).await? else { continue };
            let mut end = head.last + 1;
            let mut is_old = false;
            while end > head.first && !is_old && found.len() < MAX_ENTRIES_READ {
                let start = end.saturating_sub(PAGE).max(head.first);
                for entry in self.page(&job, start, end).await?.iter().rev() {
                    let Some(entry) = decoded::<T>(entry) else { continue };
                    is_old |= at(&entry) + LATE < since;
                    if at(&entry) >= since && found.len() < MAX_ENTRIES_READ {
                        found.push(entry);
                    }
                }
                end = start;
            }
        }
        Ok(found)
    }

    /// The logs that there are, with their heads, the one with the newest entry first: it expires last.
    async fn slots_newest_first(&self, jobs: &[Key]) -> StoreResult<Vec<(usize, JobHead)>> {
        let mut heads = Vec::new();
        for (slot, job) in jobs.iter().enumerate() {
            heads.extend(self.head(job).await?.map(|head| (slot, head)));
        }
        heads.sort_by_key(|(_, head)| std::cmp::Reverse(head.expires_in));
        Ok(heads)
    }

    async fn head(&self, job: &Key) -> StoreResult<Option<JobHead>> {
        let request = PageRequest::new(crate::log::MAX_NUMBER, 0);
        let attached = with_timeout(self.timeout, self.store.attach(job, &request)).await?;
        Ok(attached.map(|attached| attached.head))
    }

    /// The entries from `start` up to `end`, which is left out.
    async fn page(&self, job: &Key, start: u64, end: u64) -> StoreResult<Vec<LogEntry>> {
        let request = PageRequest::new(start.saturating_sub(1), (end - start) as usize);
        let attached = with_timeout(self.timeout, self.store.attach(job, &request)).await?;
        Ok(attached.map(|Attached { entries, .. }| entries).unwrap_or_default())
    }
}

/// `None` for an entry that this version cannot read.
fn decoded<T: DeserializeOwned>(entry: &LogEntry) -> Option<T> {
    serde_json::from_slice(&entry.payload).ok()
}

/// One page of [`ActivityReader::live`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LivePage {
    /// The entries, newest first.
    pub entries: Vec<ActivityEntry>,
    /// Where the next page begins; `None` where there is none.
    pub next: Option<LiveCursor>,
}

/// A place in the entries of some seconds.
///
/// ```
/// use hapax_core::activity::LiveCursor;
/// let cursor: LiveCursor = "1-42".parse().unwrap();
/// assert_eq!(cursor.to_string(), "1-42");
/// assert!("3-42".parse::<LiveCursor>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveCursor {
    slot: usize,
    /// The offset of the last entry that was read.
    offset: u64,
}

impl fmt::Display for LiveCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.slot, self.offset)
    }
}

impl FromStr for LiveCursor {
    type Err = crate::log::InvalidCursor;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let cursor: crate::log::Cursor = text.parse()?;
        let slot = usize::try_from(cursor.epoch.0).ok().filter(|slot| *slot < LogSlots::COUNT);
        let slot = slot.ok_or(crate::log::InvalidCursor)?;
        Ok(Self { slot, offset: cursor.offset })
    }
}

/// One minute of activity, over all nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActivityMinute {
    /// When the minute began, in milliseconds since the Unix epoch.
    pub at: u64,
    /// The activity of each kind of node.
    pub edges: BTreeMap<String, EdgeActivity>,
}

/// Adds entries up per minute and kind of node; the minutes that had activity, in order. Event streams are the edge `sse`.
pub fn by_minute(entries: &[ActivityEntry]) -> Vec<ActivityMinute> {
    let mut minutes: BTreeMap<u64, ActivityMinute> = BTreeMap::new();
    for entry in entries {
        let at = entry.at / 60_000 * 60_000;
        let minute =
            minutes.entry(at).or_insert_with(|| ActivityMinute { at, edges: BTreeMap::new() });
        let edge = minute.edges.entry(entry.edge.clone()).or_default();
        edge.counts.add(&entry.counts);
        edge.latency.merge(&entry.latency);
        if !entry.sse.is_empty() {
            minute.edges.entry("sse".to_owned()).or_default().merge(&entry.sse);
        }
    }
    minutes.into_values().collect()
}

/// How many event streams were open last at each node, by the node's latest entry. Entries are in order.
pub fn open_streams(entries: &[ActivityEntry]) -> BTreeMap<String, u64> {
    let open = entries.iter().map(|entry| (entry.node.clone(), entry.streams.open));
    open.collect()
}
