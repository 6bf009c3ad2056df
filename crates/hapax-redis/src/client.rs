//! Runs scripts and commands: at most so many at once, each within the timeout.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hapax_core::{StoreError, StoreResult, deadline_after, with_timeout};
use redis::{Cmd, ErrorKind, FromRedisValue, RedisResult, ServerErrorKind, Value};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::connect::{
    RedisConnection, RedisConnector, ReplicaBarrier, ReplicaWait, SharedConnection,
};
use crate::error::{ClassifiedError, RedisErrorClass};
use crate::script::{Script, script_millis};

/// How long a marker is kept beyond twice the timeout of its call: a first attempt is refused after the timeout and
/// the allowance for clocks, a second one is sent within the timeout.
const MARKER_MARGIN: Duration = Duration::from_secs(5);

pub(crate) struct RedisClient {
    connection: SharedConnection,
    /// For calls that wait for replicas.
    waiting: Option<WaitingConnections>,
    permits: Semaphore,
    pub(crate) timeout: Duration,
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
    /// Whether the script recognises its own work, so that it may be run again after a lost reply.
    pub(crate) repeatable: bool,
}

impl<'a> ScriptCall<'a> {
    pub(crate) fn new(script: &'a Script, keys: &'a [&'a str], args: &'a [&'a [u8]]) -> Self {
        let (replication_id_arg, barrier_key) = (None, None);
        Self { script, keys, args, replication_id_arg, barrier_key, repeatable: true }
    }
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
        self.call(ScriptCall::new(script, keys, args)).await
    }

    /// Runs a script, and once more if the connection breaks meanwhile and the call is repeatable: the script
    /// changes nothing where it was applied before. What it answers then may be wrong, so that its caller
    /// looks at [`ScriptReply::first_error`].
    pub(crate) async fn call(&self, call: ScriptCall<'_>) -> StoreResult<ScriptReply> {
        self.within_timeout(async |deadline| self.call_until(call, deadline).await).await
    }

    /// Reads with plain commands. `None` where the server did not answer: the script that is sent next says why. Without a
    /// connection that is an error here, because the script would wait for a further attempt to connect.
    pub(crate) async fn read_plainly<T>(
        &self,
        read: impl AsyncFnOnce(&mut RedisConnection) -> RedisResult<T>,
    ) -> StoreResult<Option<T>> {
        let connected = self.connection.get().await;
        let (mut connection, generation) = connected.map_err(|error| self.store_error(error))?;
        let found = read(&mut connection).await;
        Ok(found.map_err(|error| self.connection.report(generation, error)).ok())
    }

    /// As [`RedisClient::call`], for a caller that is within a timeout.
    pub(crate) async fn call_until(
        &self,
        call: ScriptCall<'_>,
        deadline: Instant,
    ) -> StoreResult<ScriptReply> {
        match self.attempt(call, deadline).await {
            Ok(value) => Ok(ScriptReply { value, first_error: None }),
            Err(error) if error.class == RedisErrorClass::Disconnected && call.repeatable => {
                let first_error = Some(self.store_error(error));
                // Boxed, because it is rare: the futures of all calls stay small.
                let value = Box::pin(self.attempt(call, deadline)).await;
                let value = value.map_err(|error| self.store_error(error))?;
                Ok(ScriptReply { value, first_error })
            }
            Err(error) => Err(self.store_error(error)),
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends a command that changes nothing to every master, and returns each address with its reply.
    pub(crate) async fn send_to_masters(&self, cmd: &Cmd) -> StoreResult<Vec<(String, Value)>> {
        self.within_timeout(async |_| {
            let connection = self.connection.get().await;
            let (mut connection, generation) = connection.map_err(|e| self.store_error(e))?;
            let replies = connection.send_to_masters(cmd).await;
            replies.map_err(|e| self.store_error(self.connection.report(generation, e)))
        })
        .await
    }

    /// Looks for the masters again after a replica was taken for one; false if the address names a single server.
    pub(crate) fn find_masters_again(&self) -> bool {
        self.connection.find_masters_again()
    }

    /// Sends a command to the master at that address; an empty one means the node of the command's key. A
    /// command whose reply was lost is not repeated.
    pub(crate) async fn send_to(&self, address: &str, cmd: &Cmd) -> StoreResult<Value> {
        self.within_timeout(async |_| {
            let connection = self.connection.get().await;
            let (mut connection, generation) = connection.map_err(|e| self.store_error(e))?;
            let reply = connection.send_to(address, cmd).await;
            reply.map_err(|e| self.store_error(self.connection.report(generation, e)))
        })
        .await
    }

    /// Sends a script. A server that refuses it as too late, although its caller waits, has another clock than
    /// was read from it: the clock is read again.
    async fn attempt(
        &self,
        call: ScriptCall<'_>,
        deadline: Instant,
    ) -> Result<Value, ClassifiedError> {
        let (shared, barrier) = match (&self.waiting, call.barrier_key) {
            (Some(waiting), Some(key)) => {
                (waiting.next(), Some(ReplicaBarrier { key, wait: waiting.wait }))
            }
            _ => (&self.connection, None),
        };
        let (mut connection, generation) = shared.get().await?;
        let mut send = async || {
            let (mut args, script) = (call.args.to_vec(), call.script);
            let open_job;
            if let Some(at) = call.replication_id_arg {
                open_job = shared.replication_id.open_job_prefix(&mut connection, generation).await;
                args[at] = open_job.as_deref().unwrap_or_default().as_bytes();
            }
            let marker_lifetime;
            if script.has_marker {
                let lifetime = self.timeout.saturating_mul(2).saturating_add(MARKER_MARGIN);
                marker_lifetime = script_millis(lifetime).to_string();
                args.push(if call.repeatable { marker_lifetime.as_bytes() } else { b"" });
            }
            let server_deadline;
            if script.has_deadline {
                let time = shared.clock.time_at(deadline, &mut connection, generation).await;
                server_deadline = time.map_or_else(String::new, |time| time.to_string());
                args.push(server_deadline.as_bytes());
            }
            let by_hash = script.by_hash(call.keys, &args);
            let mut reply = connection.send_with_barrier(&by_hash, barrier).await;
            if let Err(error) = &reply
                && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
            {
                let with_body = script.with_body(call.keys, &args);
                reply = Box::pin(connection.send_with_barrier(&with_body, barrier)).await;
            }
            reply
        };
        let mut reply = send().await;
        if reply.as_ref().is_err_and(|error| error.code() == Some("LATE")) {
            shared.clock.forget();
            reply = Box::pin(send()).await;
        }
        reply.map_err(|error| shared.report(generation, error))
    }

    fn store_error(&self, error: ClassifiedError) -> StoreError {
        error.into_store_error(self.timeout)
    }

    /// Runs store calls that belong together, and tells them the time at which they end.
    pub(crate) async fn within_timeout<T>(
        &self,
        call: impl AsyncFnOnce(Instant) -> StoreResult<T>,
    ) -> StoreResult<T> {
        let started = Instant::now();
        let result = with_timeout(self.timeout, async {
            let _permit = self.permits.acquire().await.map_err(StoreError::internal)?;
            call(deadline_after(started, self.timeout)).await
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

#[cfg(test)]
mod tests {
    use hapax_core::{Expect, Key, Put, Records, Tenant};
    use hapax_testkit::Redis;

    use crate::{RedisConfig, RedisStore};

    use super::*;

    #[tokio::test]
    async fn write_after_a_step_of_the_servers_clock_is_not_refused() {
        let redis = Redis::with(&["--appendonly", "no"]);
        let config = RedisConfig::new(&redis.url()).unwrap().timeout(Duration::from_secs(60));
        let store = RedisStore::open(config).unwrap();
        let key = Key::record(&Tenant::default(), "r").unwrap();
        for n in 0..3 {
            let put = store.put(&key, "x".into(), &Expect::Any, None).await.unwrap();
            assert_eq!(matches!(put, Put::Stored { created: true, .. }), n == 0);
            store.client.connection.clock.step_server_forward(Duration::from_secs(3600));
        }
    }
}
