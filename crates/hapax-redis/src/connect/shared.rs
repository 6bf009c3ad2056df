use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::RedisError;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{RedisConnection, RedisConnector};
use crate::error::{ClassifiedError, RedisErrorClass};
use crate::replication_id::ReplicationIdCache;
use crate::server_clock::ServerClock;

/// The pause between two attempts to connect grows from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The pause between two attempts to replace a connection that still exists.
const REPLACE_PAUSE: Duration = Duration::from_millis(500);

/// The connection that all calls share. It is made with the first call, and again after it was lost.
pub(crate) struct SharedConnection {
    shared: Arc<Reconnecting>,
    pub(crate) replication_id: ReplicationIdCache,
    pub(crate) clock: ServerClock,
}

struct Reconnecting {
    connector: Arc<RedisConnector>,
    state: watch::Sender<ConnectionState>,
}

#[derive(Default)]
struct ConnectionState {
    connection: Option<RedisConnection>,
    /// Counts connections, so that a late report about an old one does not affect its successor.
    generation: u64,
    failed_attempts: u64,
    last_error: Option<RedisError>,
    last_attempt: Option<Instant>,
    connecting: Option<JoinHandle<()>>,
}

impl SharedConnection {
    pub(crate) fn new(connector: Arc<RedisConnector>) -> Self {
        let state = watch::Sender::new(ConnectionState::default());
        Self {
            shared: Arc::new(Reconnecting { connector, state }),
            replication_id: ReplicationIdCache::default(),
            clock: ServerClock::default(),
        }
    }

    /// The connection and its generation, or the error of the next attempt to make one.
    pub(crate) async fn get(&self) -> Result<(RedisConnection, u64), ClassifiedError> {
        let current =
            |state: &ConnectionState| state.connection.clone().map(|c| (c, state.generation));
        if let Some(found) = current(&self.shared.state.borrow()) {
            return Ok(found);
        }
        let mut changes = self.shared.state.subscribe();
        let failed_attempts = changes.borrow().failed_attempts;
        self.connect();
        let attempted = |state: &ConnectionState| {
            state.connection.is_some() || state.failed_attempts > failed_attempts
        };
        match changes.wait_for(attempted).await {
            Ok(state) => current(&state)
                .ok_or_else(|| state.last_error.clone().unwrap_or_else(no_connection).into()),
            Err(_) => Err(no_connection().into()),
        }
    }

    /// Classifies the error of a call over that connection. A broken connection is dropped. One whose server
    /// hangs or has become a replica stays in use until it is replaced: perhaps only one node of many hangs,
    /// or the server recovers.
    pub(crate) fn report(&self, generation: u64, error: RedisError) -> ClassifiedError {
        use RedisErrorClass::{
            Corrupt, Disconnected, Full, Internal, ReadOnly, Refused, TimedOut, Unavailable,
            Unconfirmed,
        };
        let error = ClassifiedError::from(error);
        let current = self.shared.state.borrow().generation == generation;
        match error.class {
            _ if !current => {}
            Disconnected => {
                self.shared.state.send_if_modified(|state| {
                    let dropped = state.generation == generation
                        && state.connection.as_ref().is_some_and(|c| !c.reconnects_itself());
                    if dropped {
                        state.connection = None;
                    }
                    dropped
                });
                self.connect();
            }
            TimedOut | Unavailable | ReadOnly => self.connect(),
            Unconfirmed | Full | Refused | Corrupt | Internal => {}
        }
        error
    }

    /// Replaces the connection, unless that was done since, because a call that began then timed out. A
    /// connection can die without an error (a firewall, a power cut), and a Cluster's client would keep using
    /// the node that hangs.
    pub(crate) fn replace_after_timeout(&self, since: Instant) {
        if self.shared.state.borrow().last_attempt.is_some_and(|at| at < since) {
            self.connect();
        }
    }

    /// Looks for the masters again, because one of them is a replica by now; false if nobody can say which server is one.
    pub(crate) fn find_masters_again(&self) -> bool {
        let can_be_found = self.shared.connector.finds_masters();
        if can_be_found {
            self.connect();
        }
        can_be_found
    }

    /// Starts connecting in the background, unless that is under way.
    fn connect(&self) {
        self.shared.state.send_if_modified(|state| {
            // The task also ends with the runtime that it was started on.
            if state.connecting.as_ref().is_none_or(JoinHandle::is_finished) {
                let pause = if state.connection.is_some() { REPLACE_PAUSE } else { FIRST_PAUSE };
                let earliest = state.last_attempt.map(|last| last + pause);
                let task = connect(Arc::downgrade(&self.shared), earliest);
                state.connecting = Some(tokio::spawn(task));
            }
            false
        });
    }
}

/// Tries until there is a connection, or until its [`SharedConnection`] was dropped.
async fn connect(shared: Weak<Reconnecting>, earliest: Option<Instant>) {
    let mut pause = FIRST_PAUSE;
    if let Some(earliest) = earliest {
        tokio::time::sleep_until(earliest).await;
    }
    while let Some(shared) = shared.upgrade() {
        let started = Instant::now();
        let attempt = shared.connector.connect().await;
        let connected = attempt.is_ok();
        if let Err(error) = &attempt {
            match pause {
                FIRST_PAUSE => tracing::warn!(%error, "cannot connect to Redis, retrying"),
                _ => tracing::debug!(%error, "still cannot connect to Redis"),
            }
        }
        shared.state.send_modify(|state| {
            state.last_attempt = Some(started);
            match attempt {
                Ok(connection) => {
                    state.connection = Some(connection);
                    state.generation += 1;
                    // This task ends a moment later; a disconnect until then must start another one.
                    state.connecting = None;
                }
                Err(error) => {
                    state.failed_attempts += 1;
                    state.last_error = Some(error);
                }
            }
        });
        if connected {
            return;
        }
        drop(shared);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn no_connection() -> RedisError {
    RedisError::from((redis::ErrorKind::Io, "no connection"))
}
