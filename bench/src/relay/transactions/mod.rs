//! Transactions of somebody's business, alone and with a row of hapax's in them.

pub(super) mod postgres;
mod sqlite;

use std::sync::Arc;
use std::time::Duration;

use hapax_bench::{Failure, Measured, Operation, Plan, Span, Table, measure};

use crate::arena::Engine;
use crate::place::{POOL, Place};
use crate::turns::{self, PARTS, take_turns};
use crate::{progress, say};
use postgres::Postgres;
use sqlite::Sqlite;

/// Before each part.
const WARM_UP: Duration = Duration::from_millis(300);

/// What is in a transaction beside the business's own insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    Nothing,
    Outbox,
    /// The contract's `INSERT INTO hapax_outbox (topic, key, payload)`.
    PlainSql,
    Inbox,
}

impl Extra {
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
    compare(engines, &[Extra::Outbox, Extra::PlainSql], seconds).await
}

pub(super) async fn with_inbox(engines: &[Engine], seconds: Duration) -> anyhow::Result<()> {
    say(
        "## Inbox\n\nA transaction that inserts an invoice for a message, with the inbox asked first \
         whether it is new (the column *hapax*; it always is) and without (*raw*).\n",
    )?;
    compare(engines, &[Extra::Inbox], seconds).await
}

async fn compare(engines: &[Engine], extras: &[Extra], time: Duration) -> anyhow::Result<()> {
    for engine in engines {
        let place = match engine {
            Engine::Sqlite | Engine::Postgres => Place::start(*engine)?,
            // No transactions of one's own.
            Engine::Memory | Engine::Redis => continue,
        };
        let mut table = turns::table("transaction");
        for tasks in [1, 64] {
            for extra in extras {
                line(&place, *extra, tasks, time, &mut table).await?;
                progress(".");
            }
        }
        progress("\n");
        say(&format!("### {}; {}\n\n{table}", place.description(), shape(*engine)))?;
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
    place: &Place,
    extra: Extra,
    tasks: usize,
    time: Duration,
    table: &mut Table,
) -> anyhow::Result<()> {
    let plan =
        Plan::new(tasks, Span::Time(time / PARTS)).warm_up(WARM_UP).servers([place.processes()]);
    let database = Database::open(place, &format!("{extra:?}{tasks}").to_lowercase()).await?;
    let (hapax, raw) = take_turns(
        async || database.measure(extra, &plan).await,
        Some(async || database.measure(Extra::Nothing, &plan).await),
    )
    .await?;
    table.row(turns::row(extra.name(), tasks, &hapax, raw.as_ref()));
    Ok(())
}

enum Database {
    Postgres(Postgres),
    Sqlite(Sqlite),
}

impl Database {
    async fn open(place: &Place, name: &str) -> anyhow::Result<Self> {
        let url = place.url(name);
        // Makes hapax's tables.
        drop(place.store_at(&url).await?);
        Ok(match place {
            Place::Postgres(_) => Self::Postgres(Postgres::connect(&url).await?),
            Place::Sqlite(folder) => {
                Self::Sqlite(Sqlite::open(&folder.path().join(format!("{name}.db")))?)
            }
            Place::Memory | Place::Redis(_) => anyhow::bail!("it has no transactions"),
        })
    }

    async fn measure(&self, extra: Extra, plan: &Plan) -> Result<Measured, Failure> {
        match self {
            Self::Postgres(postgres) => {
                let operation: Arc<dyn Operation> = Arc::new(postgres.transactions(extra));
                measure(operation, plan).await
            }
            Self::Sqlite(sqlite) => {
                let operation = Arc::new(sqlite.transactions(extra, plan.tasks));
                // One thread does it all; the tasks are in the batch.
                measure(operation, &Plan { tasks: 1, ..plan.clone() }).await
            }
        }
    }
}
