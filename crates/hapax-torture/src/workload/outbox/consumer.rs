//! The consumer's own database: the inbox entry and the effect are one transaction.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use hapax::inbox::MessageStatus;
use hapax::sqlite::rusqlite::{Connection, TransactionBehavior};
use tempfile::TempDir;
use tokio_postgres::NoTls;

use crate::installation::RunningStore;

const CONSUMER: &str = "torture";
const TIMEOUT: Duration = Duration::from_secs(5);

/// PostgreSQL where that is the store, and otherwise a file of the consumer's own.
pub(crate) struct ConsumerDatabase {
    place: ConsumerPlace,
    effects: AtomicU64,
    /// How many messages all writers have committed.
    committed: AtomicU64,
}

enum ConsumerPlace {
    Sqlite(TempDir),
    Postgres(String),
}

impl ConsumerDatabase {
    pub(crate) async fn make(store: &RunningStore) -> anyhow::Result<Self> {
        // No unique id: a second effect must be seen.
        let table = "CREATE TABLE torture_effects (id TEXT NOT NULL)";
        if let RunningStore::Postgres(postgres) = store {
            let url = postgres.url();
            let mut client = client(&url).await?;
            hapax::postgres::migrate(&mut client).await?;
            client.batch_execute(table).await?;
            return Ok(Self::at(ConsumerPlace::Postgres(url)));
        }
        let folder = tempfile::tempdir()?;
        let connection = Connection::open(folder.path().join("consumer.db"))?;
        hapax::sqlite::migrate(&connection)?;
        connection.execute_batch(table)?;
        Ok(Self::at(ConsumerPlace::Sqlite(folder)))
    }

    fn at(place: ConsumerPlace) -> Self {
        Self { place, effects: AtomicU64::new(0), committed: AtomicU64::new(0) }
    }

    /// Counts a message that was committed.
    pub(crate) fn count_commit(&self) {
        self.committed.fetch_add(1, Ordering::SeqCst);
    }

    /// How many committed messages have not had their effect, about: effects of unknown commits count, too.
    pub(crate) fn waiting(&self) -> u64 {
        self.committed.load(Ordering::SeqCst).saturating_sub(self.effects.load(Ordering::SeqCst))
    }

    /// Handles a message; whether its effect is stored.
    pub(crate) async fn receive(&self, id: &str) -> bool {
        let handled = match &self.place {
            ConsumerPlace::Sqlite(folder) => {
                let (file, id) = (folder.path().join("consumer.db"), id.to_owned());
                let handled = tokio::task::spawn_blocking(move || receive_in_sqlite(&file, &id));
                handled.await.context("the thread").and_then(|handled| handled)
            }
            ConsumerPlace::Postgres(url) => {
                let handled = tokio::time::timeout(TIMEOUT, receive_in_postgres(url, id)).await;
                handled.context("timeout").and_then(|handled| handled)
            }
        };
        if let Ok(MessageStatus::First) = handled {
            self.effects.fetch_add(1, Ordering::SeqCst);
        }
        matches!(handled, Ok(MessageStatus::First | MessageStatus::Duplicate))
    }

    /// The ids of all effects.
    pub(crate) async fn effects(&self) -> anyhow::Result<Vec<String>> {
        let select = "SELECT id FROM torture_effects";
        match &self.place {
            ConsumerPlace::Sqlite(folder) => {
                let connection = Connection::open(folder.path().join("consumer.db"))?;
                connection.busy_timeout(TIMEOUT)?;
                let mut statement = connection.prepare(select)?;
                let ids = statement.query_map([], |row| row.get(0))?;
                Ok(ids.collect::<Result<_, _>>()?)
            }
            ConsumerPlace::Postgres(url) => {
                let rows = client(url).await?.query(select, &[]).await?;
                Ok(rows.iter().map(|row| row.get(0)).collect())
            }
        }
    }
}

async fn client(url: &str) -> anyhow::Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn receive_in_sqlite(file: &PathBuf, id: &str) -> anyhow::Result<MessageStatus> {
    use hapax::sqlite::HapaxTransaction;
    let mut connection = Connection::open(file)?;
    connection.busy_timeout(TIMEOUT)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let status = transaction.hapax().receive(CONSUMER, id)?;
    if status == MessageStatus::First {
        transaction.execute("INSERT INTO torture_effects VALUES (?1)", [id])?;
        transaction.commit()?;
    }
    Ok(status)
}

async fn receive_in_postgres(url: &str, id: &str) -> anyhow::Result<MessageStatus> {
    use hapax::postgres::HapaxTransaction;
    let mut client = client(url).await?;
    let mut transaction = client.transaction().await?;
    let status = transaction.hapax().receive(CONSUMER, id).await?;
    if status == MessageStatus::First {
        transaction.execute("INSERT INTO torture_effects VALUES ($1)", &[&id]).await?;
        transaction.commit().await?;
    }
    Ok(status)
}
