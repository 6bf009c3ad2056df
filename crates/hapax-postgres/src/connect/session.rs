use std::future::Future;

use tokio_postgres::types::{FromSql, ToSql, Type};

use crate::error::Failure;

/// One statement, with the types of its parameters, so that no round trip is spent on asking.
pub(crate) struct Sql {
    pub(crate) text: &'static str,
    pub(crate) types: &'static [Type],
}

pub(crate) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Where statements run: a pooled connection, each its own transaction, or the caller's own.
pub(crate) trait Session: Send {
    fn rows(
        &mut self,
        sql: &Sql,
        params: Params<'_>,
    ) -> impl Future<Output = Result<Vec<Row>, Failure>> + Send;
}

/// A row of an answer, of whichever driver.
pub(crate) enum Row {
    Own(tokio_postgres::Row),
    #[cfg(feature = "sqlx")]
    Sqlx(sqlx::postgres::PgRow),
}

impl Row {
    pub(crate) fn try_get<'a, T: FromSql<'a>>(&'a self, column: &str) -> Result<T, Failure> {
        match self {
            Self::Own(row) => Ok(row.try_get(column)?),
            #[cfg(feature = "sqlx")]
            Self::Sqlx(row) => crate::tx::sqlx_adapter::value(row, column),
        }
    }
}

/// Parameters with their types, as the unnamed statement takes them.
pub(crate) fn typed<'a>(sql: &Sql, params: Params<'a>) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    params.iter().copied().zip(sql.types.iter().cloned()).collect()
}
