//! Versioned SQL files, applied in order, each once, safe to run on many nodes at the same time.

use hapax_core::{OpenMode, StoreResult};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::PostgresConfig;
use crate::connect::ConnectionPool;
use crate::error::{SqlResult, incompatible};

/// The oldest supported server version.
pub(crate) const MIN_SERVER_VERSION: i32 = 130_000;

/// Migration `n` brings the schema to version `n`, counted from one. Never change a released
/// migration: add another.
const MIGRATIONS: &[&str] = &[
    include_str!("../migrations/0001_claims_and_records.sql"),
    include_str!("../migrations/0002_log.sql"),
    include_str!("../migrations/0003_queue.sql"),
    include_str!("../migrations/0004_sweep_and_queue.sql"),
    concat!(
        include_str!("../migrations/0005_functions.sql"),
        include_str!("../migrations/0005_interface.sql")
    ),
    include_str!("../migrations/0006_queue_lookups.sql"),
];

/// The schema version that this hapax reads and writes.
pub const SCHEMA_VERSION: usize = MIGRATIONS.len();

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
/// [`StoreError::Incompatible`](hapax_core::StoreError::Incompatible) where the tables were written by a newer hapax or the server is
/// older than PostgreSQL 13; [`StoreError::Refused`](hapax_core::StoreError::Refused) where the role may not create tables.
pub async fn migrate(client: &mut Client) -> StoreResult<()> {
    let timeout = std::time::Duration::from_secs(60);
    hapax_core::with_timeout(timeout, async {
        apply(client, None, None).await.map_err(|error| error.into_store_error(timeout))
    })
    .await
}

