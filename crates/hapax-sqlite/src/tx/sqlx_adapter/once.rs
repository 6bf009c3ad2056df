use std::future::Future;
use std::pin::Pin;

use hapax_core::command::{OnceClaim, OnceStart};
use hapax_core::{Once, OnceError, Operation, Step};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::sqlite::SqliteConnection;

use super::SqlxTransaction;
use crate::error::internal_error;

/// The future of an effect, boxed because it borrows the connection.
pub type SqlxEffect<'t, V, E> = Pin<Box<dyn Future<Output = Result<V, E>> + Send + 't>>;

impl SqlxTransaction<'_> {
    /// Runs `effect` if no transaction with this operation and key has committed before, and keeps
    /// its answer: **exactly once**, because the effect is in the same transaction as its claim.
    ///
    /// The command is the same as that of [`Commands::once`](hapax_core::command::Commands::once) and
    /// of the HTTP API: an answer that was stored here is replayed there, and the other way round.
    ///
    /// ```
    /// use hapax_core::Operation;
    /// use hapax_sqlite::{HapaxSqlxTransaction, rusqlite, sqlx};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("shop.db");
    /// hapax_sqlite::migrate(&rusqlite::Connection::open(&path)?)?;
    /// let shop = sqlx::SqlitePool::connect(&format!("sqlite://{}", path.display())).await?;
    /// sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)").execute(&shop).await?;
    ///
    /// for attempt in ["first", "retry"] {
    ///     let mut tx = shop.begin_with("BEGIN IMMEDIATE").await?;
    ///     let order = tx
    ///         .hapax()
    ///         .once(Operation("CreateOrder"), "key-1", "bento", |tx| {
    ///             let insert = sqlx::query("INSERT INTO orders (item) VALUES ('bento')");
    ///             Box::pin(async move { Ok::<_, sqlx::Error>(insert.execute(tx).await?.last_insert_rowid()) })
    ///         })
    ///         .await?;
    ///     tx.commit().await?;
    ///     assert_eq!((order.value, order.replayed), (1, attempt == "retry"));
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// After an error neither the effect nor the claim has left a trace. Your transaction is as it
    /// was before and still open, unless SQLite itself rolled it back, as it does on a full disk.
    pub async fn once<I, V, E>(
        &mut self,
        operation: Operation<'_>,
        key: &str,
        input: &I,
        effect: impl for<'t> FnOnce(&'t mut SqliteConnection) -> SqlxEffect<'t, V, E> + Send,
    ) -> Result<Once<V>, OnceError<E>>
    where
        I: Serialize + ?Sized,
        V: Serialize + DeserializeOwned,
    {
        let claim = OnceClaim::new(&self.tenant, operation, key, input, self.retention)?;
        // Without a transaction a savepoint would silently begin one.
        self.session.require_transaction().await?;
        self.session.begin_savepoint().await?;
        let done = self.run_once(&claim, effect).await;
        self.session.end_savepoint(done).await
    }

    async fn run_once<V, E>(
        &mut self,
        claim: &OnceClaim,
        effect: impl for<'t> FnOnce(&'t mut SqliteConnection) -> SqlxEffect<'t, V, E> + Send,
    ) -> Result<Once<V>, OnceError<E>>
    where
        V: Serialize + DeserializeOwned,
    {
        let token = match claim.start(self.claim(&claim.key, &claim.request).await?)? {
            OnceStart::Run { ticket, .. } => ticket.token,
            OnceStart::Replay(value) => return Ok(Once { value, replayed: true }),
        };
        let value = effect(self.session.connection).await.map_err(OnceError::Failed)?;
        match self.settle(&claim.key, &token, claim.answer(&value)?).await? {
            Step::Done(_) => Ok(Once { value, replayed: false }),
            // Lease and retention ended before the effect did, so the claim was forgotten.
            Step::Lost => {
                Err(internal_error("the effect outlived its claim; set a longer retention"))?
            }
        }
    }
}
