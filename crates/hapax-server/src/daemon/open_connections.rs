//! The connections that are open, of which the longest idle one is closed where a new client finds no
//! place.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::io_timeouts::ConnectionActivity;

/// How long a place is waited for before connections are looked through again.
const RETRY: Duration = Duration::from_millis(100);
/// How many times a place is waited for before a second connection is closed: the first one may be
/// slow to end, or its client may not answer.
const RETRIES: usize = 10;

/// A connection that may be closed while it is idle. Streams and tunnels drop it when they begin.
pub(super) struct OpenConnection {
    activity: ConnectionActivity,
    close: Notify,
}

impl OpenConnection {
    /// Completes when the connection should make room for another one.
    pub(super) async fn asked_to_close(&self) {
        self.close.notified().await;
    }
}

/// The places for connections, and the connections that have one.
#[derive(Clone)]
pub(super) struct OpenConnections {
    places: Arc<Semaphore>,
    open: Arc<Mutex<Vec<Weak<OpenConnection>>>>,
}

impl OpenConnections {
    pub(super) fn new(max: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(max)), open: Arc::default() }
    }

    pub(super) fn register(&self, activity: ConnectionActivity) -> Arc<OpenConnection> {
        let connection = Arc::new(OpenConnection { activity, close: Notify::new() });
        let mut open = self.open();
        if open.len() == open.capacity() {
            open.retain(|connection| connection.strong_count() > 0);
        }
        open.push(Arc::downgrade(&connection));
        connection
    }

    /// A place for a new connection. Where all are taken, the longest idle connection is closed; where
    /// none is idle, this waits.
    pub(super) async fn place(&self) -> OwnedSemaphorePermit {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return place;
        }
        loop {
            let retries = if self.close_longest_idle() { RETRIES } else { 1 };
            for _ in 0..retries {
                if let Ok(Ok(place)) = timeout(RETRY, self.places.clone().acquire_owned()).await {
                    return place;
                }
            }
        }
    }

    /// Whether there was an idle connection to close.
    fn close_longest_idle(&self) -> bool {
        let connections: Vec<_> = self.open().iter().filter_map(Weak::upgrade).collect();
        let idle =
            connections.iter().filter_map(|other| Some((other.activity.idle_since()?, other)));
        let Some((_, longest)) = idle.min_by_key(|(since, _)| *since) else { return false };
        longest.activity.make_room();
        longest.close.notify_one();
        true
    }

    fn open(&self) -> MutexGuard<'_, Vec<Weak<OpenConnection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
