//! Wakes waiters after a claim was settled or given back: those of this process at once, those of
//! other nodes by `NOTIFY`, after the commit and many keys at a time. A lost hint costs only time,
//! because waiters also poll.

use std::collections::HashSet;
use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_core::{Key, ListenerTask, StoreError, WakeRegistry, Watch};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_postgres::AsyncMessage;

use crate::connect::ConnectionPool;
use crate::connect::session::SqlSession;
use crate::connect::url::ConnectTarget;
use crate::error::{SqlResult, StatementError};

const CHANNEL: &str = "hapax_wake";
/// How long hints are collected after one message was sent.
const SEND_INTERVAL: Duration = Duration::from_millis(7);
/// Digests of 16 digits and a comma: well below the 8000 bytes of a notification.
const MAX_PER_MESSAGE: usize = 400;
/// With more pending hints than this, all waiters are woken.
const MAX_PENDING: usize = 20_000;
const WAKE_ALL: &str = "*";
/// How often a silent connection is probed.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// How often waiters poll where notifications do not arrive.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Without a synchronous commit: the transaction holds no data, and no caller waits for it.
const NOTIFY: &str = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, message) \
     FROM unnest($2::text[]) AS message";

pub(crate) struct WakeNotifier {
    hub: WakeRegistry,
    pool: Arc<ConnectionPool>,
    pending: Arc<Mutex<PendingHints>>,
    listener: ListenerTask,
}

#[derive(Default)]
struct PendingHints {
    digests: HashSet<u64>,
    running: bool,
}

impl WakeNotifier {
    pub(crate) fn new(pool: Arc<ConnectionPool>) -> Self {
        Self {
            hub: WakeRegistry::default(),
            pool,
            pending: Arc::default(),
            listener: ListenerTask::default(),
        }
    }

    /// Registers a waiter; the first one starts the listener for other nodes.
    pub(crate) fn watch(&self, key: &Key) -> Watch {
        let watch = self.hub.watch(key);
        self.listener.ensure_started(|| {
            listen_forever(self.pool.target.clone(), self.hub.clone(), self.pool.timeout)
        });
        watch
    }

    /// Wakes the waiters of a key. Other nodes are notified only if called within a Tokio runtime.
    pub(crate) fn wake(&self, key: &Key) {
        let digest = key.digest();
        self.hub.wake(digest);
        let Ok(runtime) = Handle::try_current() else { return };
        let mut pending = lock(&self.pending);
        if pending.digests.len() <= MAX_PENDING {
            pending.digests.insert(digest);
        }
        if !mem::replace(&mut pending.running, true) {
            let sender = HintSender { pending: self.pending.clone(), finished: false };
            runtime.spawn(send_hints(sender, self.pool.clone()));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Resets the state on drop, so that another sender can start if this one was aborted.
struct HintSender {
    pending: Arc<Mutex<PendingHints>>,
    finished: bool,
}

impl HintSender {
    /// The pending hints, or `None` if there are none, which ends this sender.
    fn next(&mut self) -> Option<HashSet<u64>> {
        let mut pending = lock(&self.pending);
        pending.running = !pending.digests.is_empty();
        self.finished = !pending.running;
        pending.running.then(|| mem::take(&mut pending.digests))
    }
}

impl Drop for HintSender {
    fn drop(&mut self) {
        if !self.finished {
            *lock(&self.pending) = PendingHints::default();
        }
    }
}

async fn send_hints(mut sender: HintSender, pool: Arc<ConnectionPool>) {
    while let Some(digests) = sender.next() {
        let messages = messages(&digests);
        let mut session = pool.session();
        if let Err(error) = pool.run(session.rows(NOTIFY, &[&CHANNEL, &messages])).await {
            tracing::debug!(error = error.label(), "could not notify waiters on other nodes");
        }
        sleep(SEND_INTERVAL).await;
    }
}

fn messages(digests: &HashSet<u64>) -> Vec<String> {
    if digests.len() > MAX_PENDING {
        return vec![WAKE_ALL.to_owned()];
    }
    let words: Vec<String> = digests.iter().map(|digest| format!("{digest:x}")).collect();
    words.chunks(MAX_PER_MESSAGE).map(|words| words.join(",")).collect()
}

fn apply_message(hub: &WakeRegistry, message: &str) {
    if message == WAKE_ALL {
        return hub.wake_all();
    }
    for digest in message.split(',').filter_map(|word| u64::from_str_radix(word, 16).ok()) {
        hub.wake(digest);
    }
}

async fn listen_forever(target: ConnectTarget, hub: WakeRegistry, timeout: Duration) {
    // A transaction pooler passes no notifications on, so all waiters are woken regularly.
    if target.transaction_pooler {
        loop {
            sleep(POLL_INTERVAL).await;
            hub.wake_all();
        }
    }
    let (shortest, longest) = BACKOFF;
    let mut pause = shortest;
    loop {
        let mut connected = false;
        if let Err(error) = listen(&target, &hub, timeout, &mut connected).await {
            let error = error.into_store_error(timeout);
            tracing::debug!(
                error = error.label(),
                "lost the listener for notifications of other nodes"
            );
        }
        pause = if connected { shortest } else { (pause * 2).min(longest) };
        sleep(pause).await;
    }
}

/// Listens until the connection is lost.
async fn listen(
    target: &ConnectTarget,
    hub: &WakeRegistry,
    call_timeout: Duration,
    connected: &mut bool,
) -> SqlResult<()> {
    let timed_out = || StatementError::from(StoreError::Timeout { timeout: call_timeout });
    let connecting = target.driver.connect(target.tls.clone());
    let (client, mut connection) =
        timeout(call_timeout, connecting).await.map_err(|_| timed_out())??;
    let keep_alive = async {
        let subscribe = format!("LISTEN {CHANNEL}");
        timeout(call_timeout, client.batch_execute(&subscribe))
            .await
            .map_err(|_| timed_out())??;
        *connected = true;
        // Notifications from before the LISTEN were missed.
        hub.wake_all();
        loop {
            sleep(HEARTBEAT_INTERVAL).await;
            timeout(call_timeout, client.batch_execute("")).await.map_err(|_| timed_out())??;
        }
    };
    let receive = async {
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(note) = message? {
                apply_message(hub, note.payload());
            }
        }
        Ok::<(), StatementError>(())
    };
    // The connection makes progress only while it is polled, so both run concurrently.
    tokio::select! {
        ended = keep_alive => ended,
        ended = receive => ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::Tenant;

    #[tokio::test]
    async fn messages_wake_the_watched_key() {
        let key = Key::lock(&Tenant::default(), "k").unwrap();
        for digests in [HashSet::from([key.digest()]), (0..30_000).collect()] {
            let hub = WakeRegistry::default();
            let mut watch = hub.watch(&key);
            for message in messages(&digests) {
                assert!(message.len() < 8000);
                apply_message(&hub, &message);
            }
            watch.changed(Duration::from_secs(3600)).await;
        }
    }
}
