//! Deletes what has expired.

use hapax_core::{StoreResult, Swept};
use rusqlite::params;

use crate::log::{SweptJob, sweep_job};
use crate::session::{Session, to_i64};

/// How many entries of a job are deleted as one piece.
const PIECE: usize = 1000;
/// How many rows of jobs one transaction deletes, which bounds the wait of other calls.
const MAX_ROWS: usize = 2000;
/// How many expired rows of the other tables one transaction deletes. Their keys lie anywhere in the file, so each of them
/// changes pages of its own, which are written and synced with the commit that other calls wait for.
const MAX_EXPIRED: u64 = 50;

/// The tables with rows that expire on their own.
const DELETE_EXPIRED: [&str; 3] = [
    "DELETE FROM hapax_claims WHERE rowid IN (SELECT rowid FROM hapax_claims \
     WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
    "DELETE FROM hapax_records WHERE rowid IN (SELECT rowid FROM hapax_records \
     WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
    "DELETE FROM hapax_outbox WHERE seq IN (SELECT seq FROM hapax_outbox \
     WHERE state = 6 AND forget_at <= ?1 ORDER BY forget_at LIMIT ?2)",
];

/// One sweep transaction: deletes at most `at_most` expired claims, records, items and jobs, the oldest first, and fewer if they
/// would hold up other calls. Fences go on growing, because their sequence is not in these rows.
pub(crate) fn sweep(session: Session<'_>, at_most: u64) -> StoreResult<Swept> {
    let (now, mut count) = (session.now()?, 0);
    let most_expired = at_most.min(MAX_EXPIRED);
    for sql in DELETE_EXPIRED {
        let left = to_i64(most_expired - count);
        count += session.execute(sql, params![to_i64(now.0), left])? as u64;
    }
    if count == most_expired {
        return Ok(Swept { count, more: true });
    }
    let mut rows = 0;
    while count < at_most && rows < MAX_ROWS {
        match sweep_job(session, now, PIECE)? {
            None => return Ok(Swept { count, more: false }),
            Some(SweptJob::Postponed) => rows += 1,
            Some(SweptJob::Deleted { entries }) => {
                rows += entries + 1;
                count += 1;
            }
        }
    }
    Ok(Swept { count, more: true })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use hapax_core::{Expect, Key, ManualClock, Records, Store, Tenant};

    use super::*;
    use crate::{SqliteConfig, SqliteStore};

    /// Other calls get in between two transactions, and wait for the pages of one at most.
    #[tokio::test]
    async fn sweep_deletes_expired_rows_in_small_transactions() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::default());
        let config = SqliteConfig::new(folder.path().join("hapax.db")).clock(clock.clone());
        let store = SqliteStore::open(config).unwrap();
        let rows = 2 * MAX_EXPIRED + 1;
        for n in 0..rows {
            let key = Key::record(&Tenant::default(), &n.to_string()).unwrap();
            let ttl = Some(Duration::from_secs(1));
            let _ = store.put(&key, "1".into(), &Expect::Any, ttl).await.unwrap();
        }
        clock.advance(Duration::from_secs(2));
        let before = store.commits();
        assert_eq!(store.sweep(500).await.unwrap(), Swept { count: rows, more: false });
        assert_eq!(store.commits() - before, 3);
    }
}
