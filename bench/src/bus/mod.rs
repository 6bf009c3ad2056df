//! What publishing costs beside the raw engine.

mod event;
mod publishing;
mod raw_postgres;
mod raw_redis;
mod raw_sqlite;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_bench::{Failure, Measured, Plan, Span, Table, measure};
use hapax_core::bus::Bus;
use hapax_sqlite::rusqlite::Connection;

use crate::arena::Engine;
use crate::place::{POOL, Place};
use crate::turns::{self, PARTS, take_turns};
use crate::{progress, say};
use publishing::{Publisher, Publishing};
use raw_postgres::Inserts;
use raw_redis::Worker;
use raw_sqlite::Commits;

/// Before each part.
const WARM_UP: Duration = Duration::from_millis(300);

/// Measures all of it and prints the tables.
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
            // A new one for each line: what the last one published does not make this one slower.
            let place = Place::start(*engine)?;
            description.get_or_insert_with(|| place.description());
            line(&place, tasks, seconds, &mut table).await?;
            progress(".");
        }
        progress("\n");
        let (place, raw) = (description.unwrap_or_default(), raw_description(*engine));
        say(&format!("### {}\n\n{place}; {raw}\n\n{table}", engine.name()))?;
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
    place: &Place,
    tasks: usize,
    time: Duration,
    table: &mut Table,
) -> anyhow::Result<()> {
    let plan =
        Plan::new(tasks, Span::Time(time / PARTS)).warm_up(WARM_UP).servers([place.processes()]);
    let bus: Arc<dyn Publisher> = Arc::new(Bus::new(place.store("hapax").await?));
    let raw = Raw::open(place).await?;
    let (hapax, raw) = take_turns(
        async || measure(Arc::new(Publishing::new(&bus)), &plan).await,
        raw.as_ref().map(|raw| async || raw.measure(&plan).await),
    )
    .await?;
    table.row(turns::row("publish", tasks, &hapax, raw.as_ref()));
    Ok(())
}

enum Raw {
    Each(Arc<dyn Publisher>),
    Batched(Arc<Mutex<Connection>>),
}

impl Raw {
    async fn open(place: &Place) -> anyhow::Result<Option<Self>> {
        Ok(match place {
            Place::Memory => None,
            Place::Sqlite(folder) => {
                Some(Self::Batched(raw_sqlite::open(&folder.path().join("raw.db"))?))
            }
            Place::Redis(server) => {
                Some(Self::Each(Arc::new(Worker::connect(&server.url()).await?)))
            }
            Place::Postgres(server) => {
                Some(Self::Each(Arc::new(Inserts::connect(&server.database("raw"), POOL).await?)))
            }
        })
    }

    async fn measure(&self, plan: &Plan) -> Result<Measured, Failure> {
        match self {
            Self::Each(publisher) => measure(Arc::new(Publishing::new(publisher)), plan).await,
            Self::Batched(connection) => {
                let commits = Commits::new(connection, plan.tasks);
                // One thread does it all; the tasks are in the batch.
                measure(Arc::new(commits), &Plan { tasks: 1, ..plan.clone() }).await
            }
        }
    }
}
