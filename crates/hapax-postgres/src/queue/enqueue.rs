//! Items on their way into a queue, many in one statement.

use std::collections::{BTreeMap, HashSet};

use hapax_core::queue::{Enqueued, QueueItem, QueueName};
use hapax_core::{Key, StoreError};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::batch::Work;
use crate::connect::session::{Session, Sql};
use crate::error::Failure;
use crate::row;
use crate::wake::Wakes;

const ENQUEUE: Sql = Sql {
    text: include_str!("../sql/enqueue.sql"),
    types: &[
        Type::TEXT_ARRAY,
        Type::UUID_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::BYTEA_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::INT8_ARRAY,
    ],
};

const ENQUEUE_ONE: Sql = Sql {
    text: include_str!("../sql/enqueue_one.sql"),
    types: &[
        Type::TEXT,
        Type::UUID,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::BYTEA,
        Type::TEXT,
        Type::TEXT,
        Type::INT8,
    ],
};

/// What an item weighs beside its payload: a thousand or so go into one statement.
const WEIGHT: usize = 4 << 10;

/// What a queue's waiters wait for. No tenant is empty, so no other key is the same.
pub(crate) fn bell(queue: &QueueName) -> Option<Key> {
    Key::stored("", "job", "", queue.as_str())
}

/// Items of one call.
pub(crate) struct Sent {
    pub(crate) queue: QueueName,
    pub(crate) items: Vec<QueueItem>,
}

pub(crate) struct Enqueueing;

impl Work for Enqueueing {
    type Item = Sent;
    type Answer = Vec<Enqueued>;

    /// One statement at a time: two with the same ids would wait for each other.
    fn lane(_: &Sent) -> u64 {
        0
    }

    fn weight(sent: &Sent) -> usize {
        sent.items.iter().map(|item| item.payload.len() + WEIGHT).sum()
    }

    async fn run<S: Session>(
        session: &mut S,
        sent: &[Sent],
        answers: &mut [Option<Vec<Enqueued>>],
    ) -> Result<(), Failure> {
        let all: Vec<_> = sent
            .iter()
            .flat_map(|sent| sent.items.iter().map(|item| (&sent.queue, item)))
            .collect();
        let mut told = enqueue(session, &all).await?.into_iter();
        for (sent, answer) in sent.iter().zip(answers) {
            *answer = Some(told.by_ref().take(sent.items.len()).collect());
        }
        Ok(())
    }

    fn after(wakes: &Wakes, sent: &Sent, _: &Vec<Enqueued>) {
        bell(&sent.queue).iter().for_each(|bell| wakes.wake(bell));
    }
}

pub(crate) async fn enqueue<S: Session>(
    session: &mut S,
    all: &[(&QueueName, &QueueItem)],
) -> Result<Vec<Enqueued>, Failure> {
    match all {
        [] => return Ok(Vec::new()),
        [(queue, item)] if is_new(session, queue, item).await? => {
            return Ok(vec![Enqueued::Accepted]);
        }
        // Of one that is known, what follows tells whether it is still remembered.
        _ => {}
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
    let rows = session
        .rows(
            &ENQUEUE,
            &[
                &queues,
                &ids,
                &tenants,
                &topics,
                &keys,
                &payloads,
                &content_types,
                &headers,
                &delays,
            ],
        )
        .await?;
    let mut new = HashSet::with_capacity(rows.len());
    for row in &rows {
        new.insert((row.try_get::<String>("queue")?, row.try_get::<Uuid>("id")?));
    }
    // Of two with the same id the first one was added.
    let mut told = |(queue, item): &(&QueueName, &QueueItem)| match new
        .remove(&(queue.as_str().to_owned(), item.id.0))
    {
        true => Enqueued::Accepted,
        false => Enqueued::Duplicate,
    };
    Ok(all.iter().map(&mut told).collect())
}

/// Adds it, if nobody has heard of its id.
async fn is_new<S: Session>(
    session: &mut S,
    queue: &QueueName,
    item: &QueueItem,
) -> Result<bool, Failure> {
    let added = session
        .rows(
            &ENQUEUE_ONE,
            &[
                &queue.as_str(),
                &item.id.0,
                &item.tenant.as_str(),
                &&*item.topic,
                &item.key.as_deref(),
                &&item.payload[..],
                &item.content_type.as_deref(),
                &json(&item.headers)?,
                &delay(item),
            ],
        )
        .await?;
    Ok(!added.is_empty())
}

fn delay(item: &QueueItem) -> Option<i64> {
    (!item.delay.is_zero()).then(|| row::brief(item.delay))
}

fn json(headers: &BTreeMap<String, String>) -> Result<String, Failure> {
    if headers.is_empty() {
        return Ok("{}".to_owned());
    }
    Ok(serde_json::to_string(headers).map_err(StoreError::internal)?)
}
