use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::Key;

/// The waiters of this process, by key. Stores call [`WakeRegistry::wake`] when a claim is settled
/// or given back, or when another node reports that.
///
/// Keys are stored as digests: a collision causes a spurious wake-up, which is allowed.
#[derive(Clone, Debug, Default)]
pub struct WakeRegistry(Arc<Mutex<HashMap<u64, watch::Sender<()>>>>);

impl WakeRegistry {
    /// Registers a waiter.
    pub fn watch(&self, key: &Key) -> Watch {
        let digest = key.digest();
        let receiver = self.waiters().entry(digest).or_default().subscribe();
        Watch(Some(Registered { digest, registry: self.clone(), receiver: Some(receiver) }))
    }

    /// Wakes all waiters of the key with this digest. Returns whether there were any.
    pub fn wake(&self, digest: u64) -> bool {
        self.waiters().get(&digest).is_some_and(|sender| sender.send(()).is_ok())
    }

    /// Wakes all waiters, for example after the connection that carries the wake-ups was lost.
    pub fn wake_all(&self) {
        for sender in self.waiters().values() {
            let _ = sender.send(());
        }
    }

    /// Whether there are no waiters.
    pub fn is_idle(&self) -> bool {
        self.waiters().is_empty()
    }

    fn waiters(&self) -> MutexGuard<'_, HashMap<u64, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The background task of a store that receives wake-ups from other nodes. It is aborted when this is
/// dropped.
#[derive(Debug, Default)]
pub struct ListenerTask(Mutex<Option<JoinHandle<()>>>);

impl ListenerTask {
    /// Starts the task, unless it runs. Outside a runtime nothing is started, and waiters only poll.
    pub fn ensure_started<F>(&self, start: impl FnOnce() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut task = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(runtime.spawn(start()));
        }
    }
}

impl Drop for ListenerTask {
    fn drop(&mut self) {
        if let Some(task) = self.0.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

/// A waiter's registration. A hint between the registration and [`Watch::changed`] is not missed.
#[derive(Debug)]
pub struct Watch(Option<Registered>);

#[derive(Debug)]
struct Registered {
    digest: u64,
    registry: WakeRegistry,
    receiver: Option<watch::Receiver<()>>,
}

impl Watch {
    /// A registration that never gets a hint; the waiter polls.
    pub fn never() -> Self {
        Self(None)
    }

    /// Waits for a hint, at most for `limit`.
    pub async fn changed(&mut self, limit: Duration) {
        match self.0.as_mut().and_then(|r| r.receiver.as_mut()) {
            Some(receiver) => {
                let _ = tokio::time::timeout(limit, receiver.changed()).await;
            }
            None => tokio::time::sleep(limit).await,
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut waiters = self.registry.waiters();
        self.receiver = None;
        if waiters.get(&self.digest).is_some_and(|s| s.receiver_count() == 0) {
            waiters.remove(&self.digest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tenant;

    #[tokio::test]
    async fn wake_hint_between_registration_and_wait_is_not_missed() {
        let registry = WakeRegistry::default();
        let key = Key::lock(&Tenant::default(), "k").unwrap();
        let mut watch = registry.watch(&key);
        assert!(registry.wake(key.digest()));
        watch.changed(Duration::from_secs(3600)).await;
    }

    #[tokio::test]
    async fn wake_registry_forgets_a_key_with_its_last_waiter() {
        let registry = WakeRegistry::default();
        let key = Key::lock(&Tenant::default(), "k").unwrap();
        let (one, two) = (registry.watch(&key), registry.watch(&key));
        drop(one);
        assert!(registry.wake(key.digest()));
        drop(two);
        assert!(registry.is_idle());
        assert!(!registry.wake(key.digest()));
    }
}
