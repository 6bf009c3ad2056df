//! The reader of one stream: its own pending entries first, then those of consumers that went away,
//! then new ones. An entry is acknowledged when the bus, or the dead letters, have it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hapax::{StoreError, meters};
use metrics::gauge;
use tokio::time::Instant;

use super::dead_letters::DeadLetters;
use super::entry::{self, Entries, Entry};
use super::event_router::{Arrived, Routed, Router};
use super::redis_stream::{Standing, Stream};
use super::settings::Plan;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often lag and losses are looked at.
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct Tail {
    pub(super) domain: String,
    pub(super) stream: Stream,
    pub(super) router: Arc<Router>,
    pub(super) dead: Arc<DeadLetters>,
    pub(super) plan: Arc<Plan>,
    pub(super) pulse: Arc<Pulse>,
    pub(super) seen: Mutex<Option<Standing>>,
    /// How many entries were trimmed unread by the server's own count, when that was last to be told.
    pub(super) skipped: AtomicU64,
    /// How many entries were lost unread, as far as is known.
    pub(super) lost: AtomicU64,
}

/// When a tail last came round, if only to find that there is nothing to do.
pub(super) struct Pulse(Mutex<Instant>);

impl Pulse {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(super) fn stands_still(&self, limit: Duration) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed() > limit
    }
}

impl Tail {
    /// Reads for ever.
    pub(super) async fn follow(&self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let since = Instant::now();
            let Err(error) = self.read().await;
            if since.elapsed() > LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            let stream = self.stream.name.as_str();
            tracing::warn!(stream, reason = error.label(), "the stream cannot be read: {error}");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn read(&self) -> Result<std::convert::Infallible, StoreError> {
        self.stream.ensure_group().await?;
        self.look().await?;
        self.own().await?;
        self.reclaim().await?;
        let (mut looked, mut reclaimed) = (Instant::now(), Instant::now());
        loop {
            self.pulse.beat();
            if reclaimed.elapsed() >= self.plan.reclaim / 2 {
                self.reclaim().await?;
                reclaimed = Instant::now();
            }
            if looked.elapsed() >= LOOK {
                self.look().await?;
                looked = Instant::now();
            }
            let entries = self.stream.new_entries().await?;
            self.handle(entries, false).await;
        }
    }

    async fn own(&self) -> Result<(), StoreError> {
        let mut after = "0".to_owned();
        loop {
            // Reading them counts as a delivery, which must not be used up while nothing can be done.
            self.router.bus.store().ping().await?;
            let entries = self.stream.own(&after).await?;
            if entries.is_empty() {
                return Ok(());
            }
            let ids = entries.there.iter().map(|entry| &entry.id).chain(&entries.gone);
            after = ids.max_by_key(|id| super::redis_stream::parsed(id)).cloned().unwrap_or(after);
            self.handle(entries, true).await;
            self.pulse.beat();
        }
    }

    /// Page by page up to the end.
    async fn reclaim(&self) -> Result<(), StoreError> {
        let mut start = Some("0-0".to_owned());
        while let Some(from) = start {
            self.router.bus.store().ping().await?;
            let (entries, next) = self.stream.reclaim(&from).await?;
            self.handle(entries, true).await;
            self.pulse.beat();
            start = next;
        }
        Ok(())
    }

    /// Handles a page for as long as it takes: whatever happens, what was done is recognised when it
    /// is done again.
    async fn handle(&self, entries: Entries, redelivered: bool) {
        if entries.is_empty() {
            return;
        }
        let mut pause = FIRST_PAUSE;
        while let Err(error) = self.try_handle(&entries, redelivered).await {
            if pause == FIRST_PAUSE {
                let stream = self.stream.name.as_str();
                tracing::warn!(stream, reason = error.label(), "entries wait: {error}");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        if !entries.gone.is_empty() {
            self.lost(self.lost.load(Ordering::Relaxed) + entries.gone.len() as u64);
        }
    }

    async fn try_handle(&self, entries: &Entries, redelivered: bool) -> Result<(), StoreError> {
        let mut arrived = Vec::with_capacity(entries.there.len());
        let mut whose = Vec::with_capacity(entries.there.len());
        let exhausted = if redelivered { self.exhausted(&entries.there).await? } else { vec![] };
        for entry in &entries.there {
            let read = match exhausted.iter().find(|(id, _)| *id == entry.id) {
                Some((_, count)) => Err(format!("delivered {count} times without success")),
                None => entry::event(&self.domain, entry.data.as_deref()),
            };
            match read {
                Ok(event) => {
                    let json = entry.data.clone().unwrap_or_default();
                    arrived.push(Arrived { event, json });
                    whose.push(entry);
                }
                Err(reason) => self.give_up(entry, &reason).await?,
            }
        }
        let routed = self.router.route(&arrived).await?;
        for (entry, routed) in whose.into_iter().zip(routed) {
            if let Routed::Dead(reason) = routed {
                self.give_up(entry, &reason).await?;
            }
        }
        let there = entries.there.iter().map(|entry| entry.id.as_str());
        let ids: Vec<_> = there.chain(entries.gone.iter().map(String::as_str)).collect();
        self.stream.acknowledge(&ids).await
    }

    async fn give_up(&self, entry: &Entry, reason: &str) -> Result<(), StoreError> {
        let stream = self.stream.name.as_str();
        tracing::warn!(stream, entry = entry.id, "a dead letter: {reason}");
        self.dead.take(&self.domain, stream, entry, reason).await
    }

    /// Those that were delivered too often, and how often.
    async fn exhausted(&self, entries: &[Entry]) -> Result<Vec<(String, u64)>, StoreError> {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return Ok(vec![]);
        };
        let counts = self.stream.deliveries(&first.id, &last.id).await?;
        Ok(counts.into_iter().filter(|(_, count)| *count > self.plan.deliveries).collect())
    }

    /// Measures, and says what was lost unread.
    async fn look(&self) -> Result<(), StoreError> {
        let standing = self.stream.standing().await?;
        let stream = self.stream.name.clone();
        let skipped = standing.lost().unwrap_or_else(|| self.skipped.load(Ordering::Relaxed));
        self.skipped.store(skipped, Ordering::Relaxed);
        if let Some(waiting) = standing.waiting(skipped) {
            gauge!(meters::INGEST_LAG, "stream" => stream.clone()).set(waiting as f64);
        }
        gauge!(meters::INGEST_PENDING, "stream" => stream).set(standing.pending as f64);
        let known = self.lost.load(Ordering::Relaxed);
        let before = {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.replace(standing.clone())
        };
        match standing.lost() {
            Some(lost) => self.lost(lost.max(known)),
            None if before.is_some_and(|before| standing.has_lost_since(&before)) => {
                self.lost(known + 1);
            }
            None => self.lost(known),
        }
        Ok(())
    }

    fn lost(&self, lost: u64) {
        let stream = self.stream.name.clone();
        gauge!(meters::INGEST_LOST, "stream" => stream.clone()).set(lost as f64);
        if lost > self.lost.swap(lost, Ordering::Relaxed) {
            tracing::warn!(
                stream,
                lost,
                "entries were trimmed by the workers' MAXLEN before they were read"
            );
        }
    }
}
