//! Checks the file and its settings for anything that would break a promise.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use hapax_core::{Finding, OpenMode, Promise, StoreResult};
use rusqlite::Connection;

use crate::error::store_error;
use crate::files::beside;
use crate::writer::WriterStats;
use crate::{SCHEMA_VERSION, SqliteConfig, migrate};

/// Free disk space below which `examine` warns.
const MIN_FREE_BYTES: u64 = 100 << 20;
/// WAL size from which `examine` warns: a very long read keeps it from being copied.
const MAX_WAL_BYTES: u64 = 256 << 20;

pub(crate) fn examine(
    connection: &Connection,
    config: &SqliteConfig,
    stats: &WriterStats,
) -> StoreResult<Vec<Finding>> {
    let version = migrate::stored_version(connection)?;
    let mut findings =
        vec![journal(connection, config.mode, version)?, synchronous(connection)?, schema(version)];
    findings.extend(file_mode(&config.path));
    findings.extend(free_space(config));
    findings.extend(network_file_system(config.folder()));
    findings.push(wal_size(&config.path));
    findings.push(writers(stats));
    findings.push(clock(config));
    findings.push(engine_version(rusqlite::version_number()));
    Ok(findings)
}

fn journal(connection: &Connection, open: OpenMode, version: i64) -> StoreResult<Finding> {
    let mode: String = pragma(connection, "journal_mode")?;
    // A file that nobody has open is read as immutable, and its mode cannot be told then.
    if open == OpenMode::ReadOnly && mode != "wal" {
        let detail = "journal mode WAL, as soon as hapax opens the file";
        let warning = Finding::warn(
            "sqlite.journal",
            Promise::BoundedTime,
            format!("{detail}: other programs that use the file have to cope with that"),
            "give hapax a file of its own",
        );
        return Ok(warning.unless(version > 0, detail));
    }
    let refusal = Finding::refuse(
        "sqlite.journal",
        Promise::BoundedTime,
        format!("journal mode {mode}: readers and the writer block each other"),
        "PRAGMA journal_mode = WAL, on a local file system",
    );
    Ok(refusal.unless(mode == "wal", "journal mode WAL"))
}

fn synchronous(connection: &Connection) -> StoreResult<Finding> {
    let level: i64 = pragma(connection, "synchronous")?;
    let refusal = Finding::refuse(
        "sqlite.synchronous",
        Promise::Durable,
        format!("synchronous level {level}: a power cut loses acknowledged commits"),
        "PRAGMA synchronous = FULL",
    );
    Ok(refusal.unless(level >= 2, "every commit is on the disk before it is answered"))
}

fn schema(version: i64) -> Finding {
    let current = SCHEMA_VERSION;
    let (detail, fix) = match version {
        0 => ("no tables of hapax yet".to_owned(), "hapax migrate --store URL creates them"),
        found if found > current => {
            let detail =
                format!("schema version {found}; this hapax knows versions up to {current}");
            let fix = "use the newer hapax that wrote it, or a copy from before the upgrade";
            return Finding::refuse("sqlite.schema", Promise::Remembered, detail, fix);
        }
        found => (
            format!("schema version {found}; this hapax uses {current}"),
            "hapax migrate --store URL brings it up to date, and so does the next start",
        ),
    };
    let warning = Finding::warn("sqlite.schema", Promise::Remembered, detail, fix);
    // Missing tables break no promise: nothing was promised yet.
    Finding { breaks: None, ..warning }
        .unless(version == current, format!("schema version {current}"))
}

fn file_mode(path: &Path) -> Option<Finding> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
    let warning = Finding::warn(
        "sqlite.mode",
        Promise::MutualExclusion,
        format!("file mode {mode:04o}: other users can reach the tickets' secrets"),
        "chmod 600 on the file and on its -wal and -shm",
    );
    Some(warning.unless(mode & 0o077 == 0, format!("file mode {mode:04o}")))
}

fn free_space(config: &SqliteConfig) -> Option<Finding> {
    let disk = rustix::fs::statvfs(config.folder()).ok()?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let reserve = std::fs::metadata(beside(&config.path, "-reserve")).map_or(0, |file| file.len());
    let (free_mib, reserve_mib) = (free >> 20, reserve >> 20);
    let detail = format!("{free_mib} MiB free on the disk, {reserve_mib} MiB reserved for deletes");
    let fix = "make room: on a full disk only deletes are served, from the reserve";
    let warning = Finding::warn("sqlite.room", Promise::Remembered, &*detail, fix);
    Some(warning.unless(free >= MIN_FREE_BYTES, detail))
}

