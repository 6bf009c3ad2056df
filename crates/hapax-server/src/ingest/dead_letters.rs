//! The dead letters of ingest: the queue `ingest`.
//!
//! An entry that cannot be routed is enqueued and then buried by the worker below. An entry that an
//! operator requeues is routed once more. If a process dies between enqueueing and burying, the next
//! one routes the entry again before it buries it; a routed event is recognised as a duplicate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax::queue::{Enqueued, ItemId, ItemOutcome, LeaseRequest, LeasedItem, QueueItem, QueueName};
use hapax::{Store, StoreError, Tenant};

use super::entry::{self, StreamEntry};
use super::event_router::{EventRouter, IncomingEvent};

const LEASE: Duration = Duration::from_secs(30);
const BATCH: usize = 20;
/// How often the queue is polled without a hint.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The delay before an item is retried after a store failure.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// How many times an item is tried: more attempts than this mean that the process keeps dying.
const MAX_ATTEMPTS: u32 = 5;
/// How long the id of an item that was routed after all is kept.
const RETENTION: Duration = Duration::from_secs(86_400);

pub(super) struct IngestDeadLetters {
    store: Arc<dyn Store>,
    queue: QueueName,
    /// Why items that were just enqueued are to be buried.
    bury_reasons: Mutex<HashMap<ItemId, Arc<str>>>,
}

impl IngestDeadLetters {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        let queue = QueueName::new("ingest").expect("a valid queue name");
        Self { store, queue, bury_reasons: Mutex::default() }
    }

    /// Adds an entry as a dead letter. It is durable when this returns.
    pub(super) async fn add(
        &self,
        domain: &str,
        stream: &str,
        entry: &StreamEntry,
        reason: &str,
    ) -> Result<(), StoreError> {
        let id = ItemId::named(&["ingest", stream, &entry.id]);
        let data = entry.data.clone().unwrap_or_default();
        let item = QueueItem::new(&Tenant::default(), stream, data).id(id);
        let item = item.header("domain", domain).header("entry", &entry.id);
        let ours = self.bury_reasons().insert(id, reason.into()).is_some();
        let answer = self.store.enqueue(&self.queue, &[item]).await?;
        if answer == [Enqueued::Duplicate] && !ours {
            // An earlier process added the entry; an operator may have requeued it since.
            self.bury_reasons().remove(&id);
        }
        Ok(())
    }

    fn bury_reasons(&self) -> MutexGuard<'_, HashMap<ItemId, Arc<str>>> {
        self.bury_reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Buries new dead letters and routes requeued ones; never ends.
    pub(super) async fn run(&self, router: &EventRouter) {
        let mut take = LeaseRequest::new(BATCH, LEASE);
        loop {
            let mut arrivals = self.store.arrivals(&self.queue);
            match self.process_batch(router, &take).await {
                Ok(0) => arrivals.changed(POLL_INTERVAL).await,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(reason = error.label(), "the queue `ingest`: {error}");
                    tokio::time::sleep(POLL_INTERVAL).await;
                    // Reuse the token, so that items it already holds are returned again.
                    continue;
                }
            }
            take = LeaseRequest::new(BATCH, LEASE);
        }
    }

    async fn process_batch(
        &self,
        router: &EventRouter,
        take: &LeaseRequest,
    ) -> Result<usize, StoreError> {
        let leased = self.store.lease(&self.queue, take).await?;
        let mut outcomes = Vec::with_capacity(leased.len());
        for one in &leased {
            outcomes.push((one.item.id, self.outcome(router, one).await));
        }
        if !outcomes.is_empty() {
            let _ = self.store.resolve(&self.queue, &take.token, &outcomes).await?;
        }
        outcomes.iter().for_each(|(id, _)| drop(self.bury_reasons().remove(id)));
        Ok(outcomes.len())
    }

    async fn outcome(&self, router: &EventRouter, leased: &LeasedItem) -> ItemOutcome {
        let bury = |reason: &str| ItemOutcome::Bury { reason: reason.into(), blocks: false };
        let reason = self.bury_reasons().get(&leased.item.id).cloned();
        if let Some(reason) = reason {
            return bury(&reason);
        }
        if leased.attempt > MAX_ATTEMPTS {
            return bury("the process died while routing it, repeatedly");
        }
        let item = &leased.item;
        let domain = item.headers.get("domain").map_or("", String::as_str);
        let data = (!item.payload.is_empty()).then_some(&item.payload[..]);
        let event = match entry::parse_event(domain, data) {
            Ok(event) => event,
            Err(reason) => return bury(&reason),
        };
        let incoming = IncomingEvent { event, json: item.payload.to_vec() };
        match router.route(&[incoming]).await.as_deref() {
            Ok([Err(reason)]) => bury(reason),
            Ok(_) => ItemOutcome::Ack { retention: RETENTION },
            Err(error) => {
                let reason = error.label().into();
                ItemOutcome::Retry { after: RETRY_AFTER, counts: false, reason, keeps_place: true }
            }
        }
    }
}
