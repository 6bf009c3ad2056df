//! Fences and versions that grow across failovers.
//!
//! They come from a sequence, which a failover to an asynchronous standby, or a restore, sets back together with the rows.
//! Another line of history (see `hapax_line`) is therefore noticed by the first connection to the new server, before
//! anything is done over it, and the sequence goes on at the server's clock in microseconds: beyond whatever was lost,
//! unless more than a million fences were drawn in a second. Where that clock is behind the sequence, because an earlier
//! failover had moved it by another server's clock, it goes on a million further.

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, IsolationLevel};

/// `hapline` as a number: the advisory lock of whoever moves the sequence.
const LOCK: i64 = 0x68_61_70_6c_69_6e_65;

const LINES: &str =
    "SELECT hapax_line() AS line, (SELECT value FROM hapax_meta WHERE name = 'line') AS known";

/// A role that may only draw fences draws many.
const MOVE: &str = "SELECT CASE WHEN has_sequence_privilege('hapax_fence', 'UPDATE') \
    THEN setval('hapax_fence', greatest(nextval('hapax_fence') + 1000000, \
         floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint)) \
    ELSE (SELECT max(n) FROM (SELECT nextval('hapax_fence') AS n FROM generate_series(1, 100000)) drawn) END";

/// A standby that is missing after the failover does not hold this up: it would have the same line. Another process that
/// stands still while it moves the sequence holds it up for a while: sessions behind PgBouncer have no timeouts of their own.
const SETTINGS: &str = "SET LOCAL synchronous_commit = local; SET LOCAL lock_timeout = '2s'; \
    SET LOCAL idle_in_transaction_session_timeout = '5s'";

const REMEMBER: &str = "INSERT INTO hapax_meta (name, value) VALUES ('line', $1) \
    ON CONFLICT (name) DO UPDATE SET value = excluded.value";

/// What the server was when its line was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerRole {
    Primary,
    /// A standby may be promoted while connections to it stay open.
    Standby,
}

/// Moves the sequence of fences if the server has another line of history than the one that last drew fences.
pub(super) async fn follow_line(client: &mut Client) -> Result<ServerRole, Error> {
    match move_sequence(client).await {
        Ok(()) => Ok(ServerRole::Primary),
        Err(error) => match error.code() {
            // A standby does not tell the place of its log's end.
            Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) => Ok(ServerRole::Standby),
            // Without tables or rights nothing will be drawn, or a later statement says what is wrong.
            Some(code) if draws_nothing(code) => Ok(ServerRole::Primary),
            _ => Err(error),
        },
    }
}

async fn move_sequence(client: &mut Client) -> Result<(), Error> {
    let row = client.query_typed_one(LINES, &[]).await?;
    if row.try_get::<_, Option<&str>>("known")? == Some(row.try_get("line")?) {
        return Ok(());
    }
    let tx =
        client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?;
    tx.batch_execute(SETTINGS).await?;
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
        // Servers that only speak PostgreSQL's protocol may have no log to tell the place of.
        SqlState::FEATURE_NOT_SUPPORTED,
    ]
    .contains(code)
}
