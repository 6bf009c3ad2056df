//! Queues: all keys of a queue are in one slot, and every step is one script.

mod item;
mod names;
mod oversee;

use std::time::Duration;

use async_trait::async_trait;
use hapax_core::queue::{
    DeadLetter, DeadLetterAction, DeadQuery, DeadReason, Enqueued, ItemId, ItemOutcome,
    LeaseRequest, LeasedItem, QueueDepth, QueueItem, QueueName, QueuedItem, Resolved, reasons,
};
use hapax_core::{Fence, Queue, StoreError, StoreResult, Tenant, Token, Watch, with_timeout};

use crate::client::{ScriptCall, ScriptReply, unexpected_reply};
use crate::script::{
    DEAD_ITEM, DEPTH, ENQUEUE, LEASE, RENEW, RESOLVE, RESOLVE_DEAD, Script, script_millis,
};
use crate::store::RedisStore;
use item::digest;
pub(crate) use names::StoredQueueNames;

/// The keys of a queue, in the order of `lua/queue.lua`.
const KEYS: [&str; 7] = ["items", "bodies", "ready", "later", "leased", "done", "index"];

#[async_trait]
impl Queue for RedisStore {
    async fn enqueue(&self, queue: &QueueName, items: &[QueueItem]) -> StoreResult<Vec<Enqueued>> {
        let mut args = Vec::with_capacity(items.len() * 6);
        for item in items {
            let tenant = item.tenant.as_str();
            let key = item.key.as_deref();
            let lane = key.map_or_else(String::new, |key| digest(&[tenant, key]));
            args.extend([item.id.to_string(), digest(&[tenant]), lane].map(String::into_bytes));
            args.extend([key.unwrap_or_default().as_bytes().to_vec(), ms(item.delay).into()]);
            args.push(item::encode(item));
        }
        // Together, so that a list that cannot be written takes no time from the items.
        let enqueued = self.run_and_notify(&ENQUEUE, queue, args, true);
        let ((), reply) = tokio::join!(self.store_queue_name(queue), enqueued);
        let accepted = reply?.read::<String>()?;
        let answer = |yes| if yes == b'1' { Enqueued::Accepted } else { Enqueued::Duplicate };
        let answers: Vec<_> = accepted.bytes().map(answer).collect();
        (answers.len() == items.len()).then_some(answers).ok_or_else(unexpected_reply)
    }

    async fn lease(&self, queue: &QueueName, take: &LeaseRequest) -> StoreResult<Vec<LeasedItem>> {
        let at_most = take.max_items.clamp(1, 100_000).to_string();
        let lease = script_millis(take.lease).max(1).to_string();
        let args = [digest(&[take.token.as_str()]), at_most, lease].map(String::into_bytes);
        let reply = self.run_on_queue(&LEASE, queue, args.to_vec()).await?;
        let mut leased = reply
            .read::<Vec<(String, u32, u64, u64, Vec<u8>, bool)>>()?
            .into_iter()
            .map(|(id, attempt, fence, age, body, has_key)| {
                let mut item = item::decode(parse_id(&id)?, body).ok_or_else(corrupt_item)?;
                // The body still has the key of an item that was retried without keeping its place.
                item.key = item.key.filter(|_| has_key);
                let (fence, age) = (Fence(fence), Duration::from_micros(age));
                Ok(LeasedItem { item, attempt, fence, age })
            })
            .collect::<StoreResult<Vec<_>>>()?;
        // A repeated call returns the items in the order of the index, the first one in the order of leasing.
        leased.sort_by_key(|leased| std::cmp::Reverse(leased.age));
        if !leased.is_empty() {
            // The list may be lost, or the items may be an earlier version's. The lease is running: its owner
            // does not wait for this.
            let (store, queue) = (self.clone(), queue.clone());
            tokio::spawn(async move { store.store_queue_name(&queue).await });
        }
        Ok(leased)
    }

    async fn renew(&self, queue: &QueueName, token: &Token, lease: Duration) -> StoreResult<u64> {
        let lease = script_millis(lease).max(1).to_string();
        let args = [digest(&[token.as_str()]), lease].map(String::into_bytes);
        self.run_on_queue(&RENEW, queue, args.to_vec()).await?.read()
    }

    async fn resolve(
        &self,
        queue: &QueueName,
        token: &Token,
        outcomes: &[(ItemId, ItemOutcome)],
    ) -> StoreResult<Vec<Resolved>> {
        let mut args = vec![digest(&[token.as_str()]).into_bytes()];
        for (id, outcome) in outcomes {
            let (kind, time, flag, reason) = script_args(outcome);
            args.extend([id.to_string(), kind.into(), ms(time)].map(String::into_bytes));
            args.extend([vec![b'0' + u8::from(flag)], reason.into_bytes()]);
        }
        let mut reply = self.run_and_notify(&RESOLVE, queue, args, false).await?;
        let first_error = reply.first_error.take();
        let done = reply.read::<Vec<u8>>()?.into_iter();
        let answers: Vec<_> =
            done.map(|done| if done == 1 { Resolved::Done } else { Resolved::Lost }).collect();
        match first_error {
            // The first attempt may have ended the lease; only an ack would be recognised.
            Some(error) if answers.contains(&Resolved::Lost) => Err(error),
            _ => (answers.len() == outcomes.len()).then_some(answers).ok_or_else(unexpected_reply),
        }
    }

