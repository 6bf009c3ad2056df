//! A call of several writes, whole or not at all.

use hapax_core::StoreError;
use rusqlite::Connection;

use crate::error::fault;

/// Runs `work` so that an error or a panic in the middle leaves nothing of it behind, while the
/// transaction around it, with other callers' work, goes on.
pub(crate) fn whole<T>(
    connection: &Connection,
    work: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    execute(connection, "SAVEPOINT hapax_whole").map_err(fault)?;
    let savepoint = Savepoint(Some(connection));
    let done = work()?;
    savepoint.release()?;
    Ok(done)
}

struct Savepoint<'c>(Option<&'c Connection>);

impl Savepoint<'_> {
    fn release(mut self) -> Result<(), StoreError> {
        let connection = self.0.take();
        connection.map_or(Ok(()), |c| execute(c, "RELEASE hapax_whole").map_err(fault))
    }
}

impl Drop for Savepoint<'_> {
    fn drop(&mut self) {
        // A full disk makes the engine roll back everything by itself, the savepoint included.
        if let Some(connection) = self.0.filter(|c| !c.is_autocommit()) {
            let _ = execute(connection, "ROLLBACK TO hapax_whole");
            let _ = execute(connection, "RELEASE hapax_whole");
        }
    }
}

fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::error::bug;

    #[test]
    fn an_error_or_a_panic_leaves_nothing_of_its_own_behind() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE t (n INTEGER); BEGIN IMMEDIATE").unwrap();
        let add = |n: i64| connection.execute("INSERT INTO t VALUES (?1)", [n]).unwrap();
        whole(&connection, || Ok(add(1))).unwrap();
        let failed = whole(&connection, || {
            add(2);
            Err::<(), _>(bug("in the middle"))
        });
        assert!(failed.is_err());
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            whole(&connection, || -> Result<(), _> {
                add(3);
                panic!("in the middle")
            })
        }));
        assert!(panicked.is_err());
        whole(&connection, || Ok(add(4))).unwrap();
        connection.execute_batch("COMMIT").unwrap();
        let sum: i64 = connection.query_row("SELECT sum(n) FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(sum, 5);
    }
}
