//! Checks the server and its settings for anything that would break a promise.

use hapax_core::{Clock, Finding, OpenMode, Promise, SystemClock, Timestamp};

use crate::connect::session::{SqlRow, SqlSession};
use crate::connect::{ConnectionPool, PooledConnection};
use crate::error::SqlResult;
use crate::{SCHEMA_VERSION, row};

const SETTINGS: &str = "SELECT current_setting('server_version') AS version, \
            current_setting('synchronous_commit') AS synchronous_commit, \
            current_setting('fsync')::bool AS fsync, \
            current_setting('full_page_writes')::bool AS full_page_writes, \
            current_setting('max_connections')::int AS max_connections, \
            current_setting('superuser_reserved_connections')::int AS reserved, \
            pg_is_in_recovery() AS standby, \
            floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now";

/// A difference of clocks above which `examine` warns, because it makes logs hard to compare.
const MAX_SKEW_MS: u64 = 1_000;

pub(crate) async fn findings(
    pool: &ConnectionPool,
    max_connections: usize,
) -> SqlResult<Vec<Finding>> {
    // Where connecting makes no tables, their version is a finding.
    let mut connection = match pool.mode {
        OpenMode::Migrate => pool.connection().await?,
        OpenMode::Existing | OpenMode::ReadOnly => pool.checkout().await?,
    };
    let version = connection.schema_version().await?;
    let before = SystemClock.now();
    let rows = connection.rows(SETTINGS, &[]).await?;
    let after = SystemClock.now();
    let Some(settings) = rows.first() else { return Ok(Vec::new()) };
    let mut findings = vec![
        Finding::fine("postgres.version", format!("PostgreSQL {}", text(settings, "version")?)),
        schema(version),
        synchronous_commit(settings)?,
        fsync(settings)?,
        full_page_writes(settings)?,
        standby(settings)?,
        connections(settings, max_connections)?,
        clock(row::timestamp(settings, "now")?, before, after),
    ];
    findings.push(pooler(pool, connection, max_connections).await?);
    Ok(findings)
}

fn schema(version: usize) -> Finding {
    let detail = match version {
        0 => "no tables of hapax where this role looks for them".to_owned(),
        found => format!("tables of version {found}; this hapax uses {SCHEMA_VERSION}"),
    };
    let fix = "hapax migrate --store URL, with a role that may create tables";
    let warning = Finding::warn("postgres.schema", Promise::Remembered, detail, fix);
    // Missing tables break no promise: nothing was promised yet.
    Finding { breaks: None, ..warning }
        .unless(version == SCHEMA_VERSION, format!("tables of version {SCHEMA_VERSION}"))
}

fn synchronous_commit(settings: &SqlRow) -> SqlResult<Finding> {
    let value = text(settings, "synchronous_commit")?;
    let detail = format!("synchronous_commit is {value}");
    let warning = Finding::warn(
        "postgres.synchronous_commit",
        Promise::Durable,
        format!("{detail}: a crash loses what was acknowledged just before, fences included"),
        "ALTER ROLE … SET synchronous_commit = on, for the role that hapax uses",
    );
    Ok(warning.unless(value != "off", detail))
}

fn fsync(settings: &SqlRow) -> SqlResult<Finding> {
    let refusal = Finding::refuse(
        "postgres.fsync",
        Promise::Durable,
        "fsync is off: a power cut may lose or damage everything",
        "set fsync = on in postgresql.conf",
    );
    Ok(refusal.unless(settings.try_get("fsync")?, "fsync is on"))
}

fn full_page_writes(settings: &SqlRow) -> SqlResult<Finding> {
    let warning = Finding::warn(
        "postgres.full_page_writes",
        Promise::Durable,
        "full_page_writes is off: a power cut may damage pages that were just written",
        "set full_page_writes = on, unless the file system never tears a page (ZFS)",
    );
    Ok(warning.unless(settings.try_get("full_page_writes")?, "full_page_writes is on"))
}

fn standby(settings: &SqlRow) -> SqlResult<Finding> {
    let refusal = Finding::refuse(
        "postgres.standby",
        Promise::MutualExclusion,
        "the server is a standby and takes no writes",
        "name the primary, or all hosts with target_session_attrs=read-write",
    );
    Ok(refusal.unless(!settings.try_get("standby")?, "the server is a primary"))
}

/// The pool needs its connections and one more to listen.
fn connections(settings: &SqlRow, max_connections: usize) -> SqlResult<Finding> {
    let all: i32 = settings.try_get("max_connections")?;
    let reserved: i32 = settings.try_get("reserved")?;
    let room = usize::try_from(all - reserved).unwrap_or(0);
    let detail = format!("a pool of {max_connections} and one to listen, of {room} connections");
    let fix = "make the pool smaller, or raise max_connections";
    let warning = Finding::warn("postgres.connections", Promise::BoundedTime, &*detail, fix);
    Ok(warning.unless(max_connections < room, detail))
}

/// Only a warning, because leases are measured by the server's clock alone.
fn clock(server: Timestamp, before: Timestamp, after: Timestamp) -> Finding {
    let skew = before.since(server).max(server.since(after)).as_millis();
    let detail = format!(
        "this machine's clock and the server's differ by {skew} ms; leases and TTLs follow the server's"
    );
    if skew <= u128::from(MAX_SKEW_MS) {
        return Finding::fine("postgres.clock", detail);
    }
    Finding {
        severity: hapax_core::Severity::Warn,
        fix: "run NTP on both, and let it slew: leases end early or late when the server's clock is set".into(),
        ..Finding::fine("postgres.clock", detail)
    }
}

/// Detects a transaction pooler: two sessions share one backend, or one session changes its backend.
async fn pooler(
    pool: &ConnectionPool,
    mut one: PooledConnection,
    max_connections: usize,
) -> SqlResult<Finding> {
    let shared = max_connections > 1 && {
        let first = backend(&mut one).await?;
        let mut other = pool.checkout().await?;
        // Closing the connection ends its transaction.
        other.close_on_drop();
        other.rows("BEGIN", &[]).await?;
        let second = backend(&mut other).await?;
        first == second || first != backend(&mut one).await?
    };
    Ok(match (shared, pool.target.transaction_pooler) {
        (true, false) => Finding::warn(
            "postgres.pooler",
            Promise::BoundedTime,
            "a transaction pooler is between hapax and the server: prepared statements, time \
             limits on the server and wake-ups between nodes do not get through it",
            "connect directly or through a session pool, or add pgbouncer=true to the URL",
        ),
        (_, true) => Finding::warn(
            "postgres.pooler",
            Promise::BoundedTime,
            "set up for a transaction pooler: hints for waiters are read once a second, and a statement is only \
             ended on the server by the role's own statement_timeout",
            "connect directly or through a session pool, or ALTER ROLE … SET statement_timeout",
        ),
        (false, false) => Finding::fine("postgres.pooler", "connected directly"),
    })
}

async fn backend(connection: &mut PooledConnection) -> SqlResult<i32> {
    let rows = connection.rows("SELECT pg_backend_pid() AS pid", &[]).await?;
    Ok(rows.first().map(|row| row.try_get("pid")).transpose()?.unwrap_or_default())
}

fn text(row: &SqlRow, column: &str) -> SqlResult<String> {
    row.try_get(column)
}
