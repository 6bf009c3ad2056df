//! Tells waiters that a claim was settled or given back: those of this process at once, those of
//! other nodes by `NOTIFY`, after the commit and many keys at a time. A hint that is lost costs
//! time and nothing else, because waiters also look by themselves.

use std::collections::HashSet;
use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_core::{Key, StoreError, WakeRegistry, Watch};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::AsyncMessage;
use tokio_postgres::types::Type;

use crate::connect::Link;
use crate::connect::session::{Session, Sql};
use crate::connect::url::Target;
use crate::error::Failure;

const CHANNEL: &str = "hapax_wake";
/// How long hints are gathered after the first one went out.
const GATHER: Duration = Duration::from_millis(7);
/// Digests of 16 digits and a comma: well below the 8000 bytes of a notification.
const PER_MESSAGE: usize = 400;
/// Beyond this everybody is woken instead.
const PENDING: usize = 20_000;
const EVERYBODY: &str = "*";
/// How often a silent connection is asked whether it is still there.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How often waiters look where nothing can be heard.
const LOOK: Duration = Duration::from_secs(1);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Nobody waits for this commit, and nothing is lost with it.
const NOTIFY: Sql = Sql {
    text: "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, message) \
           FROM unnest($2::text[]) AS message",
    types: &[Type::TEXT, Type::TEXT_ARRAY],
};

pub(crate) struct Wakes {
    hub: WakeRegistry,
    link: Arc<Link>,
    outgoing: Arc<Mutex<Outgoing>>,
    listener: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Outgoing {
    digests: HashSet<u64>,
    running: bool,
}

impl Wakes {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self {
            hub: WakeRegistry::default(),
            link,
            outgoing: Arc::default(),
            listener: Mutex::default(),
        }
    }

    /// Registers a waiter; the first one starts to listen to other nodes.
    pub(crate) fn watch(&self, key: &Key) -> Watch {
        let watch = self.hub.watch(key);
        self.listen();
        watch
    }

    /// Other nodes are told only from within a runtime.
    pub(crate) fn wake(&self, key: &Key) {
        let digest = key.digest();
        self.hub.wake(digest);
        let Ok(runtime) = Handle::try_current() else { return };
        let mut outgoing = lock(&self.outgoing);
        if outgoing.digests.len() <= PENDING {
            outgoing.digests.insert(digest);
        }
        if !mem::replace(&mut outgoing.running, true) {
            let sender = Sender { outgoing: self.outgoing.clone(), at_rest: false };
            runtime.spawn(send(sender, self.link.clone()));
        }
    }

    fn listen(&self) {
        let mut listener = lock(&self.listener);
        if listener.as_ref().is_none_or(JoinHandle::is_finished)
            && let Ok(runtime) = Handle::try_current()
        {
            let (target, hub, limit) =
                (self.link.target.clone(), self.hub.clone(), self.link.limit);
            *listener = Some(match target.pooled {
                false => runtime.spawn(keep_listening(target, hub, limit)),
                true => runtime.spawn(keep_looking(hub)),
            });
        }
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        if let Some(listener) = lock(&self.listener).take() {
            listener.abort();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets another sender start should this one end before its time.
struct Sender {
    outgoing: Arc<Mutex<Outgoing>>,
    at_rest: bool,
}

impl Sender {
    /// What has gathered; none where this sender has come to rest.
    fn next(&mut self) -> Option<HashSet<u64>> {
        let mut outgoing = lock(&self.outgoing);
        outgoing.running = !outgoing.digests.is_empty();
        self.at_rest = !outgoing.running;
        outgoing.running.then(|| mem::take(&mut outgoing.digests))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if !self.at_rest {
            *lock(&self.outgoing) = Outgoing::default();
        }
    }
}

async fn send(mut sender: Sender, link: Arc<Link>) {
    while let Some(digests) = sender.next() {
        let messages = messages(&digests);
        let sent = link.within(async {
            let mut lease = link.lease().await?;
            lease.rows(&NOTIFY, &[&CHANNEL, &messages]).await
        });
        if let Err(error) = sent.await {
            tracing::debug!(error = error.label(), "waiters on other nodes were not told");
        }
        sleep(GATHER).await;
    }
}

fn messages(digests: &HashSet<u64>) -> Vec<String> {
    if digests.len() > PENDING {
        return vec![EVERYBODY.to_owned()];
    }
    let words: Vec<String> = digests.iter().map(|digest| format!("{digest:x}")).collect();
    words.chunks(PER_MESSAGE).map(|words| words.join(",")).collect()
}

fn heard(hub: &WakeRegistry, message: &str) {
    if message == EVERYBODY {
        return hub.wake_all();
    }
    for digest in message.split(',').filter_map(|word| u64::from_str_radix(word, 16).ok()) {
        hub.wake(digest);
    }
}

/// Through a transaction pooler nothing is heard, so that waiters have to look for themselves.
async fn keep_looking(hub: WakeRegistry) {
    loop {
        sleep(LOOK).await;
        hub.wake_all();
    }
}

async fn keep_listening(target: Target, hub: WakeRegistry, limit: Duration) {
    let (shortest, longest) = BACKOFF;
    let mut pause = shortest;
    loop {
        let mut connected = false;
        if let Err(failure) = listen(&target, &hub, limit, &mut connected).await {
            let error = failure.into_store(limit);
            tracing::debug!(error = error.label(), "not listening to other nodes just now");
        }
        pause = if connected { shortest } else { (pause * 2).min(longest) };
        sleep(pause).await;
    }
}

/// Until the connection is lost.
async fn listen(
    target: &Target,
    hub: &WakeRegistry,
    limit: Duration,
    connected: &mut bool,
) -> Result<(), Failure> {
    let gone = || Failure::from(StoreError::Timeout { timeout: limit });
    let connecting = target.driver.connect(target.tls.clone());
    let (client, mut connection) = timeout(limit, connecting).await.map_err(|_| gone())??;
    let talk = async {
        let subscribe = format!("LISTEN {CHANNEL}");
        timeout(limit, client.batch_execute(&subscribe)).await.map_err(|_| gone())??;
        *connected = true;
        // Whatever was said before now was missed.
        hub.wake_all();
        loop {
            sleep(HEARTBEAT).await;
            timeout(limit, client.batch_execute("")).await.map_err(|_| gone())??;
        }
    };
    let hear = async {
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(note) = message? {
                heard(hub, note.payload());
            }
        }
        Ok::<(), Failure>(())
    };
    // The connection does nothing unless it is polled, so both go on side by side.
    tokio::select! {
        ended = talk => ended,
        ended = hear => ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::Tenant;

    #[tokio::test]
    async fn what_is_sent_is_heard() {
        let key = Key::lock(&Tenant::default(), "k").unwrap();
        for digests in [HashSet::from([key.digest()]), (0..30_000).collect()] {
            let hub = WakeRegistry::default();
            let mut watch = hub.watch(&key);
            for message in messages(&digests) {
                assert!(message.len() < 8000);
                heard(&hub, &message);
            }
            watch.changed(Duration::from_secs(3600)).await;
        }
    }
}
