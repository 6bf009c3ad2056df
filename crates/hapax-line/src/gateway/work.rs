//! Takes events out of the queue and hands them out, side by side.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::queue::{ItemId, ItemOutcome, LeaseRequest, LeasedItem};
use hapax_core::trace::{TRACEPARENT, Traceparent};
use hapax_core::{StoreError, Token, metric_names, with_timeout};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::Instrument;

use super::intake::CORRELATION;
use super::{Arrived, Inner};
use crate::{Guarding, Webhook};

/// So many events are taken out at once.
const BATCH: usize = 64;

/// An event that was taken out, and its place, if there was one left.
type Taken = (Arrived, LeasedItem, Option<OwnedSemaphorePermit>);

impl Inner {
    pub(super) async fn work(self: &Arc<Self>, mut stop: Pin<&mut impl Future<Output = ()>>) {
        // Registered before the first look, so that nothing in between is missed.
        let mut arrivals = self.store.arrivals(&self.settings.queue);
        let mut unanswered = None;
        loop {
            let room = tokio::select! {
                biased;
                () = &mut stop => return,
                room = self.room() => room,
            };
            let Some(room) = room else { return };
            // An answer that was lost is asked for again, with the same token.
            let take =
                unanswered.take().unwrap_or_else(|| LeaseRequest::new(room, self.settings.lease));
            let since = Instant::now();
            let leased = self.lease(&take).await;
            match leased {
                Ok(leased) => {
                    let full = leased.len() >= room;
                    self.hand_out(leased, take.token, since.elapsed());
                    if full {
                        continue;
                    }
                }
                Err(error) => {
                    metric_names::count_store_error(&error);
                    unanswered = Some(take);
                    self.rescue(since.elapsed());
                }
            }
            tokio::select! {
                biased;
                () = &mut stop => return,
                () = self.stored.notified() => {}
                () = arrivals.changed(self.settings.poll), if unanswered.is_none() => {}
                () = sleep(self.settings.poll), if unanswered.is_some() => {}
            }
        }
    }

    /// Waits until there is a place; how many there are. None is held while the store is asked: it may
    /// be away, and events that are handled without it need them.
    async fn room(&self) -> Option<usize> {
        let _one = self.places.acquire().await.ok()?;
        Some(BATCH.min(1 + self.places.available_permits()))
    }

    async fn lease(&self, take: &LeaseRequest) -> Result<Vec<LeasedItem>, StoreError> {
        let lease = self.store.lease(&self.settings.queue, take);
        with_timeout(self.settings.store_budget, lease).await
    }

    /// The store went away with events that it had just taken: they are handled from memory.
    fn rescue(self: &Arc<Self>, took: Duration) {
        if self.settings.on_store_error == hapax_core::lock::OnStoreError::Closed {
            return;
        }
        for event in self.local.stranded() {
            let Some(place) = self.places_for(1) else { return };
            self.handle_unprotected(event, Some(place), took);
        }
    }

    fn hand_out(self: &Arc<Self>, leased: Vec<LeasedItem>, token: Token, took: Duration) {
        if leased.is_empty() {
            return;
        }
        let mut lanes: HashMap<String, Vec<Taken>> = HashMap::new();
        let mut unreadable = Vec::new();
        for leased in leased {
            self.local.taken(leased.item.id);
            match self.read(&leased) {
                Some(event) => {
                    let place = self.places_for(1);
                    lanes.entry(self.lane_of(&event)).or_default().push((event, leased, place));
                }
                None => unreadable.push(leased.item.id),
            }
        }
        let this = self.clone();
        tokio::spawn(async move {
            let mut work = JoinSet::new();
            for lane in lanes.into_values() {
                work.spawn(this.clone().lane(lane, token.clone(), took));
            }
            if !unreadable.is_empty() {
                work.spawn(this.clone().bury_unreadable(unreadable, token.clone()));
            }
            tokio::select! {
                () = async { while work.join_next().await.is_some() {} } => {}
                () = this.keep(&token) => {}
            }
        });
    }

