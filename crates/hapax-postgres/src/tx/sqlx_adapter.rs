//! The same statements through `sqlx`: parameters and columns travel as the bytes that
//! `postgres-types` makes and reads, so that there is one codec and one set of statements.

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
use tokio_postgres::types::{FromSql, IsNull as Null, ToSql, Type};

use crate::InTransaction;
use crate::connect::session::{Params, Row, Sql};
use crate::error::{self, Failure, corrupt};
use crate::tx::session::{Caller, Transactional, sealed};

impl sealed::Sealed for PgConnection {}

impl Transactional for PgConnection {
    fn hapax(&mut self) -> InTransaction<'_> {
        InTransaction::of(Caller::Sqlx(tokio::sync::Mutex::new(self)))
    }
}

impl sealed::Sealed for sqlx::Transaction<'_, Postgres> {}

impl Transactional for sqlx::Transaction<'_, Postgres> {
    fn hapax(&mut self) -> InTransaction<'_> {
        (**self).hapax()
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Sqlx(error)
    }
}

pub(crate) async fn rows(
    connection: &mut PgConnection,
    sql: &Sql,
    params: Params<'_>,
) -> Result<Vec<Row>, Failure> {
    let mut arguments = PgArguments::default();
    for (param, kind) in params.iter().zip(sql.types) {
        let encoded = Encoded::new(*param, kind).map_err(sqlx::Error::Encode)?;
        arguments.add(encoded).map_err(sqlx::Error::Encode)?;
    }
    let query = sqlx::query_with::<Postgres, _>(sql.text, arguments).persistent(false);
    Ok(query.fetch_all(connection).await?.into_iter().map(Row::Sqlx).collect())
}

pub(crate) fn value<'a, T: FromSql<'a>>(row: &'a PgRow, column: &str) -> Result<T, Failure> {
    let raw = row.try_get_raw(column)?;
    let oid = raw.type_info().oid().map(|oid| oid.0);
    let kind =
        oid.and_then(Type::from_oid).ok_or_else(|| corrupt("a column of an unknown type"))?;
    let unreadable = || Failure::from(corrupt("a column of another type"));
    if !T::accepts(&kind) || raw.format() != PgValueFormat::Binary {
        return Err(unreadable());
    }
    let bytes = if raw.is_null() { None } else { Some(raw.as_bytes().map_err(|_| unreadable())?) };
    T::from_sql_nullable(&kind, bytes).map_err(|_| unreadable())
}

pub(crate) fn error(error: sqlx::Error, limit: Duration) -> StoreError {
    match &error {
        sqlx::Error::Database(answer) => match answer.try_downcast_ref::<PgDatabaseError>() {
            Some(answer) => error::from_server(answer.code(), answer.message(), limit),
            None => StoreError::internal(error),
        },
        sqlx::Error::Encode(_) | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
            StoreError::internal(error)
        }
        _ => StoreError::unavailable(error),
    }
}

/// A parameter as it goes over the wire.
struct Encoded {
    kind: Type,
    bytes: Option<BytesMut>,
}

impl Encoded {
    fn new(param: &(dyn ToSql + Sync), kind: &Type) -> Result<Self, BoxDynError> {
        let mut bytes = BytesMut::new();
        let null = param.to_sql_checked(kind, &mut bytes)?;
        Ok(Self { kind: kind.clone(), bytes: matches!(null, Null::No).then_some(bytes) })
    }
}

impl sqlx::Type<Postgres> for Encoded {
    /// Never asked for: each parameter says what it is.
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(Type::UNKNOWN.oid()))
    }
}

impl Encode<'_, Postgres> for Encoded {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let Some(bytes) = &self.bytes else { return Ok(IsNull::Yes) };
        buffer.extend_from_slice(bytes);
        Ok(IsNull::No)
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::with_oid(Oid(self.kind.oid())))
    }
}
