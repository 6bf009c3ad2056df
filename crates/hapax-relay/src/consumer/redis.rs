//! Receives messages from a Redis stream.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::{deadline_after, metric_names};
use redis::streams::{
    StreamAutoClaimReply, StreamClaimReply, StreamId, StreamPendingCountReply, StreamRangeReply,
    StreamReadReply,
};
use redis::{Cmd, FromRedisValue, cmd, pipe};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use super::{Deliveries, InboundMessage, MessageDelivery, MessageSource};
use crate::DeliveryError;
use crate::redis_connection::{CONNECT_TIMEOUT, RedisLink};
use crate::sinks::EndpointConfigError;

/// How long one read waits for new entries.
const READ_WAIT: Duration = Duration::from_millis(500);
/// The longest that a read may take. Entries in a later answer are delivered again.
const READ_TIMEOUT: Duration = Duration::from_secs(15);
/// An entry that was not renewed for this long counts as abandoned by its consumer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the source looks for abandoned entries.
const ABANDONED_INTERVAL: Duration = Duration::from_secs(5);

/// A stream, read as one consumer of a consumer group. Entries that fail for good go to the stream
/// `STREAM:dead`.
///
/// An entry to be retried stays pending. The entries of a consumer that is gone are taken over
/// after half a minute. A pending entry that was trimmed from the stream cannot be delivered: it is
/// acknowledged, and counted with `result="lost"`.
pub struct RedisStreamSource {
    member: Arc<GroupMember>,
    /// A blocking read occupies its connection, so reads have their own.
    reading: RedisLink,
    progress: AsyncMutex<ReadProgress>,
}

/// One consumer of the group; its source and deliveries share it.
struct GroupMember {
    link: RedisLink,
    stream: String,
    group: String,
    consumer: String,
    /// The entries to be retried, each with its time.
    due: Mutex<Vec<(Instant, String)>>,
}

#[derive(Default)]
struct ReadProgress {
    is_prepared: bool,
    searched_abandoned_at: Option<Instant>,
}

impl RedisStreamSource {
    /// Reads this stream in a group that all processes of the consumer share, under a name that no
    /// other process uses. A missing group is created at the stream's beginning, also if it was
    /// deleted or lost since: what is left in the stream is delivered again, and the inbox recognises
    /// it. Redis remembers every name of a consumer, so use the same name after a restart.
    ///
    /// # Errors
    /// If the URL is malformed.
    pub fn new(
        url: &str,
        stream: &str,
        group: &str,
        consumer: &str,
    ) -> Result<Self, EndpointConfigError> {
        let member = GroupMember {
            link: RedisLink::new(url)?,
            stream: stream.into(),
            group: group.into(),
            consumer: consumer.into(),
            due: Mutex::default(),
        };
        let (reading, progress) = (RedisLink::new(url)?, AsyncMutex::default());
        Ok(Self { member: Arc::new(member), reading, progress })
    }

    /// Creates the group if it is missing, and reads the entries that this consumer had before a
    /// restart.
    async fn prepare(&self) -> Result<Vec<(StreamId, u32)>, DeliveryError> {
        let GroupMember { stream, group, .. } = &*self.member;
        let mut create = cmd("XGROUP");
        create.arg("CREATE").arg(stream).arg(group).arg("0").arg("MKSTREAM");
        match self.member.ask::<()>(&create).await {
            Err(DeliveryError::Refused { reason, .. }) if reason.contains("BUSYGROUP") => {}
            made => made?,
        }
        let mine = self.drop_trimmed(self.pending().await?).await?;
        self.with_attempts(mine).await
    }

    /// The entries that this consumer has not acknowledged; those that were trimmed have no fields.
    async fn pending(&self) -> Result<Vec<StreamId>, DeliveryError> {
        let mine = self.member.read(None, "0");
        let reply: Option<StreamReadReply> = self.member.ask(&mine).await?;
        Ok(entries(reply))
    }

    /// Acknowledges entries that were trimmed, and returns the others.
    async fn drop_trimmed(&self, entries: Vec<StreamId>) -> Result<Vec<StreamId>, DeliveryError> {
        let (trimmed, kept): (Vec<_>, _) =
            entries.into_iter().partition(|entry| entry.map.is_empty());
        self.member.acknowledge_lost(trimmed.iter().map(|entry| &*entry.id)).await?;
        Ok(kept)
    }

    async fn new_ones(&self, at_most: usize) -> Result<Vec<StreamId>, DeliveryError> {
        let read = self.member.read(Some(at_most), ">");
        let reply =
            self.reading.run_within(READ_TIMEOUT, async |open| read.query_async(open).await);
        Ok(entries(reply.await?))
    }

