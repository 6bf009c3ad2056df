//! A long outbox on PostgreSQL, drained with and without an old snapshot, which keeps the server from
//! removing rows that are done.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Instant;

use async_trait::async_trait;
use hapax_core::queue::QueueName;
use hapax_core::{Queue, Store};
use hapax_relay::{DeliveryError, OutboundMessage, Relay, Sink};
use hapax_workload::{MarkdownTable, ProcessGroup, cell, measure_work};
use tokio_postgres::NoTls;

use crate::relay::Countdown;
use crate::store_server::{Engine, StoreServer};
use crate::{RunArgs, note, progress, say};

const ROWS: usize = 1_000_000;
/// The rate of the first and of the last of these parts is shown.
const PARTS: usize = 10;

pub(super) async fn compare(run: &RunArgs) -> anyhow::Result<()> {
    if !run.engines().any(|engine| engine == Engine::Postgres) {
        return Ok(());
    }
    say(format_args!(
        "## A long outbox on PostgreSQL\n\n{ROWS} rows of about 200 bytes, a key each, one relay with its \
         usual settings, a sink that does nothing. *old snapshot*: a transaction that began before the first \
         row was done stays open, so that no dead row can be removed.\n"
    ))?;
    let mut table = MarkdownTable::default();
    for (name, is_held) in [("none", false), ("held", true)] {
        // A new server for each: the other's vacuum would go on.
        let server = StoreServer::start(Engine::Postgres)?;
        let url = server.url("outbox");
        let store = server.store_at(&url).await?;
        let holder = fill(&url, is_held).await?;
        let marks = Arc::new(RateMarks::new(ROWS));
        let servers = [server.processes()];
        let (depth_before, measured) =
            (time_depth(&*store).await?, drain(store.clone(), &marks, &servers).await?);
        let (first, last) = marks.rates();
        table.row([
            ("old snapshot", name.to_owned()),
            ("rows/s", cell::rate(measured.per_second())),
            ("first tenth", cell::rate(first)),
            ("last tenth", cell::rate(last)),
            ("relay CPU µs/row", cell::micros(Some(measured.client_cpu_each()))),
            ("store CPU µs/row", cell::micros(measured.server_cpu_each(0))),
            ("depth (gauge), full", depth_before),
            ("depth, drained", time_depth(&*store).await?),
        ]);
        drop(holder);
        progress();
    }
    say(table)?;
    Ok(())
}

async fn time_depth(store: &dyn Queue) -> anyhow::Result<String> {
    let began = Instant::now();
    Ok(match store.depth(&QueueName::outbox(), None).await {
        Ok(_) => cell::latency(began.elapsed()),
        Err(error) => format!("FAILS: {}", error.label()),
    })
}

/// Inserts the rows as a program in any language does. Returns a connection that holds a snapshot of all of
/// them, if asked to.
async fn fill(url: &str, is_held: bool) -> anyhow::Result<Option<tokio_postgres::Client>> {
    let connect = async || {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        anyhow::Ok(client)
    };
    let client = connect().await?;
    let sql = "INSERT INTO hapax_outbox (topic, key, content_type, payload) SELECT 'orders', \
               'order-' || n, 'application/json', convert_to('{\"id\":\"order-' || n || '\",' || \
               '\"note\":\"' || repeat('no sugar, please ', 10) || '\"}', 'UTF8') \
               FROM generate_series(1, $1::bigint) n";
    client.execute(sql, &[&(ROWS as i64)]).await?;
    client.batch_execute("VACUUM (ANALYZE) hapax_outbox").await?;
    client.batch_execute("CHECKPOINT").await?;
    note(format_args!("filled {ROWS} outbox rows"));
    if !is_held {
        return Ok(None);
    }
    let holder = connect().await?;
    holder
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM hapax_outbox")
        .await?;
    Ok(Some(holder))
}

async fn drain(
    store: Arc<dyn Store>,
    marks: &Arc<RateMarks>,
    servers: &[ProcessGroup],
) -> anyhow::Result<hapax_workload::Measurement> {
    let queue: Arc<dyn Queue> = store;
    let relay = Relay::new(queue, marks.clone());
    let work = async {
        relay.run(marks.rows.wait()).await;
        marks.rows.ensure_none_left()
    };
    measure_work(ROWS as u64, servers, work).await
}

/// A sink that discards, and notes when each part of the rows had come.
struct RateMarks {
    rows: Countdown,
    part: usize,
    seen: Mutex<(usize, Vec<Instant>)>,
}

impl RateMarks {
    fn new(rows: usize) -> Self {
        let seen = Mutex::new((0, vec![Instant::now()]));
        Self { rows: Countdown::new(rows), part: rows / PARTS, seen }
    }

    /// Rows per second in the first and in the last part.
    fn rates(&self) -> (f64, f64) {
        let seen = self.seen.lock().expect("no panic while it is held");
        let times: Vec<f64> =
            seen.1.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let rate = |time: Option<&f64>| time.map_or(f64::NAN, |time| self.part as f64 / time);
        (rate(times.first()), rate(times.last()))
    }
}

#[async_trait]
impl Sink for RateMarks {
    fn name(&self) -> &'static str {
        "nothing"
    }

    async fn send(&self, _message: &OutboundMessage) -> Result<(), DeliveryError> {
        {
            let mut seen = self.seen.lock().expect("no panic while it is held");
            seen.0 += 1;
            if seen.0 == 1 {
                seen.1[0] = Instant::now();
            }
            if seen.0.is_multiple_of(self.part) {
                seen.1.push(Instant::now());
            }
        }
        self.rows.count_one();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use hapax_core::Tenant;
    use hapax_core::memory::MemoryStore;
    use hapax_core::queue::QueueItem;

    use super::*;

    #[tokio::test]
    async fn rate_marks_have_one_mark_for_each_part() {
        let store = MemoryStore::default();
        let marks = Arc::new(RateMarks::new(100));
        for row in 0..100 {
            let item = QueueItem::new(&Tenant::default(), "orders", format!("{row}"));
            store.enqueue(&QueueName::outbox(), &[item]).await.unwrap();
        }
        let relay = Relay::new(Arc::new(store), marks.clone());
        relay.run(marks.rows.wait()).await;
        assert_eq!(marks.seen.lock().unwrap().1.len(), PARTS + 1);
    }
}