/// SQLite relies on file locks and shared memory, which do not work between machines.
#[cfg(target_os = "linux")]
fn network_file_system(folder: &Path) -> Option<Finding> {
    // Magic numbers of statfs(2): NFS, CIFS, SMB 2, Ceph, AFS.
    const NETWORK: [u64; 5] = [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x00c3_6400, 0x5346_414f];
    let kind = rustix::fs::statfs(folder).ok()?.f_type as u64;
    let refusal = Finding::refuse(
        "sqlite.network",
        Promise::MutualExclusion,
        format!("the file is on a network file system ({kind:#x})"),
        "use a local disk, or redis:// or postgres:// for several machines",
    );
    let is_local = !NETWORK.contains(&(kind & 0xffff_ffff));
    Some(refusal.unless(is_local, "the file is on a local file system"))
}

#[cfg(not(target_os = "linux"))]
fn network_file_system(_: &Path) -> Option<Finding> {
    None
}

fn wal_size(path: &Path) -> Finding {
    let size = std::fs::metadata(beside(path, "-wal")).map_or(0, |file| file.len());
    let detail = format!("write-ahead log of {} MiB", size >> 20);
    let fix = "end the process that keeps a read transaction open on the file";
    let warning = Finding::warn("sqlite.log", Promise::BoundedTime, &*detail, fix);
    warning.unless(size < MAX_WAL_BYTES, detail)
}

fn writers(stats: &WriterStats) -> Finding {
    let commits = stats.commits.load(Ordering::Relaxed);
    let foreign = stats.foreign_commits.load(Ordering::Relaxed);
    Finding::fine(
        "sqlite.writers",
        format!("{commits} commits by this process; others' commits were noticed {foreign} times"),
    )
}

/// Without the time since boot several processes go by the wall clock of their own start.
fn clock(config: &SqliteConfig) -> Finding {
    let warning = Finding::warn(
        "sqlite.clock",
        Promise::MutualExclusion,
        "this machine tells no boot id: leases follow the wall clock at the start of each process",
        "open the file from one process alone, or never set the clock while it is open",
    );
    let is_fine = config.clock.is_some() || config.time.since_boot().is_some();
    warning.unless(is_fine, "leases follow the machine's time since boot, which nobody can set")
}

/// Whether this SQLite can lose a commit that restarts the WAL during a checkpoint of another connection
/// (<https://sqlite.org/wal.html#walresetbug>): versions before 3.51.3, except the fixed 3.44.6 and 3.50.7.
pub(crate) fn has_wal_reset_bug(version: i32) -> bool {
    let is_fixed = version >= 3_051_003
        || (3_050_007..3_051_000).contains(&version)
        || (3_044_006..3_045_000).contains(&version);
    !is_fixed
}

/// The crate links whatever SQLite the other crates of the program need, which may be an old one.
fn engine_version(version: i32) -> Finding {
    let name = format!("{}.{}.{}", version / 1_000_000, version / 1000 % 1000, version % 1000);
    let warning = Finding::warn(
        "sqlite.version",
        Promise::Durable,
        format!(
            "SQLite {name} can lose a commit, or damage the file, when two connections write and \
             checkpoint in the same instant (its WAL-reset bug); this store itself does not do so"
        ),
        "build with rusqlite 0.39 or later (SQLite 3.51.3), or let one process alone have the file open, \
         and through hapax alone",
    );
    warning.unless(!has_wal_reset_bug(version), format!("SQLite {name}"))
}

fn pragma<T: rusqlite::types::FromSql>(connection: &Connection, name: &str) -> StoreResult<T> {
    connection.pragma_query_value(None, name, |row| row.get(0)).map_err(store_error)
}

#[cfg(test)]
mod tests {
    use hapax_core::Severity;

    use super::*;

    #[test]
    fn fault_39_versions_with_the_wal_reset_bug_are_warned_of() {
        for (version, name, warned) in [
            (3_046_000, "3.46.0", true),
            (3_051_002, "3.51.2", true),
            (3_051_003, "3.51.3", false),
            (3_050_006, "3.50.6", true),
            (3_050_007, "3.50.7", false),
            (3_044_006, "3.44.6", false),
            (3_045_000, "3.45.0", true),
            (3_053_002, "3.53.2", false),
        ] {
            let finding = engine_version(version);
            assert!(finding.detail.contains(&format!("SQLite {name}")), "{finding:?}");
            assert_eq!(finding.severity == Severity::Warn, warned, "{finding:?}");
        }
    }
}
