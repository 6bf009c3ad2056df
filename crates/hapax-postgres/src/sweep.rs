//! Deletes what has expired.

use hapax_core::{StoreResult, Swept};
use tokio::time::Instant;

use crate::connect::ConnectionPool;
use crate::connect::session::SqlSession;
use crate::error::SqlResult;
use crate::row;

/// Rows per statement, few enough that neither a takeover of an expired claim nor a commit that shares the disk waits long.
const BATCH: u32 = 100;

/// Deletes expired rows of a table. SKIP LOCKED: a row that is being taken over or written is left to that
/// transaction.
macro_rules! delete_expired {
    ($table:literal) => {
        concat!(
            "WITH gone AS (DELETE FROM ",
            $table,
            " WHERE ctid = ANY (ARRAY(SELECT ctid FROM ",
            $table,
            " WHERE expires_at <= (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) \
              ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING 1) \
              SELECT count(*) AS deleted, count(*) >= $1 AS more FROM gone"
        )
    };
}

/// Each statement deletes at most `$1` rows, and answers how many and whether more may be left.
/// Entries come last, because forgetting a job leaves its entries to them.
const STATEMENTS: [&str; 5] = [
    delete_expired!("hapax_claims"),
    delete_expired!("hapax_records"),
    include_str!("sql/sweep_done.sql"),
    "SELECT forgotten AS deleted, looked_at >= $1 AS more FROM hapax_forget_jobs($1)",
    "SELECT deleted, more FROM hapax_sweep_entries($1)",
];

/// Deletes in small statements until nothing is left, `at_most` rows are deleted, or half the
/// timeout has passed.
pub(crate) async fn sweep(pool: &ConnectionPool, at_most: u32) -> StoreResult<Swept> {
    let deadline = Instant::now() + pool.timeout / 2;
    let mut count = 0;
    for sql in STATEMENTS {
        loop {
            let left = u64::from(at_most).saturating_sub(count);
            if left == 0 || Instant::now() >= deadline {
                return Ok(Swept { count, more: true });
            }
            match pool.run(delete_batch(pool, sql, left.min(BATCH.into()))).await {
                // Report the rows that were deleted; the next call meets the same error.
                Err(_) if count > 0 => return Ok(Swept { count, more: true }),
                Err(error) => return Err(error),
                Ok(batch) => {
                    count += batch.count;
                    if !batch.more {
                        break;
                    }
                }
            }
        }
    }
    Ok(Swept { count, more: false })
}

async fn delete_batch(pool: &ConnectionPool, sql: &'static str, batch: u64) -> SqlResult<Swept> {
    let rows = pool.session().rows(sql, &[&row::to_i64(batch)]).await?;
    let row = row::only(&rows)?;
    Ok(Swept { count: row::number(row, "deleted")?, more: row.try_get("more")? })
}
