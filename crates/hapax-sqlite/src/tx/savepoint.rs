//! Several writes as one unit inside a transaction.

use hapax_core::{StoreError, StoreResult};
use rusqlite::Connection;

use crate::session::execute;

/// Runs `work` so that an error or a panic half-way undoes its writes, while the transaction around
/// it goes on.
pub(crate) fn in_savepoint<T, E: From<StoreError>>(
    connection: &Connection,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    execute(connection, "SAVEPOINT hapax", [])?;
    let guard = RollbackOnDrop(Some(connection));
    let done = work()?;
    guard.release()?;
    Ok(done)
}

struct RollbackOnDrop<'c>(Option<&'c Connection>);

impl RollbackOnDrop<'_> {
    fn release(mut self) -> StoreResult<()> {
        self.0.take().map_or(Ok(()), |c| execute(c, "RELEASE hapax", []).map(drop))
    }
}

impl Drop for RollbackOnDrop<'_> {
    fn drop(&mut self) {
        // On a full disk SQLite has already rolled back the transaction with its savepoints.
        if let Some(connection) = self.0.filter(|c| !c.is_autocommit()) {
            let _ = execute(connection, "ROLLBACK TO hapax", []);
            let _ = execute(connection, "RELEASE hapax", []);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::error::internal_error;

    #[test]
    fn savepoint_undoes_errors_and_panics_only() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE t (n INTEGER); BEGIN IMMEDIATE").unwrap();
        let add = |n: i64| connection.execute("INSERT INTO t VALUES (?1)", [n]).unwrap();
        in_savepoint(&connection, || Ok::<_, StoreError>(add(1))).unwrap();
        let failed = in_savepoint(&connection, || {
            add(2);
            Err::<(), _>(internal_error("in the middle"))
        });
        assert!(failed.is_err());
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            in_savepoint(&connection, || -> StoreResult<()> {
                add(3);
                panic!("in the middle")
            })
        }));
        assert!(panicked.is_err());
        in_savepoint(&connection, || Ok::<_, StoreError>(add(4))).unwrap();
        connection.execute_batch("COMMIT").unwrap();
        let sum: i64 = connection.query_row("SELECT sum(n) FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(sum, 5);
    }
}
