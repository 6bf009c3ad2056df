//! The reader of one stream. It handles its own pending entries first, then those of consumers that
//! are gone, then new ones. An entry is acknowledged once the bus or the dead-letter queue has it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hapax::{StoreError, metric_names};
use metrics::gauge;
use tokio::time::Instant;

use super::IngestConfig;
use super::dead_letters::IngestDeadLetters;
use super::entry::{self, EntryPage, StreamEntry};
use super::event_router::{EventRouter, IncomingEvent};
use super::redis_stream::{GroupProgress, GroupStream, parse_entry_id};

const MIN_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// How often lag and losses are measured.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// How often the consumers of processes that are gone are deleted.
const TIDY_INTERVAL: Duration = Duration::from_secs(3600);
/// How long a consumer is idle at least before it counts as gone.
const MIN_IDLE: Duration = Duration::from_secs(3600);

pub(super) struct StreamReader {
    pub(super) domain: String,
    pub(super) stream: GroupStream,
    pub(super) router: Arc<EventRouter>,
    pub(super) dead: Arc<IngestDeadLetters>,
    pub(super) config: Arc<IngestConfig>,
    pub(super) heartbeat: Arc<Heartbeat>,
    pub(super) last_progress: Mutex<Option<GroupProgress>>,
    /// How many entries Redis last counted as trimmed unread.
    pub(super) skipped: AtomicU64,
    /// How many entries are known to be lost unread.
    pub(super) lost: AtomicU64,
}

/// When a reader last completed a round, even if there was nothing to do.
pub(super) struct Heartbeat(Mutex<Instant>);

impl Heartbeat {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(super) fn is_stalled(&self, limit: Duration) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed() > limit
    }
}

