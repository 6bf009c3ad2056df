//! Rows for an outbox.

use hapax_core::queue::{Enqueued, QueueItem, QueueName};
use hapax_core::{Queue, Tenant};

/// Where all messages go.
pub(super) const TOPIC: &str = "orders";
/// How many rows are enqueued at once.
const AT_ONCE: usize = 500;

/// Which ordering keys rows have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    None,
    /// Each row one of its own.
    Own,
    /// So many rows in a row have the same.
    Shared(usize),
}

impl Keys {
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

/// Enqueues so many rows.
pub(super) async fn fill(store: &dyn Queue, rows: usize, keys: Keys) -> anyhow::Result<()> {
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