    /// Entries of this consumer that are due for a retry.
    async fn due(&self, at_most: usize) -> Result<Vec<(StreamId, u32)>, DeliveryError> {
        let ids = {
            let mut due = self.member.due();
            let now = Instant::now();
            let (mut ready, mut later): (Vec<_>, Vec<_>) =
                due.drain(..).partition(|(at, _)| *at <= now);
            later.extend(ready.split_off(ready.len().min(at_most)));
            *due = later;
            ready.into_iter().map(|(_, id)| id).collect::<Vec<_>>()
        };
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let claimed = self.claim_due(&ids).await;
        if claimed.is_err() {
            let now = Instant::now();
            self.member.due().extend(ids.into_iter().map(|id| (now, id)));
        }
        claimed
    }

    async fn claim_due(&self, ids: &[String]) -> Result<Vec<(StreamId, u32)>, DeliveryError> {
        let mut trimmed = Vec::new();
        for id in ids {
            let mut find = cmd("XRANGE");
            find.arg(&self.member.stream).arg(id).arg(id);
            if self.member.ask::<StreamRangeReply>(&find).await?.ids.is_empty() {
                trimmed.push(&**id);
            }
        }
        // Before they are claimed: a claim forgets trimmed entries in silence.
        self.member.acknowledge_lost(trimmed.into_iter()).await?;
        let mut claim = self.member.claim(Duration::ZERO);
        for id in ids {
            claim.arg(id);
        }
        let reply = self.member.ask::<StreamClaimReply>(&claim).await?;
        self.with_attempts(reply.ids).await
    }

    /// Takes over up to `at_most` entries whose consumer is gone.
    async fn abandoned(&self, at_most: usize) -> Result<Vec<(StreamId, u32)>, DeliveryError> {
        let GroupMember { stream, group, consumer, .. } = &*self.member;
        let (mut found, mut cursor) = (Vec::new(), "0-0".to_owned());
        loop {
            let mut claim = cmd("XAUTOCLAIM");
            claim.arg(stream).arg(group).arg(consumer).arg(IDLE_TIMEOUT.as_millis() as u64);
            claim.arg(&cursor).arg("COUNT").arg(at_most - found.len());
            let reply: StreamAutoClaimReply = self.member.ask(&claim).await?;
            // Redis 7 names what was trimmed and has forgotten it. Redis 6.2 names nothing, and the entries
            // are pending with this consumer now.
            self.member.report_lost(reply.deleted_ids.len() as u64);
            if reply.invalid_entries {
                let trimmed = self.pending().await?.into_iter().filter(|e| e.map.is_empty());
                self.drop_trimmed(trimmed.collect()).await?;
            }
            found.extend(self.drop_trimmed(reply.claimed).await?);
            cursor = reply.next_stream_id;
            if cursor == "0-0" || found.len() >= at_most {
                return self.with_attempts(found).await;
            }
        }
    }

    /// Adds the number of deliveries to each entry.
    async fn with_attempts(
        &self,
        entries: Vec<StreamId>,
    ) -> Result<Vec<(StreamId, u32)>, DeliveryError> {
        let GroupMember { stream, group, .. } = &*self.member;
        let mut counted = Vec::with_capacity(entries.len());
        for entry in entries {
            let mut ask = cmd("XPENDING");
            ask.arg(stream).arg(group).arg(&entry.id).arg(&entry.id).arg(1);
            let reply: StreamPendingCountReply = self.member.ask(&ask).await?;
            let times = reply.ids.first().map_or(1, |pending| pending.times_delivered);
            counted.push((entry, u32::try_from(times).unwrap_or(u32::MAX).max(1)));
        }
        Ok(counted)
    }

    fn delivery(&self, (entry, attempt): (StreamId, u32)) -> Box<dyn MessageDelivery> {
        Box::new(RedisDelivery::new(entry, attempt, self.member.clone()))
    }
}

#[async_trait]
impl MessageSource for RedisStreamSource {
    fn name(&self) -> &'static str {
        "redis"
    }

    async fn receive(&self, at_most: usize) -> Result<Deliveries, DeliveryError> {
        let mut progress = self.progress.lock().await;
        match self.receive_in_group(&mut progress, at_most).await {
            Err(failure) if is_group_missing(&failure) => {
                tracing::warn!("the consumer group is missing; it is made again");
                *progress = ReadProgress::default();
                self.receive_in_group(&mut progress, at_most).await
            }
            received => received,
        }
    }
}

impl RedisStreamSource {
    async fn receive_in_group(
        &self,
        progress: &mut ReadProgress,
        at_most: usize,
    ) -> Result<Deliveries, DeliveryError> {
        let mut found = Vec::new();
        if !progress.is_prepared {
            found = self.prepare().await?;
            progress.is_prepared = true;
        }
        if found.is_empty() {
            found = self.due(at_most).await?;
        }
        if found.is_empty()
            && progress.searched_abandoned_at.is_none_or(|at| at.elapsed() >= ABANDONED_INTERVAL)
        {
            found = self.abandoned(at_most).await?;
            progress.searched_abandoned_at = found.is_empty().then(Instant::now);
        }
        if found.is_empty() {
            found = self.new_ones(at_most).await?.into_iter().map(|entry| (entry, 1)).collect();
        }
        Ok(found.into_iter().map(|entry| self.delivery(entry)).collect())
    }
}

