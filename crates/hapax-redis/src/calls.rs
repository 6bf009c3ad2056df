//! Calls that end within their limit.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::{StoreError, limited};
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind, Value};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::connect::Connector;
use crate::fault::Fault;
use crate::link::Link;
use crate::script::Script;

/// Sends calls over the link, not too many at once, each within its limit.
pub(crate) struct Calls {
    link: Link,
    turns: Semaphore,
    pub(crate) limit: Duration,
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
    pub(crate) fn new(connector: Arc<Connector>, in_flight: usize, limit: Duration) -> Self {
        Self { link: Link::new(connector), turns: Semaphore::new(in_flight), limit }
    }

    /// Runs a script on its one key. Should the connection break meanwhile, it is run once more:
    /// every script recognises its own work, or is told apart by [`Answer::doubt`].
    pub(crate) async fn run(
        &self,
        script: &Script,
        key: &str,
        args: &[&[u8]],
    ) -> Result<Answer, StoreError> {
        self.turn(async {
            let first = self.attempt(script, key, args).await;
            match first {
                Ok(value) => Ok(Answer { value, doubt: None }),
                Err((Fault::Cut, error)) => {
                    let doubt = Some(Fault::Cut.error(error, self.limit));
                    // Rare, so it is kept out of every call's way in a box.
                    let again = Box::pin(self.attempt(script, key, args)).await;
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
            let answers = answers.map_err(|e| self.error(self.reported(generation, e)))?;
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
            let answers = answers.map_err(|e| self.error(self.reported(generation, e)))?;
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
            answer.map_err(|e| self.error(self.reported(generation, e)))
        })
        .await
    }

    async fn attempt(
        &self,
        script: &Script,
        key: &str,
        args: &[&[u8]],
    ) -> Result<Value, (Fault, RedisError)> {
        let connection = self.link.connection().await;
        let (mut connection, generation) = connection.map_err(|e| (Fault::of(&e), e))?;
        let mut answer = connection.ask(&script.known(key, args)).await;
        if let Err(error) = &answer
            && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        {
            let whole = script.whole(key, args);
            answer = Box::pin(connection.ask(&whole)).await;
        }
        answer.map_err(|e| self.reported(generation, e))
    }

    fn reported(&self, generation: u64, error: RedisError) -> (Fault, RedisError) {
        let fault = Fault::of(&error);
        self.link.report(generation, fault);
        (fault, error)
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
        }
        answer
    }
}