impl StreamReader {
    /// Reads for ever, with backoff after failures.
    pub(super) async fn run(&self) {
        let mut backoff = MIN_BACKOFF;
        loop {
            let since = Instant::now();
            let Err(error) = self.read_stream().await;
            if since.elapsed() > MAX_BACKOFF {
                backoff = MIN_BACKOFF;
            }
            let stream = self.stream.name.as_str();
            tracing::warn!(stream, reason = error.label(), "the stream cannot be read: {error}");
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }

    async fn read_stream(&self) -> Result<std::convert::Infallible, StoreError> {
        self.stream.ensure_group().await?;
        self.measure().await?;
        self.handle_own_pending().await?;
        self.reclaim().await?;
        let (mut measured, mut reclaimed) = (Instant::now(), Instant::now());
        let mut tidied: Option<Instant> = None;
        loop {
            self.heartbeat.beat();
            if tidied.is_none_or(|at| at.elapsed() >= TIDY_INTERVAL) {
                let idle = MIN_IDLE.max(self.config.reclaim_after.saturating_mul(10));
                self.stream.delete_idle_consumers(idle).await;
                tidied = Some(Instant::now());
            }
            if reclaimed.elapsed() >= self.config.reclaim_after / 2 {
                self.reclaim().await?;
                reclaimed = Instant::now();
            }
            if measured.elapsed() >= MEASURE_INTERVAL {
                self.measure().await?;
                measured = Instant::now();
            }
            let entries = self.stream.new_entries().await?;
            self.handle(entries, false).await;
        }
    }

    async fn handle_own_pending(&self) -> Result<(), StoreError> {
        let mut after = "0".to_owned();
        loop {
            // Each read counts as a delivery: do not use one up while the store is down.
            self.router.bus.store().ping().await?;
            let entries = self.stream.own_pending(&after).await?;
            if entries.is_empty() {
                return Ok(());
            }
            let ids = entries.present.iter().map(|entry| &entry.id).chain(&entries.gone);
            after = ids.max_by_key(|id| parse_entry_id(id)).cloned().unwrap_or(after);
            self.handle(entries, true).await;
            self.heartbeat.beat();
        }
    }

    /// Takes over the entries of idle consumers, page by page.
    async fn reclaim(&self) -> Result<(), StoreError> {
        let (mut start, mut has_unnamed) = (Some("0-0".to_owned()), false);
        while let Some(from) = start {
            self.router.bus.store().ping().await?;
            let (entries, next) = self.stream.reclaim(&from).await?;
            has_unnamed |= entries.has_unnamed;
            self.handle(entries, true).await;
            self.heartbeat.beat();
            start = next;
        }
        if has_unnamed {
            // The nameless entries are pending with this consumer now: a read of its own entries names them.
            self.handle_own_pending().await?;
        }
        Ok(())
    }

    /// Handles a page, retrying until it succeeds; events that were routed before are duplicates.
    async fn handle(&self, entries: EntryPage, redelivered: bool) {
        if entries.is_empty() {
            return;
        }
        let mut backoff = MIN_BACKOFF;
        while let Err(error) = self.try_handle(&entries, redelivered).await {
            if backoff == MIN_BACKOFF {
                let (stream, reason) = (self.stream.name.as_str(), error.label());
                tracing::warn!(stream, reason, "entries cannot be routed and wait: {error}");
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
        if !entries.gone.is_empty() {
            self.report_lost(self.lost.load(Ordering::Relaxed) + entries.gone.len() as u64);
        }
    }

    async fn try_handle(&self, entries: &EntryPage, redelivered: bool) -> Result<(), StoreError> {
        let mut events = Vec::with_capacity(entries.present.len());
        let mut event_entries = Vec::with_capacity(entries.present.len());
        let over_delivered =
            if redelivered { self.over_delivered(&entries.present).await? } else { vec![] };
        for entry in &entries.present {
            let read = match over_delivered.iter().find(|(id, _)| *id == entry.id) {
                Some((_, count)) => Err(format!("delivered {count} times without success")),
                None => entry::parse_event(&self.domain, entry.data.as_deref()),
            };
            match read {
                Ok(event) => {
                    let json = entry.data.clone().unwrap_or_default();
                    events.push(IncomingEvent { event, json });
                    event_entries.push(entry);
                }
                Err(reason) => self.bury(entry, &reason).await?,
            }
        }
        let outcomes = self.router.route(&events).await?;
        for (entry, outcome) in event_entries.into_iter().zip(outcomes) {
            if let Err(reason) = outcome {
                self.bury(entry, &reason).await?;
            }
        }
        let present = entries.present.iter().map(|entry| entry.id.as_str());
        let ids: Vec<_> = present.chain(entries.gone.iter().map(String::as_str)).collect();
        self.stream.acknowledge(&ids).await
    }

    async fn bury(&self, entry: &StreamEntry, reason: &str) -> Result<(), StoreError> {
        let stream = self.stream.name.as_str();
        tracing::warn!(stream, entry = entry.id, "the entry becomes a dead letter: {reason}");
        self.dead.add(&self.domain, stream, entry, reason).await
    }

    /// The entries that were delivered too often, with their delivery counts.
    async fn over_delivered(
        &self,
        entries: &[StreamEntry],
    ) -> Result<Vec<(String, u64)>, StoreError> {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return Ok(vec![]);
        };
        let counts = self.stream.delivery_counts(&first.id, &last.id).await?;
        Ok(counts.into_iter().filter(|(_, count)| *count > self.config.max_deliveries).collect())
    }

    /// Updates the metrics and reports entries that were lost unread.
    async fn measure(&self) -> Result<(), StoreError> {
        let progress = self.stream.progress().await?;
        let stream = self.stream.name.clone();
        let skipped = progress.lost().unwrap_or_else(|| self.skipped.load(Ordering::Relaxed));
        self.skipped.store(skipped, Ordering::Relaxed);
        if let Some(waiting) = progress.waiting(skipped) {
            gauge!(metric_names::INGEST_LAG, "stream" => stream.clone()).set(waiting as f64);
        }
        gauge!(metric_names::INGEST_PENDING, "stream" => stream).set(progress.pending as f64);
        let known = self.lost.load(Ordering::Relaxed);
        let mut last = self.last_progress.lock().unwrap_or_else(PoisonError::into_inner);
        self.report_lost(match (progress.lost(), &*last) {
            (Some(lost), _) => lost.max(known),
            (None, Some(before)) if progress.has_lost_since(before) => known + 1,
            (None, _) => known,
        });
        *last = Some(progress);
        Ok(())
    }

    fn report_lost(&self, lost: u64) {
        let stream = self.stream.name.clone();
        gauge!(metric_names::INGEST_LOST, "stream" => stream.clone()).set(lost as f64);
        if lost > self.lost.swap(lost, Ordering::Relaxed) {
            let text = "entries were trimmed by the workers' MAXLEN before they were read";
            tracing::warn!(stream, lost, "{text}");
        }
    }
}
