//! What publishing costs beside the raw engine.

mod publishing;
mod raw_postgres;
mod raw_redis;
mod raw_sqlite;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_sqlite::rusqlite::Connection;
use hapax_workload::{BenchError, BenchPlan, BenchSpan, MarkdownTable, Measurement, measure};

use crate::store_server::{Engine, POOL, StoreServer};
use crate::turns::{self, PARTS, take_turns};
use crate::{progress, say};
use publishing::{EventPublisher, PublishOperation};
use raw_postgres::RawPostgresPublisher;
use raw_redis::RawRedisPublisher;
use raw_sqlite::RawSqlitePublisher;

/// The warm-up before each part.
const WARM_UP: Duration = Duration::from_millis(300);

/// Runs the measurements and prints the tables.
pub(crate) async fn compare(
    engines: &[Engine],
    tasks: &[usize],
    seconds: Duration,
) -> anyhow::Result<()> {
    say(
        "## Publishing\n\nEvents of about 200 bytes, ten for each job, one publish each; answered \
         when the store has it for good.\n",
    )?;
    for engine in engines {
        let mut table = turns::table(engine.name());
        let mut description = None;
        for tasks in tasks.iter().copied() {
            // Start a new server for each line, so that earlier events do not slow it down.
            let server = StoreServer::start(*engine)?;
            description.get_or_insert_with(|| server.description());
            line(&server, tasks, seconds, &mut table).await?;
            progress(".");
        }
        progress("\n");
        let (server, raw) = (description.unwrap_or_default(), raw_description(*engine));
        say(&format!("### {}\n\n{server}; {raw}\n\n{table}", engine.name()))?;
    }
    Ok(())
}

fn raw_description(engine: Engine) -> String {
    match engine {
        Engine::Memory => "nothing to compare with".into(),
        Engine::Sqlite => format!(
            "raw: one thread that inserts, up to {} events in a commit",
            crate::raw::sqlite::BATCH
        ),
        Engine::Redis => "raw: a usual worker script alone, over one multiplexed connection; \
                          hapax does the router's work in the same step (aim: 0.70 of it)"
            .into(),
        Engine::Postgres => {
            format!(
                "both {POOL} connections; raw: one prepared insert and one commit for each event"
            )
        }
    }
}

async fn line(
    server: &StoreServer,
    tasks: usize,
    time: Duration,
    table: &mut MarkdownTable,
) -> anyhow::Result<()> {
    let plan = BenchPlan::new(tasks, BenchSpan::Time(time / PARTS))
        .warm_up(WARM_UP)
        .servers([server.processes()]);
    let bus: Arc<dyn EventPublisher> = Arc::new(publishing::bus(server.store("hapax").await?));
    let raw = RawBus::open(server).await?;
    let (hapax, raw) = take_turns(
        async || measure(Arc::new(PublishOperation::new(&bus)), &plan).await,
        raw.as_ref().map(|raw| async || raw.measure(&plan).await),
    )
    .await?;
    table.row(turns::row("publish", tasks, &hapax, raw.as_ref()));
    Ok(())
}

enum RawBus {
    Each(Arc<dyn EventPublisher>),
    Batched(Arc<Mutex<Connection>>),
}

impl RawBus {
    async fn open(server: &StoreServer) -> anyhow::Result<Option<Self>> {
        Ok(match server {
            StoreServer::Memory => None,
            StoreServer::Sqlite(folder) => {
                Some(Self::Batched(raw_sqlite::open(&folder.path().join("raw.db"))?))
            }
            StoreServer::Redis(server) => {
                Some(Self::Each(Arc::new(RawRedisPublisher::connect(&server.url()).await?)))
            }
            StoreServer::Postgres(server) => Some(Self::Each(Arc::new(
                RawPostgresPublisher::connect(&server.database("raw"), POOL).await?,
            ))),
        })
    }

    async fn measure(&self, plan: &BenchPlan) -> Result<Measurement, BenchError> {
        match self {
            Self::Each(publisher) => {
                measure(Arc::new(PublishOperation::new(publisher)), plan).await
            }
            Self::Batched(connection) => {
                let commits = RawSqlitePublisher::new(connection, plan.tasks);
                // SQLite has one writer: the tasks become the size of a batch.
                measure(Arc::new(commits), &BenchPlan { tasks: 1, ..plan.clone() }).await
            }
        }
    }
}
