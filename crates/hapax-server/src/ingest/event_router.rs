//! Routes events to the bus, to the state keys that other programs read, and to the Pub/Sub channel.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use hapax::bus::{BusError, NewEvent};
use hapax::log::Appended;
use hapax::redis::RedisCommands;
use hapax::{StoreError, metric_names, millis};
use metrics::counter;

use super::IngestConfig;
use super::job_state::{IngestedState, JobName, JobStateCache, SET_STATE_SCRIPT};
use crate::api::sse::EventBus;

/// How many times an event is tried that the store refuses while it accepts others.
const MAX_TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct EventRouter {
    pub(super) bus: EventBus,
    redis: Arc<RedisCommands>,
    config: Arc<IngestConfig>,
    states: JobStateCache,
}

/// An event and its JSON as the worker wrote it.
pub(super) struct IncomingEvent {
    pub(super) event: NewEvent,
    pub(super) json: Vec<u8>,
}

/// The outcome of routing an event: the bus has it, or the reason why the bus will never accept it.
pub(super) type RouteOutcome = Result<(), String>;

impl EventRouter {
    pub(super) fn new(bus: EventBus, redis: Arc<RedisCommands>, config: Arc<IngestConfig>) -> Self {
        Self { bus, redis, config, states: JobStateCache::default() }
    }

    /// Routes events in order and returns one outcome for each. After an error, route the same events
    /// again: published ones are recognised as duplicates.
    pub(super) async fn route(
        &self,
        events: &[IncomingEvent],
    ) -> Result<Vec<RouteOutcome>, StoreError> {
        let new: Vec<_> = events.iter().map(|incoming| incoming.event.clone()).collect();
        let answers = publish(&self.bus, &new).await?;
        let states = self.states(events, &answers).await?;
        try_join_all(states.iter().map(|(job, state)| self.write_state(job, state))).await?;
        self.publish_to_channel(events, &answers).await?;
        let outcomes = answers.into_iter().map(|answer| {
            let (result, outcome) = match answer {
                Ok(Appended::Published(_)) => ("published", Ok(())),
                Ok(Appended::Duplicate(_)) => ("duplicate", Ok(())),
                Ok(Appended::Conflict) => {
                    let reason = "event-conflict: the log has this event with different content";
                    ("dead", Err(reason.into()))
                }
                Ok(Appended::Closed) => {
                    ("dead", Err("job-closed: the job has had its last event".into()))
                }
                Err(reason) => ("dead", Err(reason)),
            };
            counter!(metric_names::INGEST_ENTRIES, "result" => result).increment(1);
            outcome
        });
        Ok(outcomes.collect())
    }

    /// The current states of the jobs of these events.
    async fn states(
        &self,
        events: &[IncomingEvent],
        answers: &[Result<Appended, String>],
    ) -> Result<HashMap<JobName, IngestedState>, StoreError> {
        let mut known: HashMap<JobName, Option<IngestedState>> = HashMap::new();
        for (IncomingEvent { event, json }, answer) in events.iter().zip(answers) {
            let Ok(answer) = answer else { continue };
            let job = (event.domain.clone(), event.job_id.clone());
            known.insert(job, self.states.after(event, json, answer));
        }
        let looked = known.into_iter().map(|(job, state)| async {
            let state = match state {
                Some(state) => Some(state),
                None => self.read_state(&job).await?,
            };
            Ok::<_, StoreError>(state.map(|state| (job, state)))
        });
        Ok(try_join_all(looked).await?.into_iter().flatten().collect())
    }

    async fn read_state(
        &self,
        (domain, job_id): &JobName,
    ) -> Result<Option<IngestedState>, StoreError> {
        match self.bus.state(domain, job_id).await {
            Ok(head) => Ok(head
                .and_then(|head| head.state)
                .map(|state| IngestedState { seq: state.seq, json: state.payload.to_vec() })),
            Err(BusError::Store(error)) => Err(error),
            // The names were valid when the event was published; other errors do not occur.
            Err(_) => Ok(None),
        }
    }

