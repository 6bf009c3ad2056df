//! Adding items to queues, many calls in one statement.

use std::collections::{BTreeMap, HashSet};

use hapax_core::StoreError;
use hapax_core::queue::{Enqueued, QueueItem, QueueName};
use uuid::Uuid;

use crate::batch::BatchOperation;
use crate::connect::session::{Params, SqlSession};
use crate::error::SqlResult;
use crate::row;
use crate::wake::WakeNotifier;

const ENQUEUE: &str = "SELECT queue, id FROM hapax_add_items($1, $2, $3, $4, $5, $6, $7, $8, $9)";

/// The weight of an item in a batch, beside its payload: about a thousand go into one statement.
const ITEM_BYTES: usize = 4 << 10;

/// The items of one call.
pub(crate) struct EnqueueCall {
    pub(crate) queue: QueueName,
    pub(crate) items: Vec<QueueItem>,
}

pub(crate) struct EnqueueBatch;

impl BatchOperation for EnqueueBatch {
    type Item = EnqueueCall;
    type Answer = Vec<Enqueued>;

    /// One statement at a time: two with the same ids would wait for each other.
    fn conflict_key(_: &EnqueueCall) -> u64 {
        0
    }

    fn bytes(call: &EnqueueCall) -> usize {
        call.items.iter().map(|item| item.payload.len() + ITEM_BYTES).sum()
    }

    async fn run<S: SqlSession>(
        session: &mut S,
        calls: &[EnqueueCall],
        answers: &mut [Option<Vec<Enqueued>>],
    ) -> SqlResult<()> {
        let all: Vec<_> = calls
            .iter()
            .flat_map(|call| call.items.iter().map(|item| (&call.queue, item)))
            .collect();
        let mut added = enqueue(session, &all).await?.into_iter();
        for (call, answer) in calls.iter().zip(answers) {
            *answer = Some(added.by_ref().take(call.items.len()).collect());
        }
        Ok(())
    }

    fn after_commit(wakes: &WakeNotifier, call: &EnqueueCall, _: &Vec<Enqueued>) {
        call.queue.arrivals_key().iter().for_each(|key| wakes.wake(key));
    }
}

/// Adds items. [`StoreError::Locked`] if an open transaction has added one of them; the transaction of
/// the session, if there is one, can still be used then.
pub(crate) async fn enqueue<S: SqlSession>(
    session: &mut S,
    all: &[(&QueueName, &QueueItem)],
) -> SqlResult<Vec<Enqueued>> {
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let items = || all.iter().map(|(_, item)| *item);
    let queues: Vec<&str> = all.iter().map(|(queue, _)| queue.as_str()).collect();
    let ids: Vec<Uuid> = items().map(|item| item.id.0).collect();
    let tenants: Vec<&str> = items().map(|item| item.tenant.as_str()).collect();
    let topics: Vec<&str> = items().map(|item| &*item.topic).collect();
    let keys: Vec<Option<&str>> = items().map(|item| item.key.as_deref()).collect();
    let payloads: Vec<&[u8]> = items().map(|item| &item.payload[..]).collect();
    let content_types: Vec<Option<&str>> =
        items().map(|item| item.content_type.as_deref()).collect();
    let headers: Vec<String> = items().map(|item| json(&item.headers)).collect::<Result<_, _>>()?;
    let delays: Vec<Option<i64>> = items().map(delay).collect();
    let params: Params<'_> =
        &[&queues, &ids, &tenants, &topics, &keys, &payloads, &content_types, &headers, &delays];
    let rows = session.rows(ENQUEUE, params).await?;
    let mut new = HashSet::with_capacity(rows.len());
    for row in &rows {
        let Some(queue) = row.try_get::<Option<String>>("queue")? else {
            let reason = "an open transaction is enqueueing an item with the same id".into();
            return Err(StoreError::Locked { reason }.into());
        };
        new.insert((queue, row.try_get::<Uuid>("id")?));
    }
    // Of two items with the same id the first one was added.
    let mut answer = |(queue, item): &(&QueueName, &QueueItem)| match new
        .remove(&(queue.as_str().to_owned(), item.id.0))
    {
        true => Enqueued::Accepted,
        false => Enqueued::Duplicate,
    };
    Ok(all.iter().map(&mut answer).collect())
}

fn delay(item: &QueueItem) -> Option<i64> {
    (!item.delay.is_zero()).then(|| row::interval_millis(item.delay))
}

fn json(headers: &BTreeMap<String, String>) -> SqlResult<String> {
    if headers.is_empty() {
        return Ok("{}".to_owned());
    }
    Ok(serde_json::to_string(headers).map_err(StoreError::internal)?)
}
