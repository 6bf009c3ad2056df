//! Business transactions, alone and with a row of hapax in them.

use std::sync::Arc;

use async_trait::async_trait;
use deadpool_postgres::Pool;
use hapax_core::inbox::MessageStatus;
use hapax_core::queue::QueueItem;
use hapax_sqlite::rusqlite::Connection;
use hapax_workload::{BenchError, BenchOperation, MarkdownTable};

use super::rows::{TOPIC, message};
use crate::raw::sqlite::{BATCH, RawSqliteFile};
use crate::raw::{engine, measure_batches, postgres, sqlite};
use crate::store_server::{Engine, POOL, StoreServer};
use crate::turns::{compare_with_raw, fresh_run_id, plan};
use crate::{RunArgs, say};

/// The row of hapax in a transaction, beside the business's own insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HapaxRow {
    Nothing,
    Outbox,
    /// The contract's `INSERT INTO hapax_outbox (topic, key, payload)`.
    PlainSql,
    Inbox,
}

impl HapaxRow {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "alone",
            Self::Outbox => "with an outbox row",
            Self::PlainSql => "with an outbox row in plain SQL",
            Self::Inbox => "with the inbox",
        }
    }
}

pub(super) async fn with_outbox(run: &RunArgs) -> anyhow::Result<()> {
    say("## Enqueueing\n\nA transaction that inserts an order, with the message about it in the \
         outbox (the column *hapax*) and without (*raw*).\n")?;
    compare(run, &[HapaxRow::Outbox, HapaxRow::PlainSql]).await
}

pub(super) async fn with_inbox(run: &RunArgs) -> anyhow::Result<()> {
    say(
        "## Inbox\n\nA transaction that inserts an invoice for a message, with the inbox asked first \
         whether it is new (the column *hapax*; it always is) and without (*raw*).\n",
    )?;
    compare(run, &[HapaxRow::Inbox]).await
}

async fn compare(run: &RunArgs, rows: &[HapaxRow]) -> anyhow::Result<()> {
    for engine in run.engines() {
        let shape = match engine {
            Engine::Postgres => format!("{POOL} connections, one commit for each order"),
            Engine::Sqlite => "one connection; *tasks* is how many orders, each with its row, are \
                               in a commit"
                .into(),
            // These stores have no caller's transactions.
            Engine::Memory | Engine::Redis => continue,
        };
        let server = StoreServer::start(engine)?;
        let mut table = MarkdownTable::default();
        for tasks in [1, 64] {
            for row in rows.iter().copied() {
                let database =
                    <dyn OrderDatabase>::open(&server, &format!("{row:?}{tasks}")).await?;
                let plan = plan(&server, tasks, run.seconds);
                let measure = async |row| {
                    measure_batches(Arc::new(Transactions::new(&database, row, tasks)), &plan).await
                };
                compare_with_raw(
                    &mut table,
                    ("transaction", row.name()),
                    &plan,
                    async || measure(row).await,
                    Some(async || measure(HapaxRow::Nothing).await),
                )
                .await?;
            }
        }
        say(format_args!("### {}; {shape}\n\n{table}", server.description()))?;
    }
    Ok(())
}

/// Transactions with orders that no other run has.
pub(super) struct Transactions {
    database: Arc<dyn OrderDatabase>,
    row: HapaxRow,
    run_id: String,
    batch: usize,
}

impl Transactions {
    pub(super) fn new(database: &Arc<dyn OrderDatabase>, row: HapaxRow, tasks: usize) -> Self {
        let (database, batch) = (database.clone(), database.batch(tasks));
        Self { database, row, run_id: fresh_run_id(), batch }
    }
}

#[async_trait]
impl BenchOperation for Transactions {
    async fn run(&self, task: usize, turn: u64) -> Result<(), BenchError> {
        let tasks = task * self.batch..(task + 1) * self.batch;
        let order = |task| message(task).key(&format!("{}-{task}-{turn}", self.run_id));
        self.database.insert(self.row, &tasks.map(order).collect::<Vec<_>>()).await
    }

    fn batch(&self) -> u32 {
        self.batch as u32
    }
}

