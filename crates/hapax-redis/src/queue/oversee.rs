//! What waits and what is dead, for an operator. Many items are read by many short scripts, so that other callers
//! of the server do not wait for them.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::queue::{
    DeadLetter, DeadQuery, DeadReason, MAX_EXAMINED, QueueName, QueuedItem, ReasonCounts, reasons,
};
use hapax_core::{StoreResult, Tenant, Timestamp};

use super::{parse_id, tenant_digest};
use crate::script::{DEAD_REASONS, LIST_DEAD, WAITING};
use crate::store::RedisStore;

/// How many items a script reads without their bodies.
const ITEMS: u32 = 1000;
/// How many items a script reads with their bodies, which may be large, for their topics.
const BODIES: u32 = 100;

/// Id, key, attempts, age in µs, whether it is in flight, newest reason, topic.
type WaitingReply = (String, Option<String>, u32, u64, bool, String, String);
/// Id, key, attempts, reasons, time of the burial, topic.
type DeadReply = (String, Option<String>, u32, String, u64, String);

impl RedisStore {
    pub(super) async fn list_waiting(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        at_most: u32,
    ) -> StoreResult<Vec<QueuedItem>> {
        let (mut items, mut left, mut after) = (Vec::new(), at_most, String::new());
        while left > 0 {
            let window = left.min(BODIES);
            let args = vec![tenant_digest(whose), after.into(), window.to_string().into()];
            let reply = self.run_on_queue(&WAITING, queue, args).await?;
            let found: Vec<WaitingReply>;
            (found, after) = reply.read()?;
            for (id, key, attempts, age, in_flight, reason, topic) in found {
                items.push(QueuedItem {
                    id: parse_id(&id)?,
                    topic: topic.into(),
                    key: key.map(Arc::from),
                    attempts,
                    age: Duration::from_micros(age),
                    in_flight,
                    reason: Some(reason).filter(|reason| !reason.is_empty()).map(Arc::from),
                });
            }
            left = if after.is_empty() { 0 } else { left - window };
        }
        Ok(items)
    }

    pub(super) async fn list_dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        query: &DeadQuery,
    ) -> StoreResult<Vec<DeadLetter>> {
        let (mut letters, at_most) = (Vec::new(), query.at_most as usize);
        let mut after = query.after.map_or_else(String::new, |id| id.to_string());
        while letters.len() < at_most {
            let wanted = (at_most - letters.len()).min(BODIES as usize).to_string();
            let (window, reason) = match query.reason.as_deref() {
                None => (wanted.clone(), vec!["0".into(), Vec::new()]),
                Some(reason) => (ITEMS.to_string(), vec!["1".into(), reason.into()]),
            };
            let mut args = vec![tenant_digest(whose), after.into(), window.into(), wanted.into()];
            args.extend(reason);
            let reply = self.run_on_queue(&LIST_DEAD, queue, args).await?;
            let found: Vec<DeadReply>;
            (found, after) = reply.read()?;
            for (id, key, attempts, stored, at, topic) in found {
                letters.push(DeadLetter {
                    id: parse_id(&id)?,
                    topic: topic.into(),
                    key: key.map(Arc::from),
                    attempts,
                    reason: reasons::newest(&stored).into(),
                    errors: reasons::oldest_first(&stored),
                    at: Timestamp(at),
                });
            }
            if after.is_empty() {
                break;
            }
        }
        Ok(letters)
    }

    pub(super) async fn count_reasons(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        at_most: u32,
    ) -> StoreResult<Vec<DeadReason>> {
        let (mut counts, mut after) = (ReasonCounts::default(), String::new());
        for _ in 0..MAX_EXAMINED / ITEMS {
            let args = vec![tenant_digest(whose), after.into(), ITEMS.to_string().into()];
            let reply = self.run_on_queue(&DEAD_REASONS, queue, args).await?;
            let found: Vec<(String, u64, u64, u64)>;
            (found, after) = reply.read()?;
            for (reason, count, first_at, last_at) in found {
                counts.add(&reason, count, [Timestamp(first_at), Timestamp(last_at)]);
            }
            if after.is_empty() {
                break;
            }
        }
        Ok(counts.most_frequent(at_most))
    }
}
