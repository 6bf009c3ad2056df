//! Runs scripts and commands: at most so many at once, each within the timeout.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hapax_core::{StoreError, StoreResult, with_timeout};
use redis::{Cmd, ErrorKind, FromRedisValue, ServerErrorKind, Value};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::connect::{RedisConnector, ReplicaBarrier, ReplicaWait, SharedConnection};
use crate::error::{ClassifiedError, RedisErrorClass};
use crate::script::Script;

pub(crate) struct RedisClient {
    connection: SharedConnection,
    /// For calls that wait for replicas.
    waiting: Option<WaitingConnections>,
    permits: Semaphore,
    timeout: Duration,
}

/// Connections used in turn, because `WAIT` blocks everything behind it on its connection.
struct WaitingConnections {
    connections: [SharedConnection; 8],
    next: AtomicUsize,
    wait: ReplicaWait,
}

impl WaitingConnections {
    fn new(connector: &Arc<RedisConnector>, wait: ReplicaWait) -> Self {
        let connections = std::array::from_fn(|_| SharedConnection::new(connector.clone()));
        Self { connections, next: AtomicUsize::new(0), wait }
    }

    fn next(&self) -> &SharedConnection {
        &self.connections[self.next.fetch_add(1, Ordering::Relaxed) % self.connections.len()]
    }
}

/// One script with its keys and arguments.
#[derive(Clone, Copy)]
pub(crate) struct ScriptCall<'a> {
    pub(crate) script: &'a Script,
    pub(crate) keys: &'a [&'a str],
    pub(crate) args: &'a [&'a [u8]],
    /// The index of the argument that takes `0 <replication id>`, if the client knows it.
    pub(crate) replication_id_arg: Option<usize>,
    /// A key of the same slot to be written behind the script if replicas are waited for.
    pub(crate) barrier_key: Option<&'a str>,
}

pub(crate) struct ScriptReply {
    pub(crate) value: Value,
    /// The error of the first of two attempts, if its reply was lost: what the second attempt found may
    /// be the work of the first.
    pub(crate) first_error: Option<StoreError>,
}

impl ScriptReply {
    pub(crate) fn read<T: FromRedisValue>(self) -> StoreResult<T> {
        read(self.value)
    }
}

pub(crate) fn read<T: FromRedisValue>(value: Value) -> StoreResult<T> {
    // The driver's error is dropped, because it shows the value.
    T::from_redis_value(value).map_err(|_| unexpected_reply())
}

pub(crate) fn unexpected_reply() -> StoreError {
    StoreError::Internal { reason: "a reply of an unexpected form".into(), source: None }
}

impl RedisClient {
    pub(crate) fn new(
        connector: Arc<RedisConnector>,
        max_in_flight: usize,
        timeout: Duration,
        wait: Option<ReplicaWait>,
    ) -> Self {
        let capped =
            |wait: ReplicaWait| ReplicaWait { timeout: wait.timeout.min(timeout / 2), ..wait };
        let waiting = wait.map(|wait| WaitingConnections::new(&connector, capped(wait)));
        let (connection, permits) =
            (SharedConnection::new(connector), Semaphore::new(max_in_flight));
        Self { connection, waiting, permits, timeout }
    }

    pub(crate) async fn run(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> StoreResult<ScriptReply> {
        let (replication_id_arg, barrier_key) = (None, None);
        self.call(ScriptCall { script, keys, args, replication_id_arg, barrier_key }).await
    }

    /// Runs a script, and once more if the connection breaks meanwhile: a script either recognises its own
    /// work, or its caller looks at [`ScriptReply::first_error`].
    pub(crate) async fn call(&self, call: ScriptCall<'_>) -> StoreResult<ScriptReply> {
        self.within_timeout(async {
            match self.attempt(call).await {
                Ok(value) => Ok(ScriptReply { value, first_error: None }),
                Err(error) if error.class == RedisErrorClass::Disconnected => {
                    let first_error = Some(self.store_error(error));
                    // Boxed, because it is rare: the futures of all calls stay small.
                    let value = Box::pin(self.attempt(call)).await;
                    let value = value.map_err(|error| self.store_error(error))?;
                    Ok(ScriptReply { value, first_error })
                }
                Err(error) => Err(self.store_error(error)),
            }
        })
        .await
    }

    /// Sends a command that changes nothing to every master, and returns each address with its reply.
    pub(crate) async fn send_to_masters(&self, cmd: &Cmd) -> StoreResult<Vec<(String, Value)>> {
        self.within_timeout(async {
            let connection = self.connection.get().await;
            let (mut connection, generation) = connection.map_err(|e| self.store_error(e))?;
            let replies = connection.send_to_masters(cmd).await;
            replies.map_err(|e| self.store_error(self.connection.report(generation, e)))
        })
        .await
    }

    /// Sends a command to the master at that address; an empty one means the node of the command's key. A
    /// command whose reply was lost is not repeated.
    pub(crate) async fn send_to(&self, address: &str, cmd: &Cmd) -> StoreResult<Value> {
        self.within_timeout(async {
            let connection = self.connection.get().await;
            let (mut connection, generation) = connection.map_err(|e| self.store_error(e))?;
            let reply = connection.send_to(address, cmd).await;
            reply.map_err(|e| self.store_error(self.connection.report(generation, e)))
        })
        .await
    }

    async fn attempt(&self, mut call: ScriptCall<'_>) -> Result<Value, ClassifiedError> {
        let (shared, barrier) = match (&self.waiting, call.barrier_key) {
            (Some(waiting), Some(key)) => {
                (waiting.next(), Some(ReplicaBarrier { key, wait: waiting.wait }))
            }
            _ => (&self.connection, None),
        };
        let (mut connection, generation) = shared.get().await?;
        let (open_job, mut args);
        if let Some(at) = call.replication_id_arg {
            open_job = shared.replication_id.open_job_prefix(&mut connection, generation).await;
            args = call.args.to_vec();
            args[at] = open_job.as_deref().unwrap_or_default().as_bytes();
            call.args = &args;
        }
        let by_hash = call.script.by_hash(call.keys, call.args);
        let mut reply = connection.send_with_barrier(&by_hash, barrier).await;
        if let Err(error) = &reply
            && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        {
            let with_body = call.script.with_body(call.keys, call.args);
            reply = Box::pin(connection.send_with_barrier(&with_body, barrier)).await;
        }
        reply.map_err(|error| shared.report(generation, error))
    }

    fn store_error(&self, error: ClassifiedError) -> StoreError {
        error.into_store_error(self.timeout)
    }

    async fn within_timeout<T>(
        &self,
        call: impl Future<Output = StoreResult<T>>,
    ) -> StoreResult<T> {
        let started = Instant::now();
        let result = with_timeout(self.timeout, async {
            let _permit = self.permits.acquire().await.map_err(StoreError::internal)?;
            call.await
        });
        let result = result.await;
        if matches!(result, Err(StoreError::Timeout { .. })) {
            let waiting = self.waiting.iter().flat_map(|waiting| &waiting.connections);
            let all = waiting.chain([&self.connection]);
            all.for_each(|connection| connection.replace_after_timeout(started));
        }
        result
    }
}