/// A database with orders and with hapax's tables.
#[async_trait]
pub(super) trait OrderDatabase: Send + Sync {
    /// Inserts the orders that these messages are about, each with its row of hapax.
    async fn insert(&self, row: HapaxRow, messages: &[QueueItem]) -> Result<(), BenchError>;

    /// How many orders a commit has when this many tasks insert.
    fn batch(&self, _tasks: usize) -> usize {
        1
    }
}

impl dyn OrderDatabase {
    pub(super) async fn open(server: &StoreServer, name: &str) -> anyhow::Result<Arc<Self>> {
        let url = server.url(name);
        // Opening the store creates hapax's tables.
        drop(server.store_at(&url).await?);
        Ok(match server.engine() {
            Engine::Postgres => {
                Arc::new(PostgresOrders(postgres::open_pool(&url, POSTGRES_TABLE).await?))
            }
            Engine::Sqlite => Arc::new(SqliteOrders(RawSqliteFile::open(&url, SQLITE_TABLE)?)),
            Engine::Memory | Engine::Redis => anyhow::bail!("it has no transactions"),
        })
    }
}

fn expect_first(seen: MessageStatus) -> Result<(), BenchError> {
    match seen {
        MessageStatus::First => Ok(()),
        _ => Err(BenchError::Unexpected("a new message was seen before")),
    }
}

const POSTGRES_TABLE: &str =
    "CREATE TABLE orders (id text COLLATE \"C\" PRIMARY KEY, body bytea NOT NULL)";
const POSTGRES_ORDER: &str = "INSERT INTO orders VALUES ($1, $2)";
const POSTGRES_PLAIN: &str = "INSERT INTO hapax_outbox (topic, key, payload) VALUES ($1, $2, $3)";

struct PostgresOrders(Pool);

#[async_trait]
impl OrderDatabase for PostgresOrders {
    async fn insert(&self, row: HapaxRow, messages: &[QueueItem]) -> Result<(), BenchError> {
        use hapax_postgres::HapaxTransaction;
        let mut client = self.0.get().await.map_err(engine)?;
        for message in messages {
            let (order, body) = (message.key.as_deref().unwrap_or_default(), &message.payload[..]);
            let mut tx = client.transaction().await.map_err(engine)?;
            if row == HapaxRow::Inbox {
                expect_first(tx.hapax().receive("billing", order).await.map_err(engine)?)?;
            }
            postgres::change_row(&tx, POSTGRES_ORDER, &[&order, &body]).await?;
            match row {
                HapaxRow::Outbox => drop(tx.hapax().enqueue(message).await?),
                HapaxRow::PlainSql => {
                    postgres::change_row(&tx, POSTGRES_PLAIN, &[&TOPIC, &order, &body]).await?;
                }
                HapaxRow::Nothing | HapaxRow::Inbox => {}
            }
            tx.commit().await.map_err(engine)?;
        }
        Ok(())
    }
}

const SQLITE_TABLE: &str = "CREATE TABLE orders (id TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT";
const SQLITE_ORDER: &str = "INSERT INTO orders VALUES (?1, ?2)";
const SQLITE_PLAIN: &str = "INSERT INTO hapax_outbox (topic, key, payload) VALUES (?1, ?2, ?3)";

struct SqliteOrders(RawSqliteFile);

#[async_trait]
impl OrderDatabase for SqliteOrders {
    async fn insert(&self, row: HapaxRow, messages: &[QueueItem]) -> Result<(), BenchError> {
        use hapax_sqlite::HapaxTransaction;
        self.0.commit(messages, |tx: &Connection, message| {
            let (order, body) = (message.key.as_deref().unwrap_or_default(), &message.payload[..]);
            if row == HapaxRow::Inbox {
                expect_first(tx.hapax().receive("billing", order).map_err(engine)?)?;
            }
            sqlite::change_row(tx, SQLITE_ORDER, (order, body))?;
            match row {
                HapaxRow::Outbox => drop(tx.hapax().enqueue(message)?),
                HapaxRow::PlainSql => sqlite::change_row(tx, SQLITE_PLAIN, (TOPIC, order, body))?,
                HapaxRow::Nothing | HapaxRow::Inbox => {}
            }
            Ok(())
        })
    }

    fn batch(&self, tasks: usize) -> usize {
        tasks.min(BATCH)
    }
}
