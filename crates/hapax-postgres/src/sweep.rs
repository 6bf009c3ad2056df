//! Deletes what has expired.

use hapax_core::{StoreError, StoreResult};
use tokio::time::Instant;

use crate::connect::ConnectionPool;
use crate::connect::session::{SqlRow, SqlSession};
use crate::row;

/// Rows per statement, few enough that a takeover of an expired claim does not wait long.
const BATCH: u32 = 500;

/// Each returned row is a deleted one.
const SWEEPS: [&str; 3] = [
    include_str!("sql/sweep_claims.sql"),
    include_str!("sql/sweep_records.sql"),
    include_str!("sql/sweep_done.sql"),
];

const JOBS: &str = "SELECT * FROM hapax_forget_jobs($1)";
const ENTRIES: &str = "SELECT hapax_forget_entries($1) AS deleted";

/// Deletes in small statements until nothing is left or half the timeout has passed.
pub(crate) async fn sweep(pool: &ConnectionPool, at_most: u32) -> StoreResult<u64> {
    let deadline = Instant::now() + pool.timeout / 2;
    let mut left = at_most;
    for sql in SWEEPS {
        while left > 0 && Instant::now() < deadline {
            let batch = left.min(BATCH);
            let gone = delete_batch(pool, sql, batch).await?.len() as u32;
            left -= gone.min(left);
            if gone < batch {
                break;
            }
        }
    }
    while left > 0 && Instant::now() < deadline {
        let batch = left.min(BATCH);
        let rows = delete_batch(pool, JOBS, batch).await?;
        left -= read_count(&rows, "forgotten")?.min(left);
        if read_count(&rows, "looked_at")? < batch {
            break;
        }
    }
    // Entries of deleted jobs are unreachable and not counted; delete them while there is time.
    while Instant::now() < deadline
        && read_count(&delete_batch(pool, ENTRIES, BATCH).await?, "deleted")? > 0
    {}
    Ok(u64::from(at_most - left))
}

async fn delete_batch(
    pool: &ConnectionPool,
    sql: &'static str,
    batch: u32,
) -> StoreResult<Vec<SqlRow>> {
    pool.run(pool.session().rows(sql, &[&i64::from(batch)])).await
}

fn read_count(rows: &[SqlRow], column: &str) -> StoreResult<u32> {
    let number = rows.first().map_or(Ok(0), |row| row::number(row, column));
    let number = number.map_err(|_| StoreError::Corrupt { reason: "a count".into() })?;
    Ok(u32::try_from(number).unwrap_or(u32::MAX))
}
