//! Statements and rows, independent of the driver.

use std::future::Future;

use tokio_postgres::types::{FromSql, ToSql, Type};

use crate::error::StatementError;

/// A statement with the types of its parameters, which saves a round trip to ask for them.
pub struct Sql {
    pub(crate) text: &'static str,
    pub(crate) types: &'static [Type],
}

pub(crate) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Where statements run: on a pooled connection, each in its own transaction, or in a transaction of
/// the caller.
pub trait SqlSession: Send {
    fn rows(
        &mut self,
        sql: &Sql,
        params: Params<'_>,
    ) -> impl Future<Output = Result<Vec<SqlRow>, StatementError>> + Send;
}

/// A row of either driver.
pub enum SqlRow {
    Tokio(tokio_postgres::Row),
    #[cfg(feature = "sqlx")]
    Sqlx(sqlx::postgres::PgRow),
}

impl SqlRow {
    pub(crate) fn try_get<'a, T: FromSql<'a>>(&'a self, column: &str) -> Result<T, StatementError> {
        match self {
            Self::Tokio(row) => Ok(row.try_get(column)?),
            #[cfg(feature = "sqlx")]
            Self::Sqlx(row) => crate::tx::sqlx_adapter::read_column(row, column),
        }
    }
}

/// Pairs parameters with their types, as an unnamed statement takes them.
pub(crate) fn typed<'a>(sql: &Sql, params: Params<'a>) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    params.iter().copied().zip(sql.types.iter().cloned()).collect()
}
