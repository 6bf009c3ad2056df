//! Wakes waiters after a claim was settled or given back: those of this process at once, those of
//! other nodes by `NOTIFY`, after the commit and many keys at a time; those of nodes behind a transaction
//! pooler, which receive no notifications, by a table. A lost hint costs only time, because waiters also
//! poll.

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
use crate::connect::session::{Params, SqlSession};
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
/// How often the table of hints is read where notifications do not arrive.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// After how many reads of the table all waiters are woken: nodes without a pooler note nothing in it, and
/// hints older than a few seconds are not read.
const POLLS_PER_WAKE_ALL: u32 = 10;
/// With more hints than this in one read, all waiters are woken.
const MAX_POLLED: usize = 5_000;
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Without a synchronous commit: the transaction holds no data, and no caller waits for it.
const NOTIFY: &str = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, message) \
     FROM unnest($2::text[]) AS message";

/// The same, and a row for each digest (none for all), for nodes behind a transaction pooler.
const NOTIFY_AND_NOTE: &str = "WITH noted AS (INSERT INTO hapax_wakes (digest) SELECT unnest($3::bigint[])) \
     SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, message) \
     FROM unnest($2::text[]) AS message";

/// Reads the same hint several times, because those that were noted first may be committed last.
const READ_HINTS: &str = "SELECT id, digest FROM hapax_wakes \
     WHERE at > clock_timestamp() - interval '5 seconds' ORDER BY id DESC LIMIT $1";

const DELETE_OLD_HINTS: &str =
    "DELETE FROM hapax_wakes WHERE at < clock_timestamp() - interval '1 minute'";

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
        let (pool, hub) = (self.pool.clone(), self.hub.clone());
        self.listener.ensure_started(|| async move {
            match pool.target.transaction_pooler {
                true => poll_forever(pool, hub).await,
                false => listen_forever(pool.target.clone(), hub, pool.timeout).await,
            }
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
        let sent = match pool.target.transaction_pooler {
            true => {
                let noted = noted_digests(&digests);
                let params: Params<'_> = &[&CHANNEL, &messages, &noted];
                pool.run(session.rows(NOTIFY_AND_NOTE, params)).await
            }
            false => pool.run(session.rows(NOTIFY, &[&CHANNEL, &messages])).await,
        };
        if let Err(error) = sent {
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

/// The digests for the table of hints; a single `None` for all waiters.
fn noted_digests(digests: &HashSet<u64>) -> Vec<Option<i64>> {
    if digests.len() > MAX_PENDING {
        return vec![None];
    }
    digests.iter().map(|digest| Some(digest.cast_signed())).collect()
}

fn apply_message(hub: &WakeRegistry, message: &str) {
    if message == WAKE_ALL {
        return hub.wake_all();
    }
    for digest in message.split(',').filter_map(|word| u64::from_str_radix(word, 16).ok()) {
        hub.wake(digest);
    }
}

/// Reads the table of hints, because a transaction pooler passes no notifications on.
async fn poll_forever(pool: Arc<ConnectionPool>, hub: WakeRegistry) {
    let mut seen = HashSet::new();
    loop {
        hub.wake_all();
        for _ in 0..POLLS_PER_WAKE_ALL {
            sleep(POLL_INTERVAL).await;
            if let Err(error) = pool.run(apply_noted_hints(&pool, &hub, &mut seen)).await {
                tracing::debug!(error = error.label(), "could not read hints of other nodes");
            }
        }
        let _ = pool.run(pool.session().rows(DELETE_OLD_HINTS, &[])).await;
    }
}

/// Wakes the waiters of hints that were not among those `seen` by the last read.
async fn apply_noted_hints(
    pool: &ConnectionPool,
    hub: &WakeRegistry,
    seen: &mut HashSet<i64>,
) -> SqlResult<()> {
    let rows = pool.session().rows(READ_HINTS, &[&(MAX_POLLED as i64)]).await?;
    let mut noted = HashSet::with_capacity(rows.len());
    for row in &rows {
        let id: i64 = row.try_get("id")?;
        noted.insert(id);
        match row.try_get::<Option<i64>>("digest")? {
            _ if seen.contains(&id) => {}
            Some(digest) => drop(hub.wake(digest.cast_unsigned())),
            None => hub.wake_all(),
        }
    }
    if rows.len() >= MAX_POLLED {
        hub.wake_all();
    }
    *seen = noted;
    Ok(())
}

async fn listen_forever(target: ConnectTarget, hub: WakeRegistry, timeout: Duration) {
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
