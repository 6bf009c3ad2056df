//! A writer of outbox rows, in transactions of its own where the store has them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hapax::queue::{ItemId, QueueItem, QueueName};
use hapax::sqlite::rusqlite::{Connection, TransactionBehavior};
use hapax::{Store, Tenant};
use tokio_postgres::{Client, NoTls};

use crate::history::CallOutcome;
use crate::installation::{Installation, RunningStore};
use crate::power_cut_disk::PowerCutDisk;

const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a writer writes.
pub(crate) enum OutboxWriter {
    Sqlite(PathBuf, Option<Arc<PowerCutDisk>>),
    Postgres(String, Option<Client>),
    Redis(Arc<dyn Store>),
}

impl OutboxWriter {
    pub(crate) fn to(installation: &Installation) -> anyhow::Result<Self> {
        let url = installation.store.url();
        Ok(match &installation.store {
            RunningStore::Sqlite(file) => Self::Sqlite(file.clone(), installation.disk.clone()),
            RunningStore::Postgres(_) | RunningStore::Pooled(..) | RunningStore::Standby(_) => {
                Self::Postgres(url, None)
            }
            RunningStore::Redis(_) | RunningStore::Sentinel(_) | RunningStore::Cluster(_) => {
                Self::Redis(installation.open_store()?)
            }
        })
    }

    /// Writes one message; its id, and whether it was committed.
    pub(crate) async fn write(
        &mut self,
        queue: &QueueName,
        key: &str,
        held_open: Duration,
        rolls_back: bool,
    ) -> (String, CallOutcome<()>) {
        let item = QueueItem::new(&Tenant::default(), "torture", "{}").key(key);
        let id = ItemId::to_string(&item.id);
        let outcome = match self {
            Self::Sqlite(file, disk) => {
                let (file, disk, queue) = (file.clone(), disk.clone(), queue.clone());
                let written = tokio::task::spawn_blocking(move || {
                    let _using = disk.as_ref().map(|disk| disk.use_files());
                    write_to_sqlite(&file, &queue, &item, rolls_back)
                });
                written.await.unwrap_or_else(|error| CallOutcome::Unknown(error.to_string()))
            }
            Self::Postgres(url, client) => {
                let outcome =
                    write_to_postgres(url, client, (queue, &item), held_open, rolls_back).await;
                if matches!(outcome, CallOutcome::Unknown(_)) || !rolls_back && outcome.is_refused()
                {
                    *client = None;
                }
                outcome
            }
            // Without a transaction there is nothing to roll back.
            Self::Redis(_) if rolls_back => CallOutcome::Refused("not sent".to_owned()),
            Self::Redis(store) => match store.enqueue(queue, &[item]).await {
                Ok(_) => CallOutcome::Done(()),
                Err(error) => CallOutcome::Unknown(error.to_string()),
            },
        };
        (id, outcome)
    }
}

fn rolled_back(why: impl ToString) -> CallOutcome<()> {
    CallOutcome::Refused(why.to_string())
}

fn write_to_sqlite(
    file: &PathBuf,
    queue: &QueueName,
    item: &QueueItem,
    rolls_back: bool,
) -> CallOutcome<()> {
    use hapax::sqlite::HapaxTransaction;
    let mut connection = match Connection::open(file) {
        Ok(connection) => connection,
        Err(error) => return rolled_back(error),
    };
    let _ = connection.busy_timeout(WRITE_TIMEOUT);
    let transaction = match connection.transaction_with_behavior(TransactionBehavior::Immediate) {
        Ok(transaction) => transaction,
        Err(error) => return rolled_back(error),
    };
    if let Err(error) = transaction.hapax().enqueue_all(queue, std::slice::from_ref(item)) {
        return rolled_back(error);
    }
    if rolls_back {
        return rolled_back("on purpose");
    }
    match transaction.commit() {
        Ok(()) => CallOutcome::Done(()),
        Err(error) => CallOutcome::Unknown(error.to_string()),
    }
}

async fn write_to_postgres(
    url: &str,
    client: &mut Option<Client>,
    (queue, item): (&QueueName, &QueueItem),
    held_open: Duration,
    rolls_back: bool,
) -> CallOutcome<()> {
    use hapax::postgres::HapaxTransaction;
    let enqueue = async {
        let client = connected(url, client).await?;
        let mut transaction = client.transaction().await?;
        transaction.hapax().enqueue_all(queue, std::slice::from_ref(item)).await?;
        tokio::time::sleep(held_open).await;
        anyhow::Ok(transaction)
    };
    let transaction = match tokio::time::timeout(WRITE_TIMEOUT, enqueue).await {
        Ok(Ok(transaction)) => transaction,
        Ok(Err(error)) => return rolled_back(error),
        Err(_) => return rolled_back("timeout"),
    };
    if rolls_back {
        let _ = tokio::time::timeout(WRITE_TIMEOUT, transaction.rollback()).await;
        return rolled_back("on purpose");
    }
    match tokio::time::timeout(WRITE_TIMEOUT, transaction.commit()).await {
        Ok(Ok(())) => CallOutcome::Done(()),
        Ok(Err(error)) => CallOutcome::Unknown(error.to_string()),
        Err(_) => CallOutcome::Unknown("timeout".to_owned()),
    }
}

async fn connected<'a>(
    url: &str,
    client: &'a mut Option<Client>,
) -> Result<&'a mut Client, tokio_postgres::Error> {
    if client.as_ref().is_none_or(Client::is_closed) {
        let (made, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        *client = Some(made);
    }
    // It was just made where there was none.
    Ok(client.as_mut().unwrap_or_else(|| unreachable!()))
}
