//! Sends the rows of one key one after the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::Tenant;
use hapax_core::queue::{ItemOutcome, LeasedItem};
use hapax_core::worker::{LeaseDeadline, OutcomeSender};
use tokio::time::Instant;

use crate::relay::RelayContext;
use crate::sink_gate::{MAX_RETRY_AFTER, SendOutcome};
use crate::{AfterDead, OutboundMessage, RetryHint};

/// The rows of a batch by key, each key's in order. Rows without a key have no order: each is a group
/// of its own.
pub(crate) fn group_by_key(rows: Vec<LeasedItem>) -> Vec<Vec<LeasedItem>> {
    let mut groups: Vec<Vec<LeasedItem>> = Vec::new();
    let mut by_key: HashMap<(Tenant, Arc<str>), usize> = HashMap::new();
    for row in rows {
        let Some(key) = row.item.key.clone() else {
            groups.push(vec![row]);
            continue;
        };
        let group = *by_key.entry((row.item.tenant.clone(), key)).or_insert(groups.len());
        if group == groups.len() {
            groups.push(Vec::new());
        }
        groups[group].push(row);
    }
    groups
}

/// Sends the rows in order. The rows behind one that failed are handed back uncounted, because they
/// would overtake it.
pub(crate) async fn send_in_order(
    relay: &RelayContext,
    deadline: &LeaseDeadline,
    rows: Vec<LeasedItem>,
    outcomes: OutcomeSender,
) {
    let mut rows = rows.into_iter();
    for LeasedItem { item, attempt, age, .. } in rows.by_ref() {
        let id = item.id;
        let cloudevents = relay.config.cloudevents.clone();
        let message = OutboundMessage::new(item).attempt(attempt).cloudevents(cloudevents);
        let (outcome, continues) = send(relay, deadline, &message, age).await;
        outcomes.send(id, outcome, ());
        if !continues {
            break;
        }
    }
    for row in rows {
        let outcome = hand_back(Duration::ZERO, "an earlier row of its key failed");
        outcomes.send(row.item.id, outcome, ());
    }
}

/// The row's outcome, and whether the next row of its key may be sent.
async fn send(
    relay: &RelayContext,
    deadline: &LeaseDeadline,
    message: &OutboundMessage,
    age: Duration,
) -> (ItemOutcome, bool) {
    let begun = Instant::now();
    let send = relay.sink.send(message);
    match relay.gate.send(&message.item, || deadline.is_ours(), send).await {
        SendOutcome::Delivered => {
            relay.gate.metrics().lag.record(age + begun.elapsed());
            (ItemOutcome::Ack { retention: relay.config.retention }, true)
        }
        SendOutcome::HandBack { reason, after } => (hand_back(after, &reason), false),
        SendOutcome::Failed { reason, retry } => retry_or_bury(relay, message, &reason, retry),
    }
}

fn retry_or_bury(
    relay: &RelayContext,
    message: &OutboundMessage,
    reason: &str,
    retry: RetryHint,
) -> (ItemOutcome, bool) {
    let (config, id, attempt) = (&relay.config, message.item.id, message.attempt);
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
    (ItemOutcome::Retry { after, counts: true, reason: reason.into(), keeps_place: true }, false)
}

fn hand_back(after: Duration, reason: &str) -> ItemOutcome {
    ItemOutcome::Retry { after, counts: false, reason: reason.into(), keeps_place: true }
}
