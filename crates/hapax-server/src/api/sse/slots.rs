//! The limited number of event streams, with shares for each tenant and each signed link, so that one
//! holder of a link cannot take all of them.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax::activity::{self, Activity, RequestActivity, StreamActivity};
use hapax::{Tenant, metric_names};
use metrics::gauge;

use super::signed_link::LinkId;
use crate::problem::{Problem, ProblemKind};

/// How many streams may be open at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamLimits {
    pub(super) all: usize,
    pub(super) of_tenant: usize,
    pub(super) of_link: usize,
}

pub(super) struct StreamSlots {
    limits: StreamLimits,
    open: Mutex<OpenStreams>,
}

#[derive(Default)]
struct OpenStreams {
    all: usize,
    by_tenant: HashMap<Tenant, usize>,
    by_link: HashMap<LinkId, usize>,
}

/// One of the slots; released on drop.
pub(super) struct StreamSlot {
    slots: Arc<StreamSlots>,
    tenant: Tenant,
    link: Option<LinkId>,
}

impl StreamSlots {
    pub(super) fn new(limits: StreamLimits) -> Arc<Self> {
        Arc::new(Self { limits, open: Mutex::default() })
    }

    fn open(&self) -> MutexGuard<'_, OpenStreams> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many streams of a tenant are open, and how many may be.
    pub(super) fn usage(&self, tenant: &Tenant) -> (usize, usize) {
        let open = self.open().by_tenant.get(tenant).copied().unwrap_or_default();
        (open, self.limits.of_tenant)
    }

    /// Takes a slot for a stream of this tenant, opened with this link if it was one.
    pub(super) fn acquire(
        self: &Arc<Self>,
        tenant: &Tenant,
        link: Option<LinkId>,
    ) -> Result<StreamSlot, Problem> {
        let (limits, mut open) = (self.limits, self.open());
        let count = |of: Option<&usize>| of.copied().unwrap_or_default();
        if let Some(link) = &link
            && count(open.by_link.get(link)) >= limits.of_link
        {
            return Err(too_many("of this link", "--sse-link-connections"));
        }
        if count(open.by_tenant.get(tenant)) >= limits.of_tenant {
            return Err(too_many("of this tenant", "--sse-tenant-connections"));
        }
        if open.all >= limits.all {
            return Err(too_many("of this server", "--sse-connections"));
        }
        open.all += 1;
        *open.by_tenant.entry(tenant.clone()).or_default() += 1;
        if let Some(link) = link {
            *open.by_link.entry(link).or_default() += 1;
        }
        gauge!(metric_names::SSE_CONNECTIONS).increment(1.0);
        activity::record(Activity::Stream { tenant, change: StreamActivity::Opened });
        Ok(StreamSlot { slots: self.clone(), tenant: tenant.clone(), link })
    }
}

fn too_many(whose: &str, setting: &str) -> Problem {
    let text = format!("the limit of open event streams {whose} is reached ({setting})");
    Problem::new(ProblemKind::TooManyStreams, text).retry_after(Duration::from_secs(5))
}

impl StreamSlot {
    /// Records that the request for the stream was answered.
    pub(super) fn record_request(&self, took: Duration) {
        let (tenant, result) = (&self.tenant, RequestActivity::Answered);
        activity::record(Activity::StreamRequest { tenant, result, took: Some(took) });
    }

    /// Records what happened to the stream as activity of its tenant.
    pub(super) fn record(&self, change: StreamActivity) {
        activity::record(Activity::Stream { tenant: &self.tenant, change });
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut open = self.slots.open();
        open.all -= 1;
        decrement(&mut open.by_tenant, &self.tenant);
        if let Some(link) = &self.link {
            decrement(&mut open.by_link, link);
        }
        gauge!(metric_names::SSE_CONNECTIONS).decrement(1.0);
        self.record(StreamActivity::Closed);
    }
}

/// Counts one less, and forgets who has none.
fn decrement<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
