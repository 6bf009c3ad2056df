//! Wake-up messages from other processes: a claim ended, an event was appended, an item is due.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use hapax_core::{Key, ListenerTask, WakeRegistry, Watch};
use redis::RedisResult;

use crate::connect::RedisConnector;

/// A connection without a message for this long is pinged.
const IDLE: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Subscribes to the wake-up channel, from the first waiter on.
pub(crate) struct WakeListener {
    hub: WakeRegistry,
    connector: Arc<RedisConnector>,
    channel: String,
    task: ListenerTask,
}

impl WakeListener {
    pub(crate) fn new(connector: Arc<RedisConnector>, channel: String) -> Self {
        Self { hub: WakeRegistry::default(), connector, channel, task: ListenerTask::default() }
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    /// Wakes the waiters of this process.
    pub(crate) fn wake(&self, digest: u64) {
        self.hub.wake(digest);
    }

    pub(crate) fn watch(&self, key: &Key) -> Watch {
        let watch = self.hub.watch(key);
        self.task.ensure_started(|| {
            listen(self.hub.clone(), self.connector.clone(), self.channel.clone())
        });
        watch
    }
}

async fn listen(hub: WakeRegistry, connector: Arc<RedisConnector>, channel: String) {
    let mut pause = FIRST_PAUSE;
    loop {
        let ended = receive(&hub, &connector, &channel).await;
        if let Err(error) = &ended {
            match pause {
                FIRST_PAUSE => {
                    tracing::warn!(%error, "cannot subscribe to wake-ups, waiters only poll")
                }
                _ => tracing::debug!(%error, "still cannot subscribe to wake-ups"),
            }
        }
        pause = if ended.is_ok() { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        tokio::time::sleep(pause).await;
    }
}

/// Receives messages until the connection is lost.
async fn receive(hub: &WakeRegistry, connector: &RedisConnector, channel: &str) -> RedisResult<()> {
    let (mut sink, mut messages) = connector.subscribe().await?.split();
    sink.subscribe(channel).await?;
    // Messages that were published before the subscription were missed.
    hub.wake_all();
    loop {
        match tokio::time::timeout(IDLE, messages.next()).await {
            Ok(Some(message)) => {
                if let Ok(digest) = message.get_payload() {
                    hub.wake(digest);
                }
            }
            Ok(None) => return Ok(()),
            Err(_) => {
                let ping = tokio::time::timeout(PING_TIMEOUT, sink.ping::<redis::Value>());
                if ping.await.is_ok_and(|reply| reply.is_ok()) {
                    continue;
                }
                return Ok(());
            }
        }
    }
}
