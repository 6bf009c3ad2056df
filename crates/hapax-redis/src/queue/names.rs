//! The names of all queues in one sorted set, so that a list of them is not a scan of all keys.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_core::StoreResult;
use hapax_core::queue::QueueName;
use tokio::time::Instant;

use crate::script::QUEUE_NAMES;
use crate::store::RedisStore;

/// How long a process takes a name for stored. After a flush or a lossy failover, its next call beyond that
/// stores the name again.
const TRUSTED: Duration = Duration::from_secs(60);

/// Beyond this many names the memory is emptied, which costs each one more call.
const MAX_NAMES: usize = 1024;

/// When this process last stored each name.
#[derive(Default)]
pub(crate) struct StoredQueueNames(Mutex<HashMap<QueueName, Instant>>);

impl StoredQueueNames {
    fn contains(&self, queue: &QueueName) -> bool {
        self.names().get(queue).is_some_and(|stored| stored.elapsed() < TRUSTED)
    }

    fn insert(&self, queue: &QueueName) {
        let mut names = self.names();
        if names.len() >= MAX_NAMES {
            names.clear();
        }
        names.insert(queue.clone(), Instant::now());
    }

    fn names(&self) -> MutexGuard<'_, HashMap<QueueName, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RedisStore {
    /// Adds a queue to the list. An error is not the caller's: the list serves operators and metrics, and the
    /// next call tries again.
    pub(super) async fn store_queue_name(&self, queue: &QueueName) {
        if self.queue_names.contains(queue) {
            return;
        }
        let (key, name) = (self.names.queue_names(), queue.as_str().as_bytes());
        match self.client.run(&QUEUE_NAMES, &[&key], &[name]).await {
            Ok(_) => self.queue_names.insert(queue),
            Err(error) => tracing::debug!("the name of a queue was not stored: {error}"),
        }
    }

    pub(super) async fn read_queue_names(&self) -> StoreResult<Vec<QueueName>> {
        let reply = self.client.run(&QUEUE_NAMES, &[&self.names.queue_names()], &[]).await?;
        let names = reply.read::<Vec<String>>()?;
        Ok(names.iter().filter_map(|name| QueueName::new(name).ok()).collect())
    }
}
