//! The dead letters of the router: the queue `ingest`.
//!
//! An entry that cannot be routed is enqueued, and buried by the worker below. One that an operator
//! puts back is routed once more. Should a process die between the two steps, the next one tries the
//! entry again before it buries it, which harms nobody.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax::queue::{Enqueued, Item, ItemId, Leased, Outcome, QueueName, Take};
use hapax::{Store, StoreError, Tenant};

use super::entry::{self, Entry};
use super::event_router::{Arrived, Routed, Router};

const LEASE: Duration = Duration::from_secs(30);
const AT_MOST: usize = 20;
/// How often the queue is looked at without a hint.
const LOOK: Duration = Duration::from_secs(1);
/// How long until a server is asked again that gave no answer.
const LATER: Duration = Duration::from_secs(5);
/// How many times an item is begun: whoever begins it more often died of it.
const ATTEMPTS: u32 = 5;
/// How long an item that was routed after all is recognised.
const REMEMBER: Duration = Duration::from_secs(86_400);

pub(super) struct DeadLetters {
    store: Arc<dyn Store>,
    queue: QueueName,
    /// Why items that are about to be buried are.
    doomed: Mutex<HashMap<ItemId, Arc<str>>>,
}

impl DeadLetters {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        let queue = QueueName::new("ingest").expect("a name");
        Self { store, queue, doomed: Mutex::default() }
    }

    /// Gives an entry up. When this returns it is in the queue for good.
    pub(super) async fn take(
        &self,
        domain: &str,
        stream: &str,
        entry: &Entry,
        reason: &str,
    ) -> Result<(), StoreError> {
        let id = ItemId::named(&["ingest", stream, &entry.id]);
        let data = entry.data.clone().unwrap_or_default();
        let item = Item::new(&Tenant::default(), stream, data).id(id);
        let item = item.header("domain", domain).header("entry", &entry.id);
        let ours = self.doomed().insert(id, reason.into()).is_some();
        let answer = self.store.enqueue(&self.queue, &[item]).await?;
        if answer == [Enqueued::Duplicate] && !ours {
            // Given up before: an operator may have put it back by now.
            self.doomed().remove(&id);
        }
        Ok(())
    }

    fn doomed(&self) -> MutexGuard<'_, HashMap<ItemId, Arc<str>>> {
        self.doomed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Buries what was given up, and routes what was put back; never ends.
    pub(super) async fn work(&self, router: &Router) {
        let mut take = Take::new(AT_MOST, LEASE);
        loop {
            let mut arrivals = self.store.arrivals(&self.queue);
            match self.some(router, &take).await {
                Ok(0) => arrivals.changed(LOOK).await,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(reason = error.label(), "the queue `ingest`: {error}");
                    tokio::time::sleep(LOOK).await;
                    // With the same token: what it holds is handed out again.
                    continue;
                }
            }
            take = Take::new(AT_MOST, LEASE);
        }
    }

    async fn some(&self, router: &Router, take: &Take) -> Result<usize, StoreError> {
        let leased = self.store.lease(&self.queue, take).await?;
        let mut outcomes = Vec::with_capacity(leased.len());
        for one in &leased {
            outcomes.push((one.item.id, self.outcome(router, one).await));
        }
        if !outcomes.is_empty() {
            let _ = self.store.resolve(&self.queue, &take.token, &outcomes).await?;
        }
        outcomes.iter().for_each(|(id, _)| drop(self.doomed().remove(id)));
        Ok(outcomes.len())
    }

    async fn outcome(&self, router: &Router, leased: &Leased) -> Outcome {
        let bury = |reason: &str| Outcome::Bury { reason: reason.into(), blocks: false };
        let doomed = self.doomed().get(&leased.item.id).cloned();
        if let Some(reason) = doomed {
            return bury(&reason);
        }
        if leased.attempt > ATTEMPTS {
            return bury("whoever routed it ended before it was done, again and again");
        }
        let item = &leased.item;
        let domain = item.headers.get("domain").map_or("", String::as_str);
        let data = (!item.payload.is_empty()).then_some(&item.payload[..]);
        let event = match entry::event(domain, data) {
            Ok(event) => event,
            Err(reason) => return bury(&reason),
        };
        let arrived = Arrived { event, json: item.payload.to_vec() };
        match router.route(&[arrived]).await.as_deref() {
            Ok([Routed::Dead(reason)]) => bury(reason),
            Ok(_) => Outcome::Ack { remember: REMEMBER },
            Err(error) => {
                let reason = error.label().into();
                Outcome::Retry { after: LATER, counts: false, reason }
            }
        }
    }
}
