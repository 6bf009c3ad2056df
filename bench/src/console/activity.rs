//! An hour of activity of a busy installation, as its nodes would have reported it.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::activity::{
    ActivityCounts, ActivityEntry, CallerConflicts, KeyCounts, LatencyHistogram, MAX_CONFLICTS,
    MAX_KEYS, MAX_SAMPLES, SuppressedDuplicate, SuppressionKind, keys,
};
use hapax_core::log::LogEvent;
use hapax_core::{Clock, Fingerprint, Store, SystemClock, Timestamp};
use hapax_workload::TENANT;

/// How many nodes there are; each of them is busy in every interval.
pub(super) const NODES: u64 = 4;
const MINUTE: u64 = 60_000;
const INTERVAL: u64 = 2_000;

/// Writes the last hour of all nodes: an entry per minute, and as many of two seconds as are kept.
pub(super) async fn fill(store: &Arc<dyn Store>) -> anyhow::Result<()> {
    let now = SystemClock.now();
    append(store, &keys::MINUTES, now, MINUTE, 60).await?;
    append(store, &keys::LIVE, now, INTERVAL, keys::LIVE.retention().max_entries / NODES).await
}

async fn append(
    store: &Arc<dyn Store>,
    slots: &keys::LogSlots,
    now: Timestamp,
    length: u64,
    count: u64,
) -> anyhow::Result<()> {
    for ago in (1..=count).rev() {
        let at = (now.0 / length - ago) * length;
        let event = |node: u64| {
            let payload = serde_json::to_vec(&busy_entry(node, at, length))?;
            anyhow::Ok(LogEvent {
                job: slots.job_at(TENANT, now),
                stage: format!("node-{node}").into(),
                seq: count - ago + 1,
                fingerprint: Fingerprint::of(&[&payload]),
                payload: payload.into(),
                closes: false,
            })
        };
        let events = (0..NODES).map(event).collect::<anyhow::Result<Vec<_>>>()?;
        store.append(&events, slots.retention()).await?;
    }
    Ok(())
}

/// An entry whose lists are as long as they can be.
fn busy_entry(node: u64, at: u64, ms: u64) -> ActivityEntry {
    let requests = ms;
    let mut latency = LatencyHistogram::default();
    for sample in 0..500 {
        latency.record(Duration::from_micros(100 + sample * sample));
    }
    let hash = |number: usize| format!("{:016x}", at * 1000 + number as u64);
    let suppressed = |number: usize| SuppressedDuplicate {
        at: at + number as u64,
        operation: "POST /orders".into(),
        kind: SuppressionKind::Replayed,
        caller: Some(hash(number)),
        key_hash: hash(number),
        after_first_ms: Some(1200),
    };
    let conflict = |number: usize| CallerConflicts {
        caller: Some(format!("{number:016x}")),
        operation: "POST /orders".into(),
        reused: 1,
        in_progress: 1,
    };
    let counts = KeyCounts { claimed: 1, replayed: 1, settled: 1, ..KeyCounts::default() };
    ActivityEntry {
        at,
        ms,
        node: format!("node-{node}"),
        edge: if node.is_multiple_of(2) { "api" } else { "proxy" }.into(),
        counts: ActivityCounts {
            requests,
            first_runs: requests / 2,
            replays: requests / 2,
            ..ActivityCounts::default()
        },
        latency,
        suppressed: (0..MAX_SAMPLES).map(suppressed).collect(),
        conflicts: (0..MAX_CONFLICTS).map(conflict).collect(),
        keys: (0..MAX_KEYS).map(|number| (hash(number), counts)).collect(),
        ..ActivityEntry::default()
    }
}
