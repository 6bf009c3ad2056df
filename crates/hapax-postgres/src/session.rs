use std::future::Future;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Transaction};

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

/// Nothing is prepared by name in a connection that is not ours.
impl Session for &Transaction<'_> {
    async fn rows(&mut self, sql: &Sql, params: Params<'_>) -> Result<Vec<Row>, Failure> {
        Ok(self.query_typed(sql.text, &typed(sql, params)).await?)
    }
}

/// Parameters with their types, as the unnamed statement takes them.
pub(crate) fn typed<'a>(sql: &Sql, params: Params<'a>) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    params.iter().copied().zip(sql.types.iter().cloned()).collect()
}
