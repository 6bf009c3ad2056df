//! Hints from other nodes that a claim was settled or given back.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use hapax_core::{Hub, Key, Watch};
use redis::RedisResult;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::connect::Connector;

/// A silent connection is asked whether it is still there.
const QUIET: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Hears what other nodes publish, from the first waiter on.
pub(crate) struct Listener {
    hub: Hub,
    connector: Arc<Connector>,
    channel: String,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Listener {
    pub(crate) fn new(connector: Arc<Connector>, channel: String) -> Self {
        Self { hub: Hub::default(), connector, channel, task: Mutex::default() }
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    /// Wakes who waits in this process.
    pub(crate) fn wake(&self, digest: u64) {
        self.hub.wake(digest);
    }

    pub(crate) fn watch(&self, key: &Key) -> Watch {
        let watch = self.hub.watch(key);
        // Outside a runtime nobody can listen, and the waiter only polls.
        if let Ok(runtime) = Handle::try_current() {
            let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
            if task.as_ref().is_none_or(JoinHandle::is_finished) {
                let (hub, connector) = (self.hub.clone(), self.connector.clone());
                *task = Some(runtime.spawn(listen(hub, connector, self.channel.clone())));
            }
        }
        watch
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task.take() {
            task.abort();
        }
    }
}

async fn listen(hub: Hub, connector: Arc<Connector>, channel: String) {
    let mut pause = FIRST_PAUSE;
    loop {
        let heard = hear(&hub, &connector, &channel).await;
        if let Err(error) = &heard {
            match pause {
                FIRST_PAUSE => {
                    tracing::warn!(%error, "waiters only poll: cannot listen for wake-ups")
                }
                _ => tracing::debug!(%error, "waiters still only poll"),
            }
        }
        pause = if heard.is_ok() { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        tokio::time::sleep(pause).await;
    }
}

/// Listens until the connection is lost.
async fn hear(hub: &Hub, connector: &Connector, channel: &str) -> RedisResult<()> {
    let (mut sink, mut messages) = connector.listen().await?.split();
    sink.subscribe(channel).await?;
    // What was published before was missed.
    hub.wake_all();
    loop {
        match tokio::time::timeout(QUIET, messages.next()).await {
            Ok(Some(message)) => {
                if let Ok(digest) = message.get_payload() {
                    hub.wake(digest);
                }
            }
            Ok(None) => return Ok(()),
            Err(_) => {
                let ping = tokio::time::timeout(PATIENCE, sink.ping::<redis::Value>());
                if ping.await.is_ok_and(|answer| answer.is_ok()) {
                    continue;
                }
                return Ok(());
            }
        }
    }
}
