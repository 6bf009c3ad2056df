//! Queues: all keys of one in one slot, every step one script.

mod item;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::queue::{
    Dead, Depth, Enqueued, Item, ItemId, Leased, Outcome, QueueName, Resolved, Take,
};
use hapax_core::{Fence, Key, Queue, StoreError, Tenant, Timestamp, Token, Watch, millis};

use crate::calls::{Answer, Call, unexpected};
use crate::script::{DEAD, DEPTH, ENQUEUE, LEASE, LETTER, RENEW, RESOLVE, Script};
use crate::store::RedisStore;
use item::digest;

/// As the scripts expect them.
const KEYS: [&str; 7] = ["items", "bodies", "ready", "later", "leased", "done", "index"];
/// Three hundred years: longer than anybody means, and still exact in Lua's numbers.
const LONGEST: u64 = 10_000_000_000_000;

#[async_trait]
impl Queue for RedisStore {
    async fn enqueue(
        &self,
        queue: &QueueName,
        items: &[Item],
    ) -> Result<Vec<Enqueued>, StoreError> {
        let mut args = Vec::with_capacity(items.len() * 6);
        for item in items {
            let tenant = item.tenant.as_str();
            let key = item.key.as_deref();
            let lane = key.map_or_else(String::new, |key| digest(&[tenant, key]));
            args.extend([item.id.to_string(), digest(&[tenant]), lane].map(String::into_bytes));
            args.extend([key.unwrap_or_default().as_bytes().to_vec(), ms(item.delay).into()]);
            args.push(item::body(item));
        }
        let answer = self.rung(&ENQUEUE, queue, args, true).await?;
        let accepted = answer.read::<Vec<u8>>()?.into_iter();
        let answers: Vec<_> = accepted
            .map(|yes| if yes == 1 { Enqueued::Accepted } else { Enqueued::Duplicate })
            .collect();
        (answers.len() == items.len()).then_some(answers).ok_or_else(unexpected)
    }

    async fn lease(&self, queue: &QueueName, take: &Take) -> Result<Vec<Leased>, StoreError> {
        let at_most = take.at_most.clamp(1, 100_000).to_string();
        let lease = millis(take.lease).clamp(1, LONGEST).to_string();
        let args = [digest(&[take.token.as_str()]), at_most, lease].map(String::into_bytes);
        let answer = self.on_queue(&LEASE, queue, args.to_vec()).await?;
        let mut leased = answer
            .read::<Vec<(String, u32, u64, u64, Vec<u8>)>>()?
            .into_iter()
            .map(|(id, attempt, fence, age, body)| {
                let item = item::read(id_of(&id)?, body).ok_or_else(damaged)?;
                let (fence, age) = (Fence(fence), Duration::from_micros(age));
                Ok(Leased { item, attempt, fence, age })
            })
            .collect::<Result<Vec<_>, StoreError>>()?;
        // The oldest first, and the same whether it was asked once or again.
        leased.sort_by_key(|leased| std::cmp::Reverse(leased.age));
        Ok(leased)
    }

    async fn renew(
        &self,
        queue: &QueueName,
        token: &Token,
        lease: Duration,
    ) -> Result<u64, StoreError> {
        let lease = millis(lease).clamp(1, LONGEST).to_string();
        let args = [digest(&[token.as_str()]), lease].map(String::into_bytes);
        self.on_queue(&RENEW, queue, args.to_vec()).await?.read()
    }

    async fn resolve(
        &self,
        queue: &QueueName,
        token: &Token,
        outcomes: &[(ItemId, Outcome)],
    ) -> Result<Vec<Resolved>, StoreError> {
        let mut args = vec![digest(&[token.as_str()]).into_bytes()];
        for (id, outcome) in outcomes {
            let (kind, time, flag, reason) = words(outcome);
            args.extend([id.to_string(), kind.into(), ms(time)].map(String::into_bytes));
            args.extend([vec![b'0' + u8::from(flag)], reason.as_bytes().to_vec()]);
        }
        let mut answer = self.rung(&RESOLVE, queue, args, false).await?;
        let doubt = answer.doubt.take();
        let done = answer.read::<Vec<u8>>()?.into_iter();
        let answers: Vec<_> =
            done.map(|done| if done == 1 { Resolved::Done } else { Resolved::Lost }).collect();
        match doubt {
            // The first of two calls may have ended the lease, of which only an ack leaves a trace.
            Some(doubt) if answers.contains(&Resolved::Lost) => Err(doubt),
            _ => (answers.len() == outcomes.len()).then_some(answers).ok_or_else(unexpected),
        }
    }

