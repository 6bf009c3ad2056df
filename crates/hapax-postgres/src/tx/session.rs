//! Transactions that the caller owns, of either driver.

use tokio_postgres::Transaction;

use crate::InTransaction;
use crate::connect::session::{Params, Row, Session, Sql, typed};
use crate::error::Failure;

/// A transaction of your own that hapax can take part in: of `tokio-postgres`, or with the feature
/// `sqlx` of `sqlx`.
///
/// ```no_run
/// use hapax_core::{Expect, Key, Put, Records, Tenant};
/// use hapax_postgres::Transactional;
///
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let cursor = Key::record(&Tenant::default(), "billing/partition-7")?;
/// let mut tx = client.transaction().await?;
/// tx.execute("INSERT INTO invoices (order_id) VALUES ($1)", &[&"order-1"]).await?;
/// // How far it has come goes into the same transaction as what it did.
/// let Put::Stored { .. } = tx.hapax().put(&cursor, "42".into(), &Expect::Any, None).await? else {
///     return Err("another consumer has come further".into());
/// };
/// tx.commit().await?;
/// # Ok(()) }
/// ```
pub trait Transactional: sealed::Sealed + Send {
    /// Claims, records, inbox and outbox inside this transaction.
    fn hapax(&mut self) -> InTransaction<'_>;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for Transaction<'_> {}

impl Transactional for Transaction<'_> {
    fn hapax(&mut self) -> InTransaction<'_> {
        InTransaction::new(self)
    }
}

/// Where the statements of an [`InTransaction`] run.
pub(crate) enum Caller<'a> {
    Own(&'a Transaction<'a>),
    #[cfg(feature = "sqlx")]
    Sqlx(tokio::sync::Mutex<&'a mut sqlx::PgConnection>),
}

/// Nothing is prepared by name in a connection that is not ours.
impl Session for &Caller<'_> {
    async fn rows(&mut self, sql: &Sql, params: Params<'_>) -> Result<Vec<Row>, Failure> {
        match self {
            Caller::Own(tx) => {
                let rows = tx.query_typed(sql.text, &typed(sql, params)).await?;
                Ok(rows.into_iter().map(Row::Own).collect())
            }
            #[cfg(feature = "sqlx")]
            Caller::Sqlx(connection) => {
                crate::tx::sqlx_adapter::rows(*connection.lock().await, sql, params).await
            }
        }
    }
}
