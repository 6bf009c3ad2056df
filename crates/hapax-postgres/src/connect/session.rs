//! Statements, parameters and rows, independent of the driver.

use std::future::Future;

use tokio_postgres::types::{FromSql, ToSql, Type};
use uuid::Uuid;

use crate::error::SqlResult;

/// A parameter whose SQL type follows from its Rust type, which saves a round trip to ask for it.
pub trait SqlParam: ToSql + Sync {
    fn sql_type(&self) -> Type;
}

macro_rules! sql_types {
    ($($rust:ty: $one:ident, $many:ident;)*) => {$(
        impl SqlParam for $rust {
            fn sql_type(&self) -> Type { Type::$one }
        }
        impl SqlParam for Option<$rust> {
            fn sql_type(&self) -> Type { Type::$one }
        }
        impl SqlParam for Vec<$rust> {
            fn sql_type(&self) -> Type { Type::$many }
        }
        impl SqlParam for Vec<Option<$rust>> {
            fn sql_type(&self) -> Type { Type::$many }
        }
    )*};
}

sql_types! {
    bool: BOOL, BOOL_ARRAY;
    i16: INT2, INT2_ARRAY;
    i32: INT4, INT4_ARRAY;
    i64: INT8, INT8_ARRAY;
    &str: TEXT, TEXT_ARRAY;
    String: TEXT, TEXT_ARRAY;
    &[u8]: BYTEA, BYTEA_ARRAY;
    Uuid: UUID, UUID_ARRAY;
}

pub(crate) type Params<'a> = &'a [&'a dyn SqlParam];

/// Where statements run: on pooled connections, each in its own transaction, or in a transaction of
/// the caller.
pub trait SqlSession: Send {
    fn rows(
        &mut self,
        sql: &'static str,
        params: Params<'_>,
    ) -> impl Future<Output = SqlResult<Vec<SqlRow>>> + Send;
}

/// A row of either driver.
pub enum SqlRow {
    Tokio(tokio_postgres::Row),
    #[cfg(feature = "sqlx")]
    Sqlx(sqlx::postgres::PgRow),
}

impl SqlRow {
    pub(crate) fn try_get<'a, T: FromSql<'a>>(&'a self, column: &str) -> SqlResult<T> {
        match self {
            Self::Tokio(row) => Ok(row.try_get(column)?),
            #[cfg(feature = "sqlx")]
            Self::Sqlx(row) => crate::tx::sqlx_adapter::read_column(row, column),
        }
    }
}

/// Parameters with their types, as `tokio-postgres` takes them.
pub(crate) fn typed<'a>(
    params: Params<'a>,
) -> impl Iterator<Item = (&'a (dyn ToSql + Sync), Type)> + 'a {
    params.iter().map(|param| (*param as &(dyn ToSql + Sync), param.sql_type()))
}
