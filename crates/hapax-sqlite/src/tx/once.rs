use std::time::Duration;

use bytes::Bytes;
use hapax_core::{ClaimRequest, Claimed, Clock, Key, Step, StoreError};
use rusqlite::Connection;

use super::{claim, settle};
use crate::error::{bug, fault};

/// What became of [`once`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Once {
    /// The effect ran now and gave this value; both are committed with your transaction.
    Ran(Bytes),
    /// It was done before, with this value; the effect did not run.
    Replayed {
        /// What it gave then.
        value: Bytes,
        /// How long that is still remembered.
        expires_in: Duration,
    },
    /// Somebody else is at it, perhaps in a transaction that is still open; try again later.
    Busy {
        /// When it may be worth it.
        lease_left: Duration,
    },
    /// The key was used for something else: the fingerprints differ.
    Mismatch,
    /// An owner outside of transactions lost its lease, and nobody knows whether it acted.
    Unknown {
        /// How long ago.
        since: Duration,
    },
}

/// Why [`once`] came to nothing. Neither the effect nor the claim left a trace; your transaction
/// is as it was before, and still open (unless the engine itself rolled it back, as it does where
/// the disk is full).
#[derive(Debug, thiserror::Error)]
pub enum OnceError<E> {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The effect failed.
    #[error("the effect failed")]
    Effect(#[source] E),
}

/// Runs `effect` if nobody has before, and settles the claim with what it gives, all inside your
/// transaction: **exactly once**, because the effect is in the same transaction as its claim.
///
/// ```
/// use hapax_sqlite::{migrate, rusqlite::{Connection, TransactionBehavior}, tx::{self, Once}};
/// use hapax_core::{ClaimRequest, Key, SystemClock, Tenant};
/// use std::time::Duration;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("shop.db");
/// let mut shop = Connection::open(path)?;
/// migrate(&shop)?;
/// shop.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")?;
///
/// let key = Key::inbox(&Tenant::default(), "orders", "message-1")?;
/// let ask = ClaimRequest::new(Duration::from_secs(30)).retention(Duration::from_secs(86_400));
/// let mut receive = || -> Result<Once, Box<dyn std::error::Error>> {
///     let order = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
///     let outcome = tx::once(&order, &SystemClock, &key, &ask.with_fresh_token(), |order| {
///         order.execute("INSERT INTO orders (item) VALUES ('bento')", [])?;
///         Ok::<_, hapax_sqlite::rusqlite::Error>(order.last_insert_rowid().to_string().into())
///     })?;
///     order.commit()?;
///     Ok(outcome)
/// };
/// assert_eq!(receive()?, Once::Ran("1".into()));
/// // The message is delivered again: the first answer, and no second order.
/// assert!(matches!(receive()?, Once::Replayed { value, .. } if value == "1"));
/// let orders: i64 = shop.query_row("SELECT count(*) FROM orders", [], |row| row.get(0))?;
/// assert_eq!(orders, 1);
/// # Ok(()) }
/// ```
pub fn once<E>(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    ask: &ClaimRequest,
    effect: impl FnOnce(&Connection) -> Result<Bytes, E>,
) -> Result<Once, OnceError<E>> {
    // Outside of a transaction a savepoint would silently begin one.
    if connection.is_autocommit() {
        return Err(bug("hapax_sqlite::tx needs an open transaction; begin one first").into());
    }
    run(connection, "SAVEPOINT hapax_once")?;
    let outcome = attempt(connection, clock, key, ask, effect);
    // A full disk makes the engine roll back everything by itself, the savepoint included.
    if connection.is_autocommit() {
        return outcome;
    }
    if outcome.is_err() {
        run(connection, "ROLLBACK TO hapax_once")?;
    }
    run(connection, "RELEASE hapax_once")?;
    outcome
}

fn attempt<E>(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    ask: &ClaimRequest,
    effect: impl FnOnce(&Connection) -> Result<Bytes, E>,
) -> Result<Once, OnceError<E>> {
    let token = match claim(connection, clock, key, ask)? {
        Claimed::Granted { ticket, .. } => ticket.token,
        Claimed::Settled { value, expires_in } => return Ok(Once::Replayed { value, expires_in }),
        Claimed::Busy { lease_left } => return Ok(Once::Busy { lease_left }),
        Claimed::Mismatch => return Ok(Once::Mismatch),
        Claimed::Unknown { since } => return Ok(Once::Unknown { since }),
    };
    let value = effect(connection).map_err(OnceError::Effect)?;
    match settle(connection, clock, key, &token, &value)? {
        Step::Done(_) => Ok(Once::Ran(value)),
        // Its lease and retention were over before the effect was: nothing would remember it.
        Step::Lost => Err(bug("the effect outlived its claim; ask for a longer retention").into()),
    }
}

fn run(connection: &Connection, sql: &str) -> Result<(), StoreError> {
    connection.execute_batch(sql).map_err(fault)
}
