//! The same writers over SQLite, which allows one writer at a time: nothing commits late, but all
//! writers and relays wait for each other.

use std::path::Path;
use std::time::Duration;

use hapax::sqlite::rusqlite::{Connection, TransactionBehavior};
use tokio::task::JoinSet;

use crate::soak_bus::random::Random;
use crate::soak_relay::history::Row;
use crate::soak_relay::writers::{KEYS, Ticks, WRITERS};

/// Writes rows until every writer has written its share; all of them.
pub(crate) async fn write(file: &Path, rows_each: u32) -> Vec<Row> {
    let ticks = Ticks::default();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (file, ticks) = (file.to_owned(), ticks.clone());
        writers.spawn_blocking(move || {
            let mut connection = Connection::open(file).expect("SQLite");
            connection.busy_timeout(Duration::from_secs(60)).expect("patience");
            let mut random = Random::new(writer + 1);
            (0..rows_each).map(|_| row(&mut connection, &ticks, &mut random)).collect::<Vec<_>>()
        });
    }
    writers.join_all().await.concat()
}

fn row(connection: &mut Connection, ticks: &Ticks, random: &mut Random) -> Row {
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
