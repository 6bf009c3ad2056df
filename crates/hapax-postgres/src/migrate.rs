//! Versioned SQL files, applied in order, each once, from however many nodes at the same time.

use hapax_core::StoreError;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::error::{Failure, incompatible};

/// The oldest server that has everything the statements use.
pub(crate) const OLDEST_SERVER: i32 = 130_000;

/// Migration `n` brings the schema to version `n`, counted from one. Never change one that was
/// released: add another.
const MIGRATIONS: &[&str] = &[
    include_str!("../migrations/0001_claims_and_records.sql"),
    include_str!("../migrations/0002_log.sql"),
    include_str!("../migrations/0003_queue.sql"),
];

/// The version that this hapax writes and reads.
pub(crate) const NEWEST: usize = MIGRATIONS.len();

/// `hapax` as a number: the advisory lock that migrating nodes queue up on.
const LOCK: i64 = 0x68_61_70_61_78;

/// Creates or updates hapax's tables (`hapax_…`) where this connection's `search_path` leads. The
/// store does so by itself on first use; call it where the tables live in your own database and
/// hapax is only used inside your transactions.
///
/// It changes nothing where the tables are up to date, may run on many nodes at once, and either
/// takes effect as a whole or not at all.
///
/// # Errors
/// [`StoreError::Incompatible`] where the tables were written by a newer hapax or the server is
/// older than PostgreSQL 13; [`StoreError::Refused`] where the role may not create tables.
pub async fn migrate(client: &mut Client) -> Result<(), StoreError> {
    let limit = std::time::Duration::from_secs(60);
    hapax_core::with_timeout(limit, async {
        apply(client, None, None).await.map_err(|failure| failure.into_store(limit))
    })
    .await
}

/// With a number of partitions the store's logs are made ready, too; without, the first store does so.
pub(crate) async fn apply(
    client: &mut Client,
    schema: Option<&str>,
    partitions: Option<u16>,
) -> Result<(), Failure> {
    check_server(client).await?;
    let tx =
        client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?;
    // Nearly every start finds everything done, and then needs neither the lock nor the right to
    // create tables.
    if version(&tx).await? < NEWEST {
        tx.query_typed("SELECT pg_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await?;
        if let Some(schema) = schema {
            tx.batch_execute(&format!("CREATE SCHEMA IF NOT EXISTS {schema}")).await?;
        }
        // Another node may have been faster while this one waited for the lock.
        let done = version(&tx).await?;
        for (number, sql) in MIGRATIONS.iter().enumerate().skip(done) {
            tx.batch_execute(sql).await?;
            set_fact(&tx, "schema", number + 1).await?;
        }
    }
    if let Some(partitions) = partitions {
        divide(&tx, partitions).await?;
    }
    tx.commit().await?;
    Ok(())
}

async fn check_server(client: &Client) -> Result<(), Failure> {
    let sql = "SELECT current_setting('server_version_num')::int";
    let number: i32 = client.query_typed_one(sql, &[]).await?.try_get(0)?;
    if number < OLDEST_SERVER {
        return Err(incompatible(format!(
            "the server is PostgreSQL {}; hapax needs 13 or newer",
            number / 10_000
        ))
        .into());
    }
    Ok(())
}

/// 0 where there are no tables yet.
async fn version(tx: &Transaction<'_>) -> Result<usize, Failure> {
    // Not `to_regclass`: it may answer from before the wait for the lock.
    let there = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class \
                 WHERE relname = 'hapax_meta' AND pg_catalog.pg_table_is_visible(oid))";
    if !tx.query_typed_one(there, &[]).await?.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let version = fact(tx, "schema").await?.and_then(|text| text.parse().ok());
    match version {
        Some(version) if version <= NEWEST => Ok(version),
        Some(version) => Err(incompatible(format!(
            "its tables are of version {version}, written by a newer hapax; this one knows \
             {NEWEST}: upgrade this node"
        ))
        .into()),
        None => {
            Err(incompatible("hapax_meta holds no schema version; is it another table?").into())
        }
    }
}

/// Makes the partitions where there are none, and refuses another number of them.
async fn divide(tx: &Transaction<'_>, partitions: u16) -> Result<(), Failure> {
    if fact(tx, "partitions").await?.is_none() {
        tx.query_typed("SELECT pg_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await?;
    }
    let stored = fact(tx, "partitions").await?;
    match stored.as_deref().map(str::parse::<u16>) {
        Some(Ok(stored)) if stored == partitions => Ok(()),
        Some(_) => {
            let stored = stored.unwrap_or_default();
            Err(incompatible(format!(
                "its logs have {stored} partitions, and this node is set to {partitions}: use the \
                 number it was made with"
            ))
            .into())
        }
        None => {
            let sql = "INSERT INTO hapax_partitions (partition, last, floor, epoch, epochs, line) \
                       SELECT n, 0, 0, now, now || '@1', hapax_line() FROM generate_series(0, $1 - 1) n, \
                       (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) c";
            tx.execute_typed(sql, &[(&i32::from(partitions), Type::INT4)]).await?;
            set_fact(tx, "partitions", partitions.into()).await
        }
    }
}

async fn fact(tx: &Transaction<'_>, name: &str) -> Result<Option<String>, Failure> {
    let sql = "SELECT value FROM hapax_meta WHERE name = $1";
    let row = tx.query_typed_opt(sql, &[(&name, Type::TEXT)]).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

async fn set_fact(tx: &Transaction<'_>, name: &str, value: usize) -> Result<(), Failure> {
    let sql = "INSERT INTO hapax_meta (name, value) VALUES ($1, $2) \
               ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    tx.execute_typed(sql, &[(&name, Type::TEXT), (&value.to_string(), Type::TEXT)]).await?;
    Ok(())
}