    async fn depth(&self, queue: &QueueName, whose: Option<&Tenant>) -> StoreResult<QueueDepth> {
        let reply = self.run_on_queue(&DEPTH, queue, vec![tenant_digest(whose)]).await?;
        let (waiting, in_flight, dead, age): (u64, u64, u64, i64) = reply.read()?;
        let oldest_age = u64::try_from(age).ok().map(Duration::from_millis);
        Ok(QueueDepth { waiting, in_flight, dead, oldest_age })
    }

    async fn waiting(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        at_most: u32,
    ) -> StoreResult<Vec<QueuedItem>> {
        with_timeout(self.client.timeout(), self.list_waiting(queue, whose, at_most)).await
    }

    async fn dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        query: &DeadQuery,
    ) -> StoreResult<Vec<DeadLetter>> {
        with_timeout(self.client.timeout(), self.list_dead(queue, whose, query)).await
    }

    async fn dead_reasons(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        at_most: u32,
    ) -> StoreResult<Vec<DeadReason>> {
        with_timeout(self.client.timeout(), self.count_reasons(queue, whose, at_most)).await
    }

    async fn dead_item(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> StoreResult<Option<QueueItem>> {
        let args = vec![tenant_digest(whose), id.to_string().into()];
        let reply = self.run_on_queue(&DEAD_ITEM, queue, args).await?;
        let Some((body, has_key)) = reply.read::<Option<(Vec<u8>, bool)>>()? else {
            return Ok(None);
        };
        let mut item = item::decode(id, body).ok_or_else(corrupt_item)?;
        item.key = item.key.filter(|_| has_key);
        Ok(Some(item))
    }

    async fn queues(&self) -> StoreResult<Vec<QueueName>> {
        self.read_queue_names().await
    }

    async fn resolve_dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
        action: DeadLetterAction,
    ) -> StoreResult<bool> {
        let action = match action {
            DeadLetterAction::Requeue => "requeue",
            DeadLetterAction::Discard => "discard",
        };
        let args = vec![tenant_digest(whose), id.to_string().into(), action.into()];
        let reply = self.run_and_notify(&RESOLVE_DEAD, queue, args, false).await?;
        Ok(reply.read::<u8>()? == 1)
    }

    fn arrivals(&self, queue: &QueueName) -> Watch {
        queue.arrivals_key().map_or_else(Watch::never, |key| self.watch_key(&key))
    }
}

impl RedisStore {
    /// Runs a script that may make an item due, and wakes the waiters for arrivals.
    async fn run_and_notify(
        &self,
        script: &Script,
        queue: &QueueName,
        args: Vec<Vec<u8>>,
        confirmed: bool,
    ) -> StoreResult<ScriptReply> {
        let digest = queue.arrivals_key().map_or(0, |key| key.digest());
        let (channel, message) = self.wake_message(digest);
        let wake = [channel, message.as_bytes()];
        let all: Vec<_> = wake.into_iter().chain(args.iter().map(Vec::as_slice)).collect();
        let reply = self.call_queue(script, queue, &all, confirmed).await;
        self.wake_local(digest);
        reply
    }

    async fn run_on_queue(
        &self,
        script: &Script,
        queue: &QueueName,
        args: Vec<Vec<u8>>,
    ) -> StoreResult<ScriptReply> {
        let args: Vec<_> = args.iter().map(Vec::as_slice).collect();
        self.call_queue(script, queue, &args, false).await
    }

    async fn call_queue(
        &self,
        script: &Script,
        queue: &QueueName,
        args: &[&[u8]],
        confirmed: bool,
    ) -> StoreResult<ScriptReply> {
        let mut keys = KEYS.map(|part| self.names.queue(queue, part)).to_vec();
        if script.has_marker {
            keys.push(self.names.queue(queue, &format!("did:{}", Token::random().as_str())));
        }
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let barrier = self.names.queue(queue, "barrier");
        let barrier_key = confirmed.then_some(barrier.as_str());
        self.client.call(ScriptCall { barrier_key, ..ScriptCall::new(script, &keys, args) }).await
    }
}

fn script_args(outcome: &ItemOutcome) -> (&'static str, Duration, bool, String) {
    match outcome {
        ItemOutcome::Ack { retention } => ("a", *retention, false, String::new()),
        ItemOutcome::Retry { after, counts, reason, keeps_place } => {
            let kind = if *keeps_place { "r" } else { "l" };
            (kind, *after, *counts, reasons::one_line(reason))
        }
        ItemOutcome::Bury { reason, blocks } => {
            ("b", Duration::ZERO, *blocks, reasons::one_line(reason))
        }
    }
}

fn tenant_digest(tenant: Option<&Tenant>) -> Vec<u8> {
    tenant.map_or_else(Vec::new, |tenant| digest(&[tenant.as_str()]).into_bytes())
}

fn ms(time: Duration) -> String {
    script_millis(time).to_string()
}

fn parse_id(text: &str) -> StoreResult<ItemId> {
    text.parse().map(ItemId).map_err(|_| corrupt_item())
}

fn corrupt_item() -> StoreError {
    StoreError::Corrupt { reason: "an item of the queue was not written by hapax".into() }
}
