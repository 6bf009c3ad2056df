//! Events on their way from an entry to the bus, the state that others read, and their channel.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use hapax::bus::{Bus, BusError, NewEvent};
use hapax::log::Appended;
use hapax::redis::RawRedis;
use hapax::{StoreError, meters, millis};
use metrics::counter;

use super::job_state::{Job, SCRIPT, State, States};
use super::settings::Plan;

/// How many times one event is tried that the store refuses although it takes others.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Router {
    pub(super) bus: Bus,
    redis: Arc<RawRedis>,
    plan: Arc<Plan>,
    states: States,
}

/// An event, and the JSON it came as.
pub(super) struct Arrived {
    pub(super) event: NewEvent,
    pub(super) json: Vec<u8>,
}

/// What became of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Routed {
    /// The bus has it.
    Done,
    /// The bus will never take it, and why.
    Dead(String),
}

impl Router {
    pub(super) fn new(bus: Bus, redis: Arc<RawRedis>, plan: Arc<Plan>) -> Self {
        Self { bus, redis, plan, states: States::default() }
    }

    /// Routes events in this order; one answer each. An error means that a server gave no answer:
    /// routed again, what was published is recognised.
    pub(super) async fn route(&self, arrived: &[Arrived]) -> Result<Vec<Routed>, StoreError> {
        let answers = self.publish(arrived).await?;
        let states = self.states(arrived, &answers).await?;
        try_join_all(states.iter().map(|(job, state)| self.keep(job, state))).await?;
        self.tell(arrived, &answers).await?;
        let routed = answers.into_iter().map(|answer| match answer {
            Ok(Appended::Published(_)) => ("published", Routed::Done),
            Ok(Appended::Duplicate(_)) => ("duplicate", Routed::Done),
            Ok(Appended::Conflict) => {
                let reason = "event-conflict: its identity is known with another content";
                ("dead", Routed::Dead(reason.into()))
            }
            Ok(Appended::Closed) => {
                ("dead", Routed::Dead("job-closed: the job has had its last event".into()))
            }
            Err(reason) => ("dead", Routed::Dead(reason)),
        });
        let counted = |(result, routed): (&'static str, _)| {
            counter!(meters::INGEST_ENTRIES, "result" => result).increment(1);
            routed
        };
        Ok(routed.map(counted).collect())
    }

    /// All at once; where one of them is refused, each on its own, so that it harms no other.
    async fn publish(
        &self,
        arrived: &[Arrived],
    ) -> Result<Vec<Result<Appended, String>>, StoreError> {
        let events: Vec<_> = arrived.iter().map(|one| one.event.clone()).collect();
        match self.bus.publish_all(&events).await {
            Ok(answers) => return Ok(answers.into_iter().map(Ok).collect()),
            Err(BusError::Store(error)) if error.is_passing() => return Err(error),
            Err(_) => {}
        }
        let mut answers = Vec::with_capacity(events.len());
        for event in &events {
            answers.push(self.publish_one(event).await?);
        }
        Ok(answers)
    }

    async fn publish_one(&self, event: &NewEvent) -> Result<Result<Appended, String>, StoreError> {
        let mut refused = String::new();
        for _ in 0..TRIES {
            match self.bus.publish(event).await {
                Ok(answer) => return Ok(Ok(answer)),
                Err(BusError::Store(error)) if error.is_passing() => return Err(error),
                Err(BusError::Store(error)) => {
                    refused = format!("the store refuses it ({})", error.label());
                    tokio::time::sleep(PAUSE).await;
                }
                Err(invalid) => return Ok(Err(invalid.to_string())),
            }
        }
        Ok(Err(refused))
    }

    /// How the jobs of these events stand now.
    async fn states(
        &self,
        arrived: &[Arrived],
        answers: &[Result<Appended, String>],
    ) -> Result<HashMap<Job, State>, StoreError> {
        let mut known: HashMap<Job, Option<State>> = HashMap::new();
        for (Arrived { event, json }, answer) in arrived.iter().zip(answers) {
            let Ok(answer) = answer else { continue };
            let job = (event.domain.clone(), event.job_id.clone());
            known.insert(job, self.states.after(event, json, answer));
        }
        let looked = known.into_iter().map(|(job, state)| async {
            let state = match state {
                Some(state) => Some(state),
                None => self.look(&job).await?,
            };
            Ok::<_, StoreError>(state.map(|state| (job, state)))
        });
        Ok(try_join_all(looked).await?.into_iter().flatten().collect())
    }

    async fn look(&self, (domain, job_id): &Job) -> Result<Option<State>, StoreError> {
        match self.bus.state(domain, job_id).await {
            Ok(head) => Ok(head
                .map(|head| head.state)
                .map(|state| State { seq: state.seq, json: state.payload.to_vec() })),
            Err(BusError::Store(error)) => Err(error),
            // It was published, so that there is no other reason.
            Err(_) => Ok(None),
        }
    }

    async fn keep(&self, (domain, job_id): &Job, state: &State) -> Result<(), StoreError> {
        let key = format!("{domain}:state:{job_id}");
        let (seq, ttl) = (state.seq.to_string(), millis(self.plan.lifetime).to_string());
        let parts: [&[u8]; 7] = [
            b"EVAL",
            SCRIPT.as_bytes(),
            b"1",
            key.as_bytes(),
            &state.json,
            seq.as_bytes(),
            ttl.as_bytes(),
        ];
        self.redis.command(&parts).await.map(drop)
    }

    /// Publishes what the bus has on the channel of those who still listen there.
    async fn tell(
        &self,
        arrived: &[Arrived],
        answers: &[Result<Appended, String>],
    ) -> Result<(), StoreError> {
        let Some(channel) = &self.plan.channel else { return Ok(()) };
        let told = arrived.iter().zip(answers).filter(|(_, answer)| {
            matches!(answer, Ok(Appended::Published(_) | Appended::Duplicate(_)))
        });
        let told = told.map(|(Arrived { event, json }, _)| {
            let channel =
                channel.replace("{domain}", &event.domain).replace("{job_id}", &event.job_id);
            async move {
                let parts: [&[u8]; 3] = [b"PUBLISH", channel.as_bytes(), json];
                self.redis.command(&parts).await
            }
        });
        try_join_all(told).await.map(drop)
    }
}
