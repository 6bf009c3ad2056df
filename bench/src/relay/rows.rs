//! Outbox rows, and the count of those that are still to come.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use hapax_core::queue::{Enqueued, QueueItem, QueueName};
use hapax_core::{Queue, Tenant};
use tokio::sync::Notify;

/// Work is stuck if no row comes for this long.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Counts down the rows that are still to come.
pub(crate) struct Countdown {
    left: AtomicI64,
    none_left: Notify,
}

impl Countdown {
    pub(crate) fn new(rows: usize) -> Self {
        Self { left: AtomicI64::new(rows as i64), none_left: Notify::new() }
    }

    pub(crate) fn count_one(&self) {
        // The count falls below zero only where a row came twice; end then, too.
        if self.left.fetch_sub(1, Relaxed) <= 1 {
            self.none_left.notify_one();
        }
    }

    /// Waits until no row is left, or no row comes any more.
    pub(crate) async fn wait(&self) {
        let mut before = i64::MAX;
        while tokio::time::timeout(TIMEOUT, self.none_left.notified()).await.is_err() {
            let left = self.left.load(Relaxed);
            if left == before {
                return;
            }
            before = left;
        }
    }

    pub(crate) fn ensure_none_left(&self) -> anyhow::Result<()> {
        match self.left.load(Relaxed) {
            ..=0 => Ok(()),
            left => anyhow::bail!("it is stuck: {left} rows left"),
        }
    }
}

/// The topic of all messages.
pub(super) const TOPIC: &str = "orders";
/// How many rows are enqueued at once.
const AT_ONCE: usize = 500;

/// The ordering keys of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrderingKeys {
    None,
    /// Each row has its own key.
    Own,
    /// This many consecutive rows share a key.
    Shared(usize),
}

impl OrderingKeys {
    pub(super) fn name(self) -> String {
        match self {
            Self::None => "no key".into(),
            Self::Own => "a key each".into(),
            Self::Shared(rows) => format!("{rows} rows a key"),
        }
    }

    fn key(self, row: usize) -> Option<String> {
        match self {
            Self::None => None,
            Self::Own => Some(format!("order-{row}")),
            Self::Shared(rows) => Some(format!("order-{}", row / rows)),
        }
    }
}

/// A message of about 200 bytes.
pub(super) fn message(row: usize) -> QueueItem {
    let payload = format!(
        "{{\"id\":\"order-{row}\",\"status\":\"created\",\"total\":1290,\"currency\":\"EUR\",\
         \"lines\":[{{\"item\":\"tea\",\"cups\":2,\"note\":\"no sugar, please\"}},\
         {{\"item\":\"cake\",\"pieces\":1,\"note\":\"with cream\"}}],\"table\":17}}"
    );
    QueueItem::new(&Tenant::default(), TOPIC, payload).content_type("application/json")
}

/// Enqueues this many rows.
pub(super) async fn fill(store: &dyn Queue, rows: usize, keys: OrderingKeys) -> anyhow::Result<()> {
    let queue = QueueName::outbox();
    let mut row = 0;
    while row < rows {
        let batch: Vec<QueueItem> = (row..rows.min(row + AT_ONCE))
            .map(|row| match keys.key(row) {
                Some(key) => message(row).key(&key),
                None => message(row),
            })
            .collect();
        row += batch.len();
        let answers = store.enqueue(&queue, &batch).await?;
        let accepted = answers.iter().all(|answer| *answer == Enqueued::Accepted);
        anyhow::ensure!(accepted, "a new row was taken for a duplicate");
    }
    Ok(())
}
