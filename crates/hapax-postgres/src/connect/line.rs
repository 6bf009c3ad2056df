//! Fences and versions that grow across failovers.
//!
//! They come from a sequence, which a failover to an asynchronous standby, or a restore, sets back together with the rows.
//! Another line of history (see `hapax_line`) is therefore noticed by the first connection to the new server, before
//! anything is done over it, and the sequence goes on at the server's clock in microseconds: beyond whatever was lost,
//! unless more than a million fences were drawn in a second.

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, IsolationLevel};

/// `hapline` as a number: the advisory lock of whoever moves the sequence.
const LOCK: i64 = 0x68_61_70_6c_69_6e_65;

const LINES: &str =
    "SELECT hapax_line() AS line, (SELECT value FROM hapax_meta WHERE name = 'line') AS known";

/// A role that may only draw fences draws many.
const MOVE: &str = "SELECT CASE WHEN has_sequence_privilege('hapax_fence', 'UPDATE') \
    THEN setval('hapax_fence', greatest(nextval('hapax_fence'), \
         floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint)) \
    ELSE (SELECT max(n) FROM (SELECT nextval('hapax_fence') AS n FROM generate_series(1, 100000)) drawn) END";

const REMEMBER: &str = "INSERT INTO hapax_meta (name, value) VALUES ('line', $1) \
    ON CONFLICT (name) DO UPDATE SET value = excluded.value";

/// Moves the sequence of fences if the server has another line of history than the one that last drew fences.
pub(super) async fn follow_line(client: &mut Client) -> Result<(), Error> {
    match move_sequence(client).await {
        // Without tables, rights or the role of a primary nothing will be drawn, or a later statement says what is wrong.
        Err(error) if error.code().is_some_and(draws_nothing) => Ok(()),
        outcome => outcome,
    }
}

async fn move_sequence(client: &mut Client) -> Result<(), Error> {
    let row = client.query_typed_one(LINES, &[]).await?;
    if row.try_get::<_, Option<&str>>("known")? == Some(row.try_get("line")?) {
        return Ok(());
    }
    let tx =
        client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?;
    // Not held up by a standby that is missing after the failover: it would have the same line.
    tx.batch_execute("SET LOCAL synchronous_commit = local").await?;
    tx.query_typed("SELECT pg_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await?;
    let row = tx.query_typed_one(LINES, &[]).await?;
    let (line, known): (&str, Option<&str>) = (row.try_get("line")?, row.try_get("known")?);
    if known != Some(line) {
        if known.is_some() {
            tx.query_typed(MOVE, &[]).await?;
        }
        tx.execute_typed(REMEMBER, &[(&line, Type::TEXT)]).await?;
    }
    tx.commit().await
}

fn draws_nothing(code: &SqlState) -> bool {
    [
        SqlState::UNDEFINED_FUNCTION,
        SqlState::UNDEFINED_TABLE,
        SqlState::INVALID_SCHEMA_NAME,
        SqlState::INSUFFICIENT_PRIVILEGE,
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
    ]
    .contains(code)
}
