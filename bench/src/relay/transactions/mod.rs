//! Business transactions, alone and with a row of hapax in them.

pub(super) mod postgres;
mod sqlite;

use std::sync::Arc;
use std::time::Duration;

use hapax_workload::{
    BenchError, BenchOperation, BenchPlan, BenchSpan, MarkdownTable, Measurement, measure,
};

use crate::store_server::{Engine, POOL, StoreServer};
use crate::turns::{self, PARTS, take_turns};
use crate::{progress, say};
use postgres::PostgresOrders;
use sqlite::SqliteOrders;

/// The warm-up before each part.
const WARM_UP: Duration = Duration::from_millis(300);

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

pub(super) async fn with_outbox(engines: &[Engine], seconds: Duration) -> anyhow::Result<()> {
    say("## Enqueueing\n\nA transaction that inserts an order, with the message about it in the \
         outbox (the column *hapax*) and without (*raw*).\n")?;
    compare(engines, &[HapaxRow::Outbox, HapaxRow::PlainSql], seconds).await
}

pub(super) async fn with_inbox(engines: &[Engine], seconds: Duration) -> anyhow::Result<()> {
    say(
        "## Inbox\n\nA transaction that inserts an invoice for a message, with the inbox asked first \
         whether it is new (the column *hapax*; it always is) and without (*raw*).\n",
    )?;
    compare(engines, &[HapaxRow::Inbox], seconds).await
}

async fn compare(engines: &[Engine], rows: &[HapaxRow], time: Duration) -> anyhow::Result<()> {
    for engine in engines {
        let server = match engine {
            Engine::Sqlite | Engine::Postgres => StoreServer::start(*engine)?,
            // These stores have no caller's transactions.
            Engine::Memory | Engine::Redis => continue,
        };
        let mut table = turns::table("transaction");
        for tasks in [1, 64] {
            for row in rows {
                line(&server, *row, tasks, time, &mut table).await?;
                progress(".");
            }
        }
        progress("\n");
        say(&format!("### {}; {}\n\n{table}", server.description(), shape(*engine)))?;
    }
    Ok(())
}

fn shape(engine: Engine) -> String {
    match engine {
        Engine::Postgres => format!("{POOL} connections, one commit for each order"),
        _ => {
            "one connection; *tasks* is how many orders, each with its row, are in a commit".into()
        }
    }
}

async fn line(
    server: &StoreServer,
    row: HapaxRow,
    tasks: usize,
    time: Duration,
    table: &mut MarkdownTable,
) -> anyhow::Result<()> {
    let plan = BenchPlan::new(tasks, BenchSpan::Time(time / PARTS))
        .warm_up(WARM_UP)
        .servers([server.processes()]);
    let database = Database::open(server, &format!("{row:?}{tasks}").to_lowercase()).await?;
    let (hapax, raw) = take_turns(
        async || database.measure(row, &plan).await,
        Some(async || database.measure(HapaxRow::Nothing, &plan).await),
    )
    .await?;
    table.row(turns::row(row.name(), tasks, &hapax, raw.as_ref()));
    Ok(())
}

enum Database {
    Postgres(PostgresOrders),
    Sqlite(SqliteOrders),
}

impl Database {
    async fn open(server: &StoreServer, name: &str) -> anyhow::Result<Self> {
        let url = server.url(name);
        // Opening the store creates hapax's tables.
        drop(server.store_at(&url).await?);
        Ok(match server {
            StoreServer::Postgres(_) => Self::Postgres(PostgresOrders::connect(&url).await?),
            StoreServer::Sqlite(folder) => {
                Self::Sqlite(SqliteOrders::open(&folder.path().join(format!("{name}.db")))?)
            }
            StoreServer::Memory | StoreServer::Redis(_) => anyhow::bail!("it has no transactions"),
        })
    }

    async fn measure(&self, row: HapaxRow, plan: &BenchPlan) -> Result<Measurement, BenchError> {
        match self {
            Self::Postgres(postgres) => {
                let operation: Arc<dyn BenchOperation> = Arc::new(postgres.transactions(row));
                measure(operation, plan).await
            }
            Self::Sqlite(sqlite) => {
                let operation = Arc::new(sqlite.transactions(row, plan.tasks));
                // SQLite has one writer: the tasks become the size of a batch.
                measure(operation, &BenchPlan { tasks: 1, ..plan.clone() }).await
            }
        }
    }
}
