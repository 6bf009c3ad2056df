//! Rows of one key, one after the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::Tenant;
use hapax_core::queue::{ItemId, ItemOutcome, LeasedItem};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::held::Held;
use crate::relay::Inner;
use crate::sink_gate::SendOutcome;
use crate::{AfterDead, OutboundMessage, RetryHint};

/// What became of a row, on its way to the store. As many as the batch has rows.
pub(crate) type OutcomeSender = UnboundedSender<(ItemId, ItemOutcome)>;

/// How long a sink may make a row wait.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// The rows of a batch by key, each in order. Rows without a key have no order: each is on its own.
pub(crate) fn group_by_key(rows: Vec<LeasedItem>) -> Vec<Vec<LeasedItem>> {
    let mut lanes: Vec<Vec<LeasedItem>> = Vec::new();
    let mut by_key: HashMap<(Tenant, Arc<str>), usize> = HashMap::new();
    for row in rows {
        let Some(key) = row.item.key.clone() else {
            lanes.push(vec![row]);
            continue;
        };
        let lane = *by_key.entry((row.item.tenant.clone(), key)).or_insert(lanes.len());
        if lane == lanes.len() {
            lanes.push(Vec::new());
        }
        lanes[lane].push(row);
    }
    lanes
}

/// Sends the rows in order. Behind one that failed the others are handed back uncounted: they would
/// overtake it.
pub(crate) async fn send_in_order(
    relay: &Inner,
    held: &Held,
    rows: Vec<LeasedItem>,
    outcomes: OutcomeSender,
) {
    let mut rows = rows.into_iter();
    for LeasedItem { item, attempt, age, .. } in rows.by_ref() {
        let id = item.id;
        let message = OutboundMessage::new(item)
            .attempt(attempt)
            .cloudevents(relay.config.cloudevents.clone());
        let (outcome, goes_on) = send(relay, held, &message, age).await;
        // Who listens lives longer than we do.
        let _ = outcomes.send((id, outcome));
        if !goes_on {
            break;
        }
    }
    for row in rows {
        let _ = outcomes.send((row.item.id, hand_back("an earlier row of its key failed")));
    }
}

async fn send(
    relay: &Inner,
    held: &Held,
    message: &OutboundMessage,
    age: Duration,
) -> (ItemOutcome, bool) {
    let begun = Instant::now();
    let send = relay.sink.send(message);
    match relay.gate.send(message.item_id(), || held.is_ours(), send).await {
        SendOutcome::Delivered => {
            relay.gate.metrics().lag.record(age + begun.elapsed());
            (ItemOutcome::Ack { retention: relay.config.retention }, true)
        }
        SendOutcome::HandBack(reason) => (hand_back(&reason), false),
        SendOutcome::Failed { reason, retry } => {
            failed(relay, message.item_id(), message.attempt, &reason, retry)
        }
    }
}

fn failed(
    relay: &Inner,
    id: ItemId,
    attempt: u32,
    reason: &str,
    retry: RetryHint,
) -> (ItemOutcome, bool) {
    let config = &relay.config;
    if retry == RetryHint::Never || attempt >= config.max_attempts {
        tracing::warn!(sink = relay.sink.name(), %id, attempt, "a row became a dead letter: {reason}");
        let blocks = config.after_dead == AfterDead::Wait;
        return (ItemOutcome::Bury { reason: reason.into(), blocks }, !blocks);
    }
    let wait = config.backoff.after(attempt);
    let after = match retry {
        RetryHint::After(asked) => wait.max(asked.min(MAX_RETRY_AFTER)),
        _ => wait,
    };
    (ItemOutcome::Retry { after, counts: true, reason: reason.into() }, false)
}

fn hand_back(reason: &str) -> ItemOutcome {
    ItemOutcome::Retry { after: Duration::ZERO, counts: false, reason: reason.into() }
}
