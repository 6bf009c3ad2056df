use hapax_core::StoreError;
use tokio::time::Instant;
use tokio_postgres::types::Type;

use crate::link::Link;
use crate::session::{Session, Sql};

/// Small enough that nobody who takes over an expired claim waits for long.
const BATCH: u32 = 500;

const SWEEPS: [Sql; 2] = [
    Sql { text: include_str!("sql/sweep_claims.sql"), types: &[Type::INT8] },
    Sql { text: include_str!("sql/sweep_records.sql"), types: &[Type::INT8] },
];

/// Deletes what has expired, in small statements, until nothing is left or half the time is up.
pub(crate) async fn sweep(link: &Link, at_most: u32) -> Result<u64, StoreError> {
    let enough = Instant::now() + link.limit / 2;
    let mut left = at_most;
    for sql in &SWEEPS {
        while left > 0 && Instant::now() < enough {
            let batch = left.min(BATCH);
            let gone = link
                .within(async {
                    let rows = link.lease().await?.rows(sql, &[&i64::from(batch)]).await?;
                    Ok(rows.len() as u32)
                })
                .await?;
            left -= gone.min(left);
            if gone < batch {
                break;
            }
        }
    }
    Ok(u64::from(at_most - left))
}
