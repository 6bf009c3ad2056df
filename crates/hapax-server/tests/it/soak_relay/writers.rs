//! Writers with transactions of their own: some roll back, some commit late.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax::sqlite::rusqlite::{Connection, TransactionBehavior};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

use crate::soak_bus::random::Random;
use crate::soak_relay::checker::Row;

const WRITERS: u64 = 8;
const KEYS: usize = 6;

/// One clock for all writers, so that "did not overlap" has a meaning.
#[derive(Clone, Default)]
struct Ticks(Arc<AtomicU64>);

impl Ticks {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("PostgreSQL");
    tokio::spawn(connection);
    client
}

/// Writes rows until every writer has written its share; all of them.
pub(crate) async fn write_to_postgres(url: &str, rows_each: u32) -> Vec<Row> {
    let ticks = Ticks::default();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (client, ticks) = (client(url).await, ticks.clone());
        writers.spawn(async move {
            let mut writer = Writer { client, ticks, random: Random::new(writer + 1) };
            let mut rows = Vec::new();
            for _ in 0..rows_each {
                rows.push(writer.row().await);
            }
            rows
        });
    }
    writers.join_all().await.concat()
}

struct Writer {
    client: Client,
    ticks: Ticks,
    random: Random,
}

impl Writer {
    async fn row(&mut self) -> Row {
        let key = format!("key-{}", self.random.below(KEYS));
        let began = self.ticks.next();
        let tx = self.client.transaction().await.expect("a transaction");
        let insert = "INSERT INTO hapax_outbox (topic, key, payload) \
                      VALUES ('orders', $1, '{}'::bytea) RETURNING id::text";
        let id = tx.query_one(insert, &[&key]).await.expect("a row").get(0);
        let late = if self.random.one_in(8) { 200 } else { 10 };
        tokio::time::sleep(Duration::from_millis(self.random.below(late) as u64)).await;
        let committed = !self.random.one_in(5);
        let end = if committed { tx.commit().await } else { tx.rollback().await };
        end.expect("the transaction ends");
        Row { id, key, began, ended: self.ticks.next(), committed }
    }
}

/// The same over SQLite, which allows one writer at a time: nothing commits late, but all writers and
/// relays wait for each other.
pub(crate) async fn write_to_sqlite(file: &Path, rows_each: u32) -> Vec<Row> {
    let ticks = Ticks::default();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (file, ticks) = (file.to_owned(), ticks.clone());
        writers.spawn_blocking(move || {
            let mut connection = Connection::open(file).expect("SQLite");
            connection.busy_timeout(Duration::from_secs(60)).expect("patience");
            let mut random = Random::new(writer + 1);
            (0..rows_each)
                .map(|_| sqlite_row(&mut connection, &ticks, &mut random))
                .collect::<Vec<_>>()
        });
    }
    writers.join_all().await.concat()
}

fn sqlite_row(connection: &mut Connection, ticks: &Ticks, random: &mut Random) -> Row {
    let key = format!("key-{}", random.below(KEYS));
    let began = ticks.next();
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let tx = tx.expect("a transaction");
    let insert = "INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', ?1, '{}') \
                  RETURNING id";
    let id = tx.query_row(insert, [&key], |row| row.get(0)).expect("a row");
    let committed = !random.one_in(5);
    let end = if committed { tx.commit() } else { tx.rollback() };
    end.expect("the transaction ends");
    let ended = ticks.next();
    // A writer that returns at once would keep the others out.
    std::thread::sleep(Duration::from_millis(random.below(20) as u64));
    Row { id, key, began, ended, committed }
}
