//! Calls that end within their limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hapax_core::{StoreError, limited};
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind, Value};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::connect::{Barrier, Connector};
use crate::fault::Fault;
use crate::link::Link;
use crate::script::Script;

/// Sends calls over the link, not too many at once, each within its limit.
pub(crate) struct Calls {
    link: Link,
    /// For calls that wait for replicas.
    waiting: Option<Waiting>,
    turns: Semaphore,
    pub(crate) limit: Duration,
}

/// A connection does nothing else while it waits, hence several of them, used in turn.
struct Waiting {
    links: [Link; 8],
    turn: AtomicUsize,
    wait: Wait,
}

impl Waiting {
    fn new(connector: &Arc<Connector>, wait: Wait) -> Self {
        let links = std::array::from_fn(|_| Link::new(connector.clone()));
        Self { links, turn: AtomicUsize::new(0), wait }
    }

    fn next(&self) -> &Link {
        &self.links[self.turn.fetch_add(1, Ordering::Relaxed) % self.links.len()]
    }
}

/// How many replicas must have a write before it is acknowledged, and how long that may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) replicas: u16,
    pub(crate) within: Duration,
}

impl Wait {
    pub(crate) const WITHIN: Duration = Duration::from_secs(1);

    pub(crate) fn on(replicas: u16, within: Duration) -> Option<Self> {
        (replicas > 0).then_some(Self { replicas, within })
    }
}

/// One script with what it is told.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) script: &'a Script,
    pub(crate) keys: &'a [&'a str],
    pub(crate) args: &'a [&'a [u8]],
    /// Which argument tells the server's history, where the client knows it.
    pub(crate) history: Option<usize>,
    /// A key of the same slot that is written behind the script where replicas are waited for: what
    /// they confirm is the last write of the connection, and a script may have found its work done.
    pub(crate) barrier: Option<&'a str>,
}

/// An answer, and the doubt that may hang over it.
pub(crate) struct Answer {
    pub(crate) value: Value,
    /// The call was made twice, because the connection broke under the first one with this error:
    /// what the second one found may be the work of the first.
    pub(crate) doubt: Option<StoreError>,
}

impl Answer {
    pub(crate) fn read<T: FromRedisValue>(self) -> Result<T, StoreError> {
        read(self.value)
    }
}

pub(crate) fn read<T: FromRedisValue>(value: Value) -> Result<T, StoreError> {
    // The driver's message would show the value.
    T::from_redis_value(value).map_err(|_| unexpected())
}

/// A script answered with something that it cannot answer.
pub(crate) fn unexpected() -> StoreError {
    StoreError::Internal { reason: "an answer of an unexpected form".into(), source: None }
}

impl Calls {
    pub(crate) fn new(
        connector: Arc<Connector>,
        in_flight: usize,
        limit: Duration,
        wait: Option<Wait>,
    ) -> Self {
        let within = |wait: Wait| Wait { within: wait.within.min(limit / 2), ..wait };
        let waiting = wait.map(|wait| Waiting::new(&connector, within(wait)));
        Self { link: Link::new(connector), waiting, turns: Semaphore::new(in_flight), limit }
    }

    /// Runs a script on keys of one slot.
    pub(crate) async fn run(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> Result<Answer, StoreError> {
        self.make(Call { script, keys, args, history: None, barrier: None }).await
    }

    /// Makes a call. Should the connection break meanwhile, it is made once more: every script
    /// recognises its own work, or is told apart by [`Answer::doubt`].
    pub(crate) async fn make(&self, call: Call<'_>) -> Result<Answer, StoreError> {
        self.turn(async {
            match self.attempt(call).await {
                Ok(value) => Ok(Answer { value, doubt: None }),
                Err((Fault::Cut, error)) => {
                    let doubt = Some(Fault::Cut.error(error, self.limit));
                    // Rare, so it is kept out of every call's way in a box.
                    let again = Box::pin(self.attempt(call)).await;
                    again.map(|value| Answer { value, doubt }).map_err(|e| self.error(e))
                }
                Err(error) => Err(self.error(error)),
            }
        })
        .await
    }

    /// Asks every master something that changes nothing.
    pub(crate) async fn ask_all(&self, cmd: &Cmd) -> Result<Vec<Value>, StoreError> {
        self.turn(async {
            let connection = self.link.connection().await;
            let (mut connection, generation) =
                connection.map_err(|e| self.error((Fault::of(&e), e)))?;
            let answers = connection.ask_all(cmd).await;
            let answers = answers.map_err(|e| self.error(self.link.reported(generation, e)))?;
            Ok(answers.into_iter().map(|(_, answer)| answer).collect())
        })
        .await
    }

    /// Where the masters are.
    pub(crate) async fn masters(&self) -> Result<Vec<String>, StoreError> {
        self.turn(async {
            let (mut connection, generation) =
                self.link.connection().await.map_err(|e| self.error((Fault::of(&e), e)))?;
            let answers = connection.ask_all(&redis::cmd("PING")).await;
            let answers = answers.map_err(|e| self.error(self.link.reported(generation, e)))?;
            Ok(answers.into_iter().map(|(address, _)| address).collect())
        })
        .await
    }

    /// Asks one master something that changes nothing.
    pub(crate) async fn ask_at(&self, address: &str, cmd: &Cmd) -> Result<Value, StoreError> {
        self.turn(async {
            let (mut connection, generation) =
                self.link.connection().await.map_err(|e| self.error((Fault::of(&e), e)))?;
            let answer = connection.ask_at(address, cmd).await;
            answer.map_err(|e| self.error(self.link.reported(generation, e)))
        })
        .await
    }

    async fn attempt(&self, mut call: Call<'_>) -> Result<Value, (Fault, RedisError)> {
        let (link, barrier) = match (&self.waiting, call.barrier) {
            (Some(waiting), Some(key)) => {
                (waiting.next(), Some(Barrier { key, wait: waiting.wait }))
            }
            _ => (&self.link, None),
        };
        let connection = link.connection().await;
        let (mut connection, generation) = connection.map_err(|e| (Fault::of(&e), e))?;
        let (open, mut args);
        if let Some(at) = call.history {
            open = link.history.open_job(&mut connection, generation).await;
            args = call.args.to_vec();
            args[at] = open.as_deref().unwrap_or_default().as_bytes();
            call.args = &args;
        }
        let known = call.script.known(call.keys, call.args);
        let mut answer = connection.send(&known, barrier).await;
        if let Err(error) = &answer
            && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        {
            let whole = call.script.whole(call.keys, call.args);
            answer = Box::pin(connection.send(&whole, barrier)).await;
        }
        answer.map_err(|error| link.reported(generation, error))
    }

    fn error(&self, (fault, error): (Fault, RedisError)) -> StoreError {
        fault.error(error, self.limit)
    }

    async fn turn<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let started = Instant::now();
        let answer = limited(self.limit, async {
            let _turn = self.turns.acquire().await.map_err(StoreError::internal)?;
            call.await
        });
        let answer = answer.await;
        if matches!(answer, Err(StoreError::Timeout { .. })) {
            self.link.was_silent(started);
            let waiting = self.waiting.iter().flat_map(|waiting| &waiting.links);
            waiting.for_each(|link| link.was_silent(started));
        }
        answer
    }
}
