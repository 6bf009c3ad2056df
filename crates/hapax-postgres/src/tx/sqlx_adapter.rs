//! Runs the statements through `sqlx`. Parameters and columns are encoded and decoded by
//! `postgres-types`, so that both drivers share one set of statements and one codec.

use std::time::Duration;

use bytes::BytesMut;
use hapax_core::StoreError;
use sqlx::encode::{Encode, IsNull};
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{
    PgArgumentBuffer, PgArguments, PgConnection, PgDatabaseError, PgRow, PgTypeInfo, PgValueFormat,
};
use sqlx::{Arguments, Postgres, Row as _, ValueRef as _};
use tokio_postgres::types::{FromSql, IsNull as Null, Type};

use super::{HapaxTransaction, sealed};
use crate::connect::session::{Params, SqlParam, SqlRow, SqlSession};
use crate::error::{SqlResult, StatementError, corrupt, server_error};

impl sealed::Sealed for PgConnection {}
impl HapaxTransaction for PgConnection {}
impl sealed::Sealed for sqlx::Transaction<'_, Postgres> {}
impl HapaxTransaction for sqlx::Transaction<'_, Postgres> {}

impl SqlSession for sqlx::Transaction<'_, Postgres> {
    async fn rows(&mut self, sql: &'static str, params: Params<'_>) -> SqlResult<Vec<SqlRow>> {
        (**self).rows(sql, params).await
    }
}

impl From<sqlx::Error> for StatementError {
    fn from(error: sqlx::Error) -> Self {
        Self::Sqlx(error)
    }
}

impl SqlSession for PgConnection {
    async fn rows(&mut self, sql: &'static str, params: Params<'_>) -> SqlResult<Vec<SqlRow>> {
        let mut arguments = PgArguments::default();
        for param in params {
            let encoded = EncodedParam::new(*param).map_err(sqlx::Error::Encode)?;
            arguments.add(encoded).map_err(sqlx::Error::Encode)?;
        }
        let query = sqlx::query_with::<Postgres, _>(sql, arguments).persistent(false);
        Ok(query.fetch_all(self).await?.into_iter().map(SqlRow::Sqlx).collect())
    }
}

pub(crate) fn read_column<'a, T: FromSql<'a>>(row: &'a PgRow, column: &str) -> SqlResult<T> {
    let raw = row.try_get_raw(column)?;
    let oid = raw.type_info().oid().map(|oid| oid.0);
    let kind =
        oid.and_then(Type::from_oid).ok_or_else(|| corrupt("a column of an unknown type"))?;
    let unreadable = || StatementError::from(corrupt("a column of another type"));
    if !T::accepts(&kind) || raw.format() != PgValueFormat::Binary {
        return Err(unreadable());
    }
    let bytes = if raw.is_null() { None } else { Some(raw.as_bytes().map_err(|_| unreadable())?) };
    T::from_sql_nullable(&kind, bytes).map_err(|_| unreadable())
}

pub(crate) fn store_error(error: sqlx::Error, timeout: Duration) -> StoreError {
    match &error {
        sqlx::Error::Database(answer) => match answer.try_downcast_ref::<PgDatabaseError>() {
            Some(answer) => server_error(answer.code(), answer.message(), timeout),
            None => StoreError::internal(error),
        },
        sqlx::Error::Encode(_) | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
            StoreError::internal(error)
        }
        _ => StoreError::unavailable(error),
    }
}

/// A parameter in its wire format.
struct EncodedParam {
    kind: Type,
    bytes: Option<BytesMut>,
}

impl EncodedParam {
    fn new(param: &dyn SqlParam) -> Result<Self, BoxDynError> {
        let (kind, mut bytes) = (param.sql_type(), BytesMut::new());
        let null = param.to_sql_checked(&kind, &mut bytes)?;
        Ok(Self { kind, bytes: matches!(null, Null::No).then_some(bytes) })
    }
}

impl sqlx::Type<Postgres> for EncodedParam {
    /// Not used, because `produces` returns the type of each parameter.
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(Type::UNKNOWN.oid()))
    }
}

impl Encode<'_, Postgres> for EncodedParam {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let Some(bytes) = &self.bytes else { return Ok(IsNull::Yes) };
        buffer.extend_from_slice(bytes);
        Ok(IsNull::No)
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::with_oid(Oid(self.kind.oid())))
    }
}