    async fn depth(&self, queue: &QueueName, whose: Option<&Tenant>) -> Result<Depth, StoreError> {
        let answer = self.on_queue(&DEPTH, queue, vec![whose_digest(whose)]).await?;
        let (waiting, in_flight, dead, age): (u64, u64, u64, i64) = answer.read()?;
        let oldest_age = u64::try_from(age).ok().map(Duration::from_millis);
        Ok(Depth { waiting, in_flight, dead, oldest_age })
    }

    async fn dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        after: Option<ItemId>,
        at_most: u32,
    ) -> Result<Vec<Dead>, StoreError> {
        let after = after.map_or_else(String::new, |id| id.to_string());
        let args = vec![whose_digest(whose), after.into(), at_most.to_string().into()];
        let answer = self.on_queue(&DEAD, queue, args).await?;
        let letters = answer.read::<Vec<(String, Option<String>, u32, String, u64)>>()?;
        let letter = |(id, key, attempts, reason, at): (String, Option<String>, _, String, _)| {
            let (key, reason) = (key.map(Arc::from), reason.into());
            Ok(Dead { id: id_of(&id)?, key, attempts, reason, at: Timestamp(at) })
        };
        letters.into_iter().map(letter).collect()
    }

    async fn requeue(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> Result<bool, StoreError> {
        self.letter(queue, whose, id, "requeue").await
    }

    async fn discard(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> Result<bool, StoreError> {
        self.letter(queue, whose, id, "discard").await
    }

    fn arrivals(&self, queue: &QueueName) -> Watch {
        bell(queue).map_or_else(Watch::never, |bell| self.watched(&bell))
    }
}

impl RedisStore {
    async fn letter(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
        what: &str,
    ) -> Result<bool, StoreError> {
        let args = vec![whose_digest(whose), id.to_string().into(), what.into()];
        let mut answer = self.rung(&LETTER, queue, args, false).await?;
        let doubt = answer.doubt.take();
        match (answer.read::<u8>()?, doubt) {
            (1, _) => Ok(true),
            // The first of two calls may have done it.
            (_, Some(doubt)) => Err(doubt),
            _ => Ok(false),
        }
    }

    /// Runs a script that may make something due, and wakes who waits for that.
    async fn rung(
        &self,
        script: &Script,
        queue: &QueueName,
        args: Vec<Vec<u8>>,
        confirmed: bool,
    ) -> Result<Answer, StoreError> {
        let digest = bell(queue).map_or(0, |bell| bell.digest());
        let (channel, text) = self.wake_up(digest);
        let hint = [channel, text.as_bytes()];
        let all: Vec<_> = hint.into_iter().chain(args.iter().map(Vec::as_slice)).collect();
        let answer = self.call_queue(script, queue, &all, confirmed).await;
        self.wake(digest);
        answer
    }

    async fn on_queue(
        &self,
        script: &Script,
        queue: &QueueName,
        args: Vec<Vec<u8>>,
    ) -> Result<Answer, StoreError> {
        let args: Vec<_> = args.iter().map(Vec::as_slice).collect();
        self.call_queue(script, queue, &args, false).await
    }

    async fn call_queue(
        &self,
        script: &Script,
        queue: &QueueName,
        args: &[&[u8]],
        confirmed: bool,
    ) -> Result<Answer, StoreError> {
        let keys = KEYS.map(|what| self.naming.queue(queue, what));
        let keys = keys.each_ref().map(String::as_str);
        let barrier = self.naming.queue(queue, "barrier");
        let barrier = confirmed.then_some(barrier.as_str());
        self.calls.make(Call { script, keys: &keys, args, history: None, barrier }).await
    }
}

/// What a queue's waiters wait for. No tenant is empty, so no other key is the same.
fn bell(queue: &QueueName) -> Option<Key> {
    Key::stored("", "job", "", queue.as_str())
}

fn words(outcome: &Outcome) -> (&'static str, Duration, bool, &str) {
    match outcome {
        Outcome::Ack { remember } => ("a", *remember, false, ""),
        Outcome::Retry { after, counts, reason } => ("r", *after, *counts, reason),
        Outcome::Bury { reason, blocks } => ("b", Duration::ZERO, *blocks, reason),
    }
}

fn whose_digest(whose: Option<&Tenant>) -> Vec<u8> {
    whose.map_or_else(Vec::new, |tenant| digest(&[tenant.as_str()]).into_bytes())
}

fn ms(time: Duration) -> String {
    millis(time).min(LONGEST).to_string()
}

fn id_of(text: &str) -> Result<ItemId, StoreError> {
    text.parse().map(ItemId).map_err(|_| damaged())
}

fn damaged() -> StoreError {
    StoreError::Corrupt { reason: "an item of the queue was not written by hapax".into() }
}
