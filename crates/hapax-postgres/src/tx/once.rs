use std::future::Future;
use std::pin::Pin;

use hapax_core::command::{OnceClaim, OnceStart};
use hapax_core::{Once, OnceError, Operation, Step, StoreError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{HapaxTransaction, PostgresTransaction};

/// The future of an effect, boxed because it borrows the transaction.
pub type EffectFuture<'t, V, E> = Pin<Box<dyn Future<Output = Result<V, E>> + Send + 't>>;

impl<T: HapaxTransaction> PostgresTransaction<'_, T> {
    /// Runs `effect` if no transaction with this operation and key has committed before, and keeps
    /// its answer: **exactly once**, because the effect is in the same transaction as its claim.
    ///
    /// The command is the same as that of [`Commands::once`](hapax_core::command::Commands::once) and
    /// of the HTTP API: an answer that was stored here is replayed there, and the other way round.
    ///
    /// The effect owns what it captures; it gets the transaction as its argument. With
    /// `tokio-postgres`:
    ///
    /// ```no_run
    /// use hapax_core::Operation;
    /// use hapax_postgres::{HapaxTransaction, tokio_postgres::{Client, Error}};
    ///
    /// # async fn example(client: &mut Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = client.transaction().await?;
    /// let order = tx
    ///     .hapax()
    ///     .once(Operation("CreateOrder"), "key-1", "bento", |tx| {
    ///         Box::pin(async move {
    ///             let sql = "INSERT INTO orders (item) VALUES ($1) RETURNING id";
    ///             let row = tx.query_one(sql, &[&"bento"]).await?;
    ///             Ok::<i64, Error>(row.get(0))
    ///         })
    ///     })
    ///     .await?;
    /// tx.commit().await?; // the order and its answer, or neither
    /// println!("order {}, replayed: {}", order.value, order.replayed);
    /// # Ok(()) }
    /// ```
    #[cfg_attr(
        feature = "sqlx",
        doc = r#"
With `sqlx`:

```no_run
use hapax_core::Operation;
use hapax_postgres::{HapaxTransaction, sqlx};
use sqlx::{Connection, PgConnection};

# async fn example(connection: &mut PgConnection) -> Result<(), Box<dyn std::error::Error>> {
let mut tx = connection.begin().await?;
let order = tx
    .hapax()
    .once(Operation("CreateOrder"), "key-1", "bento", |tx| {
        let insert = sqlx::query_scalar("INSERT INTO orders (item) VALUES ($1) RETURNING id");
        Box::pin(async move { insert.bind("bento").fetch_one(&mut **tx).await })
    })
    .await?;
tx.commit().await?; // the order and its answer, or neither
let _id: i64 = order.value;
# Ok(()) }
```"#
    )]
    ///
    /// # Errors
    /// After an error roll back (dropping the transaction does so): then neither the effect nor the
    /// claim has left a trace. A duplicate that comes while another transaction with this key is open
    /// is [`OnceError::InProgress`] at once.
    pub async fn once<I, V, E>(
        &mut self,
        operation: Operation<'_>,
        key: &str,
        input: &I,
        effect: impl for<'t> FnOnce(&'t mut T) -> EffectFuture<'t, V, E> + Send,
    ) -> Result<Once<V>, OnceError<E>>
    where
        I: Serialize + ?Sized,
        V: Serialize + DeserializeOwned,
    {
        let claim = OnceClaim::new(&self.tenant, operation, key, input, self.retention)?;
        let token = match claim.start(self.claim(&claim.key, &claim.request).await?)? {
            OnceStart::Run { ticket, .. } => ticket.token,
            OnceStart::Replay(value) => return Ok(Once { value, replayed: true }),
        };
        let value = effect(self.tx).await.map_err(OnceError::Failed)?;
        match self.settle(&claim.key, &token, claim.answer(&value)?).await? {
            Step::Done(_) => Ok(Once { value, replayed: false }),
            // Lease and retention ended before the effect did, so the claim was forgotten.
            Step::Lost => {
                let timeout = claim.request.lease + claim.request.retention;
                Err(StoreError::Timeout { timeout }.into())
            }
        }
    }
}
