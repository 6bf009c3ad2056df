//! What an operator sees of the activity of all nodes: read from the logs that their reporters write, never counted here.

pub(in crate::api) mod conflicts;
pub(in crate::api) mod jobs;
pub(in crate::api) mod key_life;
pub(in crate::api) mod line;
pub(in crate::api) mod overview;
pub(in crate::api) mod queues;
pub(in crate::api) mod streams;
pub(in crate::api) mod suppressed;

use std::collections::HashSet;

use hapax::activity::{ActivityEntry, ActivityReader};
use hapax::{Clock, StoreResult, SystemClock, Tenant};

use crate::api::app::AppState;

/// How far back the console looks, in milliseconds.
pub(super) const HOUR: u64 = 3_600_000;
const MINUTE: u64 = 60_000;
/// How many entries of some seconds may not be part of a minute's entry yet: two minutes of a few nodes.
const MAX_LIVE: usize = 400;

fn reader(app: &AppState) -> ActivityReader<'_> {
    ActivityReader::new(&*app.store).timeout(app.settings.store_timeout)
}

fn now() -> u64 {
    SystemClock.now().0
}

/// The tenant's activity since this time, oldest first: the minutes that are complete, and the seconds since then.
async fn activity_since(
    app: &AppState,
    tenant: &Tenant,
    since: u64,
) -> StoreResult<Vec<ActivityEntry>> {
    let reader = reader(app);
    let mut entries = reader.minutes(tenant, since).await?;
    let minute = |entry: &ActivityEntry| (entry.node.clone(), entry.at / MINUTE);
    let complete: HashSet<_> = entries.iter().map(minute).collect();
    let mut live = reader.live(tenant, None, MAX_LIVE).await?.entries;
    live.retain(|entry| entry.at >= since && !complete.contains(&minute(entry)));
    live.reverse();
    entries.extend(live);
    Ok(entries)
}