    async fn write_state(
        &self,
        (domain, job_id): &JobName,
        state: &IngestedState,
    ) -> Result<(), StoreError> {
        let key = format!("{domain}:state:{job_id}");
        let (seq, ttl) = (state.seq.to_string(), millis(self.config.state_retention).to_string());
        let parts: [&[u8]; 7] = [
            b"EVAL",
            SET_STATE_SCRIPT.as_bytes(),
            b"1",
            key.as_bytes(),
            &state.json,
            seq.as_bytes(),
            ttl.as_bytes(),
        ];
        self.redis.command(&parts).await.map(drop)
    }

    /// Publishes routed events on the Pub/Sub channel for existing readers.
    async fn publish_to_channel(
        &self,
        events: &[IncomingEvent],
        answers: &[Result<Appended, String>],
    ) -> Result<(), StoreError> {
        let Some(channel) = &self.config.channel else { return Ok(()) };
        let published = events.iter().zip(answers).filter(|(_, answer)| {
            matches!(answer, Ok(Appended::Published(_) | Appended::Duplicate(_)))
        });
        let published = published.map(|(IncomingEvent { event, json }, _)| {
            let channel =
                channel.replace("{domain}", &event.domain).replace("{job_id}", &event.job_id);
            async move {
                let parts: [&[u8]; 3] = [b"PUBLISH", channel.as_bytes(), json];
                self.redis.command(&parts).await
            }
        });
        try_join_all(published).await.map(drop)
    }
}

/// The answer of the bus to an event, or why it will never take it.
type PublishOutcome = Result<Appended, String>;

/// Publishes events in order. Invalid ones are left out, so that they do not hold up the others.
async fn publish(bus: &EventBus, events: &[NewEvent]) -> Result<Vec<PublishOutcome>, StoreError> {
    let checked: Vec<_> = events.iter().map(|event| bus.check(event)).collect();
    let valid = events.iter().zip(&checked).filter(|(_, checked)| checked.is_ok());
    let valid: Vec<_> = valid.map(|(event, _)| event.clone()).collect();
    let mut published = publish_valid(bus, &valid).await?.into_iter();
    let outcomes = checked.into_iter().map(|checked| match checked {
        Ok(()) => published.next().unwrap_or_else(|| Err("the store gave no answer".into())),
        Err(invalid) => Err(invalid.to_string()),
    });
    Ok(outcomes.collect())
}

/// Publishes all events at once. Where the store refuses them for good, each half is tried, down to the event
/// that is refused.
async fn publish_valid(
    bus: &EventBus,
    events: &[NewEvent],
) -> Result<Vec<PublishOutcome>, StoreError> {
    let mut refused = String::new();
    let tries = if events.len() == 1 { MAX_TRIES } else { 1 };
    for attempt in 0..tries {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        match bus.publish_all(events).await {
            Ok(answers) => return Ok(answers.into_iter().map(Ok).collect()),
            Err(BusError::Store(error)) if error.is_transient() => return Err(error),
            Err(BusError::Store(error)) => {
                refused = format!("the store refuses it ({})", error.label());
            }
            Err(invalid) => refused = invalid.to_string(),
        }
    }
    if events.len() <= 1 {
        return Ok(events.iter().map(|_| Err(refused.clone())).collect());
    }
    let (first, second) = events.split_at(events.len() / 2);
    let mut outcomes = Box::pin(publish_valid(bus, first)).await?;
    outcomes.extend(Box::pin(publish_valid(bus, second)).await?);
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use hapax::bus::BusConfig;
    use hapax::memory::MemoryStore;
    use hapax_conformance::FaultyStore;

    use super::*;

    #[tokio::test]
    async fn fault_16_one_invalid_event_costs_no_extra_calls() {
        let store = FaultyStore::new(Arc::new(MemoryStore::default()));
        let bus = EventBus::with_frames(Arc::new(store.clone()), BusConfig::default());
        let mut events: Vec<_> =
            (0..200).map(|seq| NewEvent::new("scan", "job", "vision", seq)).collect();
        events[100].stage = "gap".into();
        let outcomes = publish(&bus, &events).await.unwrap();
        for (nth, outcome) in outcomes.iter().enumerate() {
            assert_eq!(outcome.is_err(), nth == 100, "{nth}: {outcome:?}");
        }
        assert!(store.calls() <= 4, "{} calls", store.calls());
    }
}