/// With a number of partitions the log partitions are created, too; otherwise the first store does so.
pub(crate) async fn apply(
    client: &mut Client,
    schema: Option<&str>,
    partitions: Option<u16>,
) -> SqlResult<()> {
    check_server(client).await?;
    let tx =
        client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?;
    // With current tables neither the lock nor the right to create tables is needed.
    if stored_version(&tx).await? < SCHEMA_VERSION {
        tx.query_typed("SELECT pg_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await?;
        if let Some(schema) = schema {
            tx.batch_execute(&format!("CREATE SCHEMA IF NOT EXISTS {schema}")).await?;
        }
        // Another node may have migrated while this one waited for the lock.
        let done = stored_version(&tx).await?;
        for (number, sql) in MIGRATIONS.iter().enumerate().skip(done) {
            tx.batch_execute(sql).await?;
            set_meta(&tx, "schema", number + 1).await?;
        }
    }
    if let Some(partitions) = partitions {
        check_partitions(&tx, partitions).await?;
    }
    tx.commit().await?;
    Ok(())
}

/// The SQL that brings the tables up to date, for whoever has the rights; empty if they are. Nothing is
/// changed in the database.
///
/// # Errors
/// As [`migrate`], and where the server cannot be reached.
pub async fn migration_sql(config: &PostgresConfig) -> StoreResult<String> {
    let pool = ConnectionPool::new(&config.clone().mode(OpenMode::ReadOnly))?;
    let from = pool.run(async { pool.checkout().await?.schema_version().await }).await?;
    if from >= SCHEMA_VERSION {
        return Ok(String::new());
    }
    let mut sql = format!("BEGIN;\nSELECT pg_advisory_xact_lock({LOCK});\n");
    if let Some(schema) = &pool.target.schema {
        sql.push_str(&format!(
            "CREATE SCHEMA IF NOT EXISTS {schema};\nSET LOCAL search_path TO {schema};\n"
        ));
    }
    for (number, migration) in MIGRATIONS.iter().enumerate().skip(from) {
        let version = number + 1;
        sql.push_str(&format!("\n-- version {version}\n{migration}\n"));
        sql.push_str(&format!(
            "INSERT INTO hapax_meta (name, value) VALUES ('schema', '{version}') \
             ON CONFLICT (name) DO UPDATE SET value = excluded.value;\n"
        ));
    }
    let partitions = config.partitions;
    sql.push_str(&format!(
        "\n-- the partitions of the log, once\n{};\n\
         INSERT INTO hapax_meta (name, value) VALUES ('partitions', '{partitions}') \
         ON CONFLICT DO NOTHING;\nCOMMIT;\n",
        INSERT_PARTITIONS.replace("$1", &partitions.to_string()) + " ON CONFLICT DO NOTHING",
    ));
    Ok(sql)
}

/// Refuses a database whose tables [`apply`] would have to create or change.
pub(crate) async fn require_current(client: &mut Client) -> SqlResult<()> {
    check_server(client).await?;
    match read_version(client).await? {
        SCHEMA_VERSION => Ok(()),
        0 => Err(incompatible(
            "the database has no tables of hapax where this role looks for them; `hapax migrate` \
             creates them",
        )
        .into()),
        found => Err(incompatible(format!(
            "its tables are of version {found}, and this hapax uses {SCHEMA_VERSION}; `hapax \
             migrate` brings them up to date"
        ))
        .into()),
    }
}

/// The stored schema version in a read-only transaction; 0 without tables.
pub(crate) async fn read_version(client: &mut Client) -> SqlResult<usize> {
    let tx = client.build_transaction().read_only(true).start().await?;
    let version = stored_version(&tx).await?;
    tx.rollback().await?;
    Ok(version)
}

async fn check_server(client: &Client) -> SqlResult<()> {
    let sql = "SELECT current_setting('server_version_num')::int";
    let number: i32 = client.query_typed_one(sql, &[]).await?.try_get(0)?;
    if number < MIN_SERVER_VERSION {
        return Err(incompatible(format!(
            "the server is PostgreSQL {}; hapax needs 13 or newer",
            number / 10_000
        ))
        .into());
    }
    Ok(())
}

/// The stored schema version; 0 without tables.
async fn stored_version(tx: &Transaction<'_>) -> SqlResult<usize> {
    // Not `to_regclass`, which may answer from a cache older than the wait for the lock.
    let there = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class \
                 WHERE relname = 'hapax_meta' AND pg_catalog.pg_table_is_visible(oid))";
    if !tx.query_typed_one(there, &[]).await?.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let version = meta(tx, "schema").await?.and_then(|text| text.parse().ok());
    match version {
        Some(version) if version <= SCHEMA_VERSION => Ok(version),
        Some(version) => Err(incompatible(format!(
            "its tables are of version {version}, written by a newer hapax; this one knows \
             {SCHEMA_VERSION}: upgrade this node"
        ))
        .into()),
        None => {
            Err(incompatible("hapax_meta holds no schema version; is it another table?").into())
        }
    }
}

/// Creates as many partitions of the log as `$1` says.
const INSERT_PARTITIONS: &str = "INSERT INTO hapax_partitions (partition, last, floor, epoch, epochs, line) \
     SELECT n, 0, 0, now, now || '@1', hapax_line() FROM generate_series(0, $1 - 1) n, \
     (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) c";

/// Creates the partitions if there are none, and refuses a different number of them.
async fn check_partitions(tx: &Transaction<'_>, partitions: u16) -> SqlResult<()> {
    if meta(tx, "partitions").await?.is_none() {
        tx.query_typed("SELECT pg_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await?;
    }
    let stored = meta(tx, "partitions").await?;
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
            tx.execute_typed(INSERT_PARTITIONS, &[(&i32::from(partitions), Type::INT4)]).await?;
            set_meta(tx, "partitions", partitions.into()).await
        }
    }
}

async fn meta(tx: &Transaction<'_>, name: &str) -> SqlResult<Option<String>> {
    let sql = "SELECT value FROM hapax_meta WHERE name = $1";
    let row = tx.query_typed_opt(sql, &[(&name, Type::TEXT)]).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

async fn set_meta(tx: &Transaction<'_>, name: &str, value: usize) -> SqlResult<()> {
    let sql = "INSERT INTO hapax_meta (name, value) VALUES ($1, $2) \
               ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    tx.execute_typed(sql, &[(&name, Type::TEXT), (&value.to_string(), Type::TEXT)]).await?;
    Ok(())
}