    async fn bury_unreadable(self: Arc<Self>, ids: Vec<ItemId>, token: Token) {
        tracing::error!(events = ids.len(), "what is in the queue is no event of LINE's");
        let reason: Arc<str> = "it is no webhook of LINE's".into();
        let bury = |id| (id, ItemOutcome::Bury { reason: reason.clone(), blocks: false });
        let outcomes: Vec<_> = ids.into_iter().map(bury).collect();
        self.resolve(&token, &outcomes).await;
    }

    /// Renews the leases of a batch for as long as this is polled.
    async fn keep(&self, token: &Token) {
        loop {
            sleep(self.settings.lease / 3).await;
            let renew = self.store.renew(&self.settings.queue, token, self.settings.lease);
            if let Err(error) = with_timeout(self.settings.store_budget, renew).await {
                metric_names::count_store_error(&error);
            }
        }
    }

    /// Events that ask for the same lock share a lane.
    fn lane_of(&self, event: &Arrived) -> String {
        let locked = self.settings.rules.guarding(&event.event) != Guarding::None;
        let user = event.event.user_id().filter(|_| locked);
        user.map_or_else(|| event.id.to_string(), Into::into)
    }

    /// The first one is decided on before the others, so that it is the one that goes on. It goes on
    /// when they are decided on too: otherwise a quick bot would be through with it before they ask
    /// for the lock. Then they are all handled side by side.
    async fn lane(self: Arc<Self>, events: Vec<Taken>, token: Token, took: Duration) {
        let (mut hands, mut others) = (JoinSet::new(), Vec::new());
        let (all_decided, go) = oneshot::channel();
        let mut go = Some(go);
        for taken in events {
            let (span, has_place) = (taken.0.span(), taken.2.is_some());
            let (deciding, decided) = oneshot::channel();
            let go = go.take();
            let is_first = go.is_some();
            let work = self.clone().attend_to(taken, token.clone(), took, deciding, go);
            hands.spawn(work.instrument(span));
            if is_first {
                let _ = decided.await;
            } else if has_place {
                others.push(decided);
            }
        }
        for decided in others {
            let _ = decided.await;
        }
        let _ = all_decided.send(());
        while hands.join_next().await.is_some() {}
    }

    async fn attend_to(
        self: Arc<Self>,
        (event, leased, place): Taken,
        token: Token,
        took: Duration,
        deciding: oneshot::Sender<()>,
        go: Option<oneshot::Receiver<()>>,
    ) {
        // A lease that is asked for again may bring more events than there are places by then.
        let waiting = async { self.places.clone().acquire_owned().await.ok() };
        let place = if place.is_some() { place } else { waiting.await };
        if place.is_none() {
            // It stops: whoever leases it next handles it.
            return;
        }
        let budget = Arc::new(self.budget(took));
        let (hand, admission) = match self.local.take(event.id) {
            Ok(hand) => (Some(hand), self.admit(&event, &leased, &budget).await),
            Err(progress) => (None, progress.into()),
        };
        drop(deciding);
        if let Some(go) = go {
            let _ = go.await;
        }
        let outcome = self.carry_out(&event, &leased, admission, budget).await;
        // Before the store hears of it: whoever gets it from there next, such as after an operator's
        // word that a dead letter may run again, must not find it in hand.
        drop(hand);
        self.resolve(&token, &[(event.id, outcome)]).await;
    }

    /// The event that was stored.
    fn read(&self, leased: &LeasedItem) -> Option<Arrived> {
        let event = Webhook::parse(&leased.item.payload).ok()?.events.pop()?;
        let header = |name| leased.item.headers.get(name).map(String::as_str);
        Some(Arrived {
            id: leased.item.id,
            event,
            correlation: header(CORRELATION).unwrap_or_default().into(),
            trace: header(TRACEPARENT).and_then(Traceparent::parse),
            reply_until: Instant::now() + self.settings.reply_within.saturating_sub(leased.age),
        })
    }
}
