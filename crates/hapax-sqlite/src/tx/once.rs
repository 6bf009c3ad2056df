use hapax_core::command::{OnceClaim, OnceStart};
use hapax_core::{Once, OnceError, Operation, Step};
use rusqlite::Connection;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::SqliteTransaction;
use super::lock::require_transaction;
use super::savepoint::in_savepoint;
use crate::error::internal_error;

impl SqliteTransaction<'_> {
    /// Runs `effect` if no transaction with this operation and key has committed before, and keeps
    /// its answer: **exactly once**, because the effect is in the same transaction as its claim.
    ///
    /// The command is the same as that of [`Commands::once`](hapax_core::command::Commands::once) and
    /// of the HTTP API: an answer that was stored here is replayed there, and the other way round.
    ///
    /// ```
    /// use hapax_core::Operation;
    /// use hapax_sqlite::{HapaxTransaction, migrate, rusqlite::{self, Connection}};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("shop.db");
    /// let mut shop = Connection::open(path)?;
    /// migrate(&shop)?;
    /// shop.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")?;
    ///
    /// for attempt in ["first", "retry"] {
    ///     let tx = shop.transaction()?;
    ///     let order = tx.hapax().once(Operation("CreateOrder"), "key-1", "bento", |tx| {
    ///         tx.execute("INSERT INTO orders (item) VALUES ('bento')", [])?;
    ///         Ok::<_, rusqlite::Error>(tx.last_insert_rowid())
    ///     })?;
    ///     tx.commit()?;
    ///     assert_eq!((order.value, order.replayed), (1, attempt == "retry"));
    /// }
    /// let orders: i64 = shop.query_row("SELECT count(*) FROM orders", [], |row| row.get(0))?;
    /// assert_eq!(orders, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// After an error neither the effect nor the claim has left a trace. Your transaction is as it
    /// was before and still open, unless SQLite itself rolled it back, as it does on a full disk.
    pub fn once<I, T, E>(
        &self,
        operation: Operation<'_>,
        key: &str,
        input: &I,
        effect: impl FnOnce(&Connection) -> Result<T, E>,
    ) -> Result<Once<T>, OnceError<E>>
    where
        I: Serialize + ?Sized,
        T: Serialize + DeserializeOwned,
    {
        // Without a transaction a savepoint would silently begin one.
        require_transaction(self.session.connection)?;
        let claim = OnceClaim::new(&self.tenant, operation, key, input, self.retention)?;
        in_savepoint(self.session.connection, || {
            let token = match claim.start(self.claim(&claim.key, &claim.request)?)? {
                OnceStart::Run { ticket, .. } => ticket.token,
                OnceStart::Replay(value) => return Ok(Once { value, replayed: true }),
            };
            let value = effect(self.session.connection).map_err(OnceError::Failed)?;
            match self.settle(&claim.key, &token, claim.answer(&value)?)? {
                Step::Done(_) => Ok(Once { value, replayed: false }),
                // Lease and retention ended before the effect did, so the claim was forgotten.
                Step::Lost => {
                    Err(internal_error("the effect outlived its claim; set a longer retention"))?
                }
            }
        })
    }
}