impl GroupMember {
    async fn ask<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T, DeliveryError> {
        self.link.run_within(CONNECT_TIMEOUT, async |open| cmd.query_async(open).await).await
    }

    /// Acknowledges entries that can no longer be read; those of them that were still pending are lost.
    async fn acknowledge_lost(
        &self,
        ids: impl ExactSizeIterator<Item = &str>,
    ) -> Result<(), DeliveryError> {
        if ids.len() > 0 {
            let mut ack = cmd("XACK");
            ack.arg(&self.stream).arg(&self.group);
            for id in ids {
                ack.arg(id);
            }
            self.report_lost(self.ask(&ack).await?);
        }
        Ok(())
    }

    fn report_lost(&self, entries: u64) {
        if entries > 0 {
            tracing::warn!(entries, "entries of the stream were trimmed before they were handled");
            metrics::counter!(metric_names::CONSUMED, "source" => "redis", "result" => "lost")
                .increment(entries);
        }
    }

    fn read(&self, new: Option<usize>, after: &str) -> Cmd {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(&self.group).arg(&self.consumer);
        if let Some(at_most) = new {
            let wait = self.due().iter().map(|(at, _)| at.duration_since(Instant::now())).min();
            let wait = wait.unwrap_or(READ_WAIT).clamp(Duration::from_millis(1), READ_WAIT);
            read.arg("COUNT").arg(at_most.max(1)).arg("BLOCK").arg(wait.as_millis() as u64);
        }
        read.arg("STREAMS").arg(&self.stream).arg(after);
        read
    }

    fn claim(&self, idle: Duration) -> Cmd {
        let mut claim = cmd("XCLAIM");
        claim.arg(&self.stream).arg(&self.group).arg(&self.consumer).arg(idle.as_millis() as u64);
        claim
    }

    fn due(&self) -> std::sync::MutexGuard<'_, Vec<(Instant, String)>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct RedisDelivery {
    entry: StreamId,
    message: InboundMessage,
    member: Arc<GroupMember>,
}

impl RedisDelivery {
    fn new(entry: StreamId, attempt: u32, member: Arc<GroupMember>) -> Self {
        let text = |name: &str| entry.get::<String>(name).filter(|text| !text.is_empty());
        let headers: BTreeMap<String, String> =
            text("headers").and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default();
        // An entry that no relay wrote is identified by its position in the stream.
        let id = text("id").unwrap_or_else(|| format!("{}:{}", member.stream, entry.id));
        let payload = entry.get::<Vec<u8>>("payload").unwrap_or_default().into();
        let mut message = InboundMessage::new(id, &member.stream, payload, headers);
        message.key = text("key");
        message.content_type = text("content_type");
        message.attempt = attempt;
        Self { entry, message, member }
    }
}

#[async_trait]
impl MessageDelivery for RedisDelivery {
    fn message(&self) -> &InboundMessage {
        &self.message
    }

    async fn ack(&self) -> Result<(), DeliveryError> {
        let mut ack = cmd("XACK");
        ack.arg(&self.member.stream).arg(&self.member.group).arg(&self.entry.id);
        self.member.ask(&ack).await
    }

    async fn retry_after(&self, after: Duration) -> Result<(), DeliveryError> {
        self.member.due().push((deadline_after(Instant::now(), after), self.entry.id.clone()));
        Ok(())
    }

    async fn bury(&self, reason: &str) -> Result<(), DeliveryError> {
        let GroupMember { stream, group, .. } = &*self.member;
        let mut both = pipe();
        both.atomic();
        let add = both.cmd("XADD").arg(format!("{stream}:dead")).arg("*");
        for (name, value) in &self.entry.map {
            let value: Vec<u8> = redis::from_redis_value(value.clone()).unwrap_or_default();
            add.arg(name).arg(value);
        }
        add.arg("reason").arg(reason).arg("entry").arg(&self.entry.id).ignore();
        both.cmd("XACK").arg(stream).arg(group).arg(&self.entry.id).ignore();
        let link = &self.member.link;
        link.run_within(CONNECT_TIMEOUT, async |open| both.query_async(open).await).await
    }

    async fn keep_alive(&self) -> Result<(), DeliveryError> {
        let mut claim = self.member.claim(Duration::ZERO);
        claim.arg(&self.entry.id).arg("JUSTID");
        self.member.ask(&claim).await
    }

    fn keep_alive_interval(&self) -> Duration {
        IDLE_TIMEOUT / 3
    }
}

/// Whether somebody deleted the group or its stream, or a failover lost it. A read that waits is told so in other
/// words than one that begins.
fn is_group_missing(failure: &DeliveryError) -> bool {
    matches!(failure, DeliveryError::Refused { reason, .. }
        if reason.contains("NOGROUP") || reason.contains("UNBLOCKED"))
}

fn entries(reply: Option<StreamReadReply>) -> Vec<StreamId> {
    reply.into_iter().flat_map(|reply| reply.keys).flat_map(|key| key.ids).collect()
}
