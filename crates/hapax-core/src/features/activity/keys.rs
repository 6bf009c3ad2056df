//! The keys of what hapax stores for operators.
//!
//! Their domain or tenant is empty, which no caller of an API can name: [`Key::job`] and [`Tenant::new`] refuse it.
//!
//! | job or record | contents |
//! |---|---|
//! | [`audit_job`] | operators' actions of a tenant |
//! | [`live_jobs`] | activity of the last seconds, one entry per node and interval |
//! | [`minute_jobs`] | activity per node and minute |
//! | [`RECENT_JOBS`] | the jobs of a tenant that had events, one list per node and interval |
//! | [`node_jobs`] | heartbeats of processes |
//! | [`pause_record`] | that a queue is paused |
//! | [`session_record`] | a session of the console |
//!
//! A log remembers the identity of every event for as long as events keep coming, trimmed or not, so a log that is
//! appended to for years would grow for years. What is written all the time is therefore spread over three
//! jobs, each written for one period and then left alone until it has expired: [`LogSlots`].

use std::time::Duration;

use crate::log::LogRetention;
use crate::queue::QueueName;
use crate::{Key, Tenant, Timestamp};

/// How long operators' actions are kept, and how many.
pub const AUDIT_RETENTION: LogRetention =
    LogRetention { retention: Duration::from_secs(366 * 86_400), max_entries: 100_000 };
/// The jobs of [`live_jobs`].
pub const LIVE: LogSlots = LogSlots::new("live", Duration::from_secs(2 * 3600), 2_000);
/// The jobs of [`minute_jobs`].
pub const MINUTES: LogSlots = LogSlots::new("minutes", Duration::from_secs(48 * 3600), 20_000);
/// The logs that list a tenant's jobs with events.
pub const RECENT_JOBS: LogSlots = LogSlots::new("jobs", Duration::from_secs(2 * 3600), 500);
/// The jobs of [`node_jobs`].
pub const NODES: LogSlots = LogSlots::new("nodes", Duration::from_secs(2 * 3600), 5_000);

/// Three logs that are written in turn, so that each expires before it is written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSlots {
    name: &'static str,
    keep: LogRetention,
}

impl LogSlots {
    /// How many logs there are. The log before the present one is complete for a whole period; the third one has expired,
    /// or will have before it is written again.
    pub const COUNT: usize = 3;

    const fn new(name: &'static str, retention: Duration, max_entries: u64) -> Self {
        Self { name, keep: LogRetention { retention, max_entries } }
    }

    /// How long and how much each log keeps.
    pub const fn retention(&self) -> &LogRetention {
        &self.keep
    }

    /// The log that is written at this time.
    pub fn job_at(&self, tenant: &str, now: Timestamp) -> Key {
        self.job(tenant, self.slot_at(now))
    }

    /// All logs, in a fixed order.
    pub fn jobs(&self, tenant: &str) -> [Key; Self::COUNT] {
        [0, 1, 2].map(|slot| self.job(tenant, slot))
    }

    /// All logs, the present one first, then the one before it. What is left in the third one is older, or was written by a
    /// node whose clock is ahead.
    pub fn jobs_newest_first(&self, tenant: &str, now: Timestamp) -> [Key; Self::COUNT] {
        let present = self.slot_at(now);
        [0, 1, 2].map(|back| self.job(tenant, (present + Self::COUNT - back) % Self::COUNT))
    }

    fn slot_at(&self, now: Timestamp) -> usize {
        let period = crate::millis(self.keep.retention).max(1);
        usize::try_from(now.0 / period % Self::COUNT as u64).unwrap_or_default()
    }

    fn job(&self, tenant: &str, slot: usize) -> Key {
        own_key(tenant, "job", &format!("{}-{slot}", self.name))
    }
}

/// The log of operators' actions of a tenant.
pub fn audit_job(tenant: &Tenant) -> Key {
    own_key(tenant.without_scope().as_str(), "job", "audit")
}

/// The logs of a tenant's activity in the last seconds, for followers: [`Bus::follow_all`](crate::bus::Bus::follow_all).
pub fn live_jobs(tenant: &Tenant) -> [Key; LogSlots::COUNT] {
    LIVE.jobs(tenant.without_scope().as_str())
}

/// The logs of a tenant's activity per minute.
pub fn minute_jobs(tenant: &Tenant) -> [Key; LogSlots::COUNT] {
    MINUTES.jobs(tenant.without_scope().as_str())
}

/// The logs of heartbeats.
pub fn node_jobs() -> [Key; LogSlots::COUNT] {
    NODES.jobs("")
}

/// The record that says that a queue is paused.
pub fn pause_record(queue: &QueueName) -> Key {
    own_key("", "record", &format!("pause:{}", queue.as_str()))
}

/// The record of a session of the console, by the hash of its id in hexadecimal.
pub fn session_record(sha256: &str) -> Key {
    own_key("", "record", &format!("session:{sha256}"))
}

fn own_key(tenant: &str, kind: &str, name: &str) -> Key {
    Key::stored(tenant, kind, "", name).expect("`job` and `record` are kinds")
}
