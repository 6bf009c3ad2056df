//! The consumer's own database: the inbox entry and the effect are one transaction.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use hapax::inbox::MessageStatus;
use hapax::sqlite::rusqlite::{Connection, TransactionBehavior};
use tempfile::TempDir;
use tokio_postgres::NoTls;

use crate::installation::RunningStore;

const TIMEOUT: Duration = Duration::from_secs(5);
/// No fault keeps all relays from sending for longer.
const STUCK: Duration = Duration::from_secs(15);

/// PostgreSQL where that is the store, and otherwise a file of the consumer's own.
pub(crate) struct ConsumerDatabase {
    place: ConsumerPlace,
    /// The consumer, and the table of its effects.
    name: &'static str,
    effects: AtomicU64,
    /// How many messages all writers have committed.
    committed: AtomicU64,
    /// How many effects there were, and since when.
    progress: Mutex<(u64, Instant)>,
}

enum ConsumerPlace {
    Sqlite(TempDir),
    Postgres(String),
}

impl ConsumerDatabase {
    /// `name` is that of the consumer and of its table.
    pub(crate) async fn make(store: &RunningStore, name: &'static str) -> anyhow::Result<Self> {
        // No unique id: a second effect must be seen.
        let table = &format!("CREATE TABLE {name} (id TEXT NOT NULL)");
        if let RunningStore::Postgres(_) | RunningStore::Pooled(..) | RunningStore::Standby(_) =
            store
        {
            let url = store.url();
            let mut client = client(&url).await?;
            hapax::postgres::migrate(&mut client).await?;
            client.batch_execute(table).await?;
            return Ok(Self::at(ConsumerPlace::Postgres(url), name));
        }
        let folder = tempfile::tempdir()?;
        let connection = Connection::open(folder.path().join("consumer.db"))?;
        hapax::sqlite::migrate(&connection)?;
        connection.execute_batch(table)?;
        Ok(Self::at(ConsumerPlace::Sqlite(folder), name))
    }

    fn at(place: ConsumerPlace, name: &'static str) -> Self {
        let (effects, committed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { place, name, effects, committed, progress: Mutex::new((0, Instant::now())) }
    }

    /// Counts a message that was committed.
    pub(crate) fn count_commit(&self) {
        self.committed.fetch_add(1, Ordering::SeqCst);
    }

    /// How many committed messages have not had their effect, about: effects of unknown commits count, too.
    pub(crate) fn waiting(&self) -> u64 {
        self.committed.load(Ordering::SeqCst).saturating_sub(self.effects.load(Ordering::SeqCst))
    }

    /// After so long without any effect the messages that wait are lost, or the end of the run shows it: writers go on.
    pub(crate) fn give_up_if_stuck(&self) {
        let (effects, now) = (self.effects.load(Ordering::SeqCst), Instant::now());
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.0 != effects {
            *progress = (effects, now);
        } else if now - progress.1 > STUCK {
            self.committed.store(effects, Ordering::SeqCst);
        }
    }

    /// Handles a message; whether its effect is stored.
    pub(crate) async fn receive(&self, id: &str) -> bool {
        let handled = match &self.place {
            ConsumerPlace::Sqlite(folder) => {
                let (file, id) = (folder.path().join("consumer.db"), id.to_owned());
                let name = self.name;
                let handled =
                    tokio::task::spawn_blocking(move || receive_in_sqlite(&file, name, &id));
                handled.await.context("the thread").and_then(|handled| handled)
            }
            ConsumerPlace::Postgres(url) => {
                let handled =
                    tokio::time::timeout(TIMEOUT, receive_in_postgres(url, self.name, id)).await;
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
        let select = &format!("SELECT id FROM {}", self.name);
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

fn receive_in_sqlite(file: &PathBuf, name: &str, id: &str) -> anyhow::Result<MessageStatus> {
    use hapax::sqlite::HapaxTransaction;
    let mut connection = Connection::open(file)?;
    connection.busy_timeout(TIMEOUT)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let status = transaction.hapax().receive(name, id)?;
    if status == MessageStatus::First {
        transaction.execute(&format!("INSERT INTO {name} VALUES (?1)"), [id])?;
        transaction.commit()?;
    }
    Ok(status)
}

async fn receive_in_postgres(url: &str, name: &str, id: &str) -> anyhow::Result<MessageStatus> {
    use hapax::postgres::HapaxTransaction;
    let mut client = client(url).await?;
    let mut transaction = client.transaction().await?;
    let status = transaction.hapax().receive(name, id).await?;
    if status == MessageStatus::First {
        let insert = format!("INSERT INTO {name} VALUES ($1)");
        transaction.execute(&insert, &[&id]).await?;
        transaction.commit().await?;
    }
    Ok(status)
}
