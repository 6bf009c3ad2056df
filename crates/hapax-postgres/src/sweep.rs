use hapax_core::StoreError;
use tokio::time::Instant;
use tokio_postgres::types::Type;

use crate::connect::Link;
use crate::connect::session::{Row, Session, Sql};
use crate::row;

/// Small enough that nobody who takes over an expired claim waits for long.
const BATCH: u32 = 500;

/// Each row that comes back was something.
const SWEEPS: [Sql; 3] = [
    Sql { text: include_str!("sql/sweep_claims.sql"), types: &[Type::INT8] },
    Sql { text: include_str!("sql/sweep_records.sql"), types: &[Type::INT8] },
    Sql { text: include_str!("sql/sweep_done.sql"), types: &[Type::INT8] },
];

const JOBS: Sql = Sql { text: "SELECT * FROM hapax_forget_jobs($1)", types: &[Type::INT8] };

const ENTRIES: Sql =
    Sql { text: "SELECT hapax_forget_entries($1) AS deleted", types: &[Type::INT8] };

/// Deletes what has expired, in small statements, until nothing is left or half the time is up.
pub(crate) async fn sweep(link: &Link, at_most: u32) -> Result<u64, StoreError> {
    let enough = Instant::now() + link.limit / 2;
    let mut left = at_most;
    for sql in &SWEEPS {
        while left > 0 && Instant::now() < enough {
            let batch = left.min(BATCH);
            let gone = run(link, sql, batch).await?.len() as u32;
            left -= gone.min(left);
            if gone < batch {
                break;
            }
        }
    }
    while left > 0 && Instant::now() < enough {
        let batch = left.min(BATCH);
        let rows = run(link, &JOBS, batch).await?;
        left -= told(&rows, "forgotten")?.min(left);
        if told(&rows, "looked_at")? < batch {
            break;
        }
    }
    // What nobody can reach any more does not count, and goes while there is time.
    while Instant::now() < enough && told(&run(link, &ENTRIES, BATCH).await?, "deleted")? > 0 {}
    Ok(u64::from(at_most - left))
}

async fn run(link: &Link, sql: &Sql, batch: u32) -> Result<Vec<Row>, StoreError> {
    link.within(async { link.lease().await?.rows(sql, &[&i64::from(batch)]).await }).await
}

fn told(rows: &[Row], column: &str) -> Result<u32, StoreError> {
    let number = rows.first().map_or(Ok(0), |row| row::number(row, column));
    let number = number.map_err(|_| StoreError::Corrupt { reason: "a count".into() })?;
    Ok(u32::try_from(number).unwrap_or(u32::MAX))
}
