//! The time of a store. Leases and retentions are measured by the machine's time since boot, which all
//! its processes share and nobody can set, plus a base that is stored in the file once per boot. The
//! wall clock counts only while the machine is off: from one boot to the next the time of the store
//! goes on by as much as the wall clock did, and never back.

use std::fmt;
use std::sync::{Arc, OnceLock};

use hapax_core::{Clock, SteadyClock, StoreError, StoreResult, SystemClock, Timestamp};
use rusqlite::{Connection, MAIN_DB, TransactionState, params};

use crate::SqliteConfig;
use crate::error::{column_error, store_error};
use crate::session::{SessionClock, execute, to_i64};

/// How often the time is stored with a commit, so that the next boot goes on from there.
const NOTE_INTERVAL: u64 = 1000;

/// The clocks of the machine; tests have others.
pub(crate) trait TimeSource: fmt::Debug + Send + Sync + 'static {
    fn wall(&self) -> Timestamp;

    /// `None` where the time since boot, or the identity of the boot, cannot be had.
    fn since_boot(&self) -> Option<BootTime>;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BootTime {
    /// Differs from boot to boot.
    pub(crate) boot: i64,
    /// Milliseconds since the boot, with the time in which the machine slept.
    pub(crate) elapsed: i64,
}

/// The clock by which a connection measures leases and retentions.
#[derive(Clone, Debug)]
pub(crate) enum StoreClock {
    /// A clock of the user's choice.
    Injected(Arc<dyn Clock>),
    /// Milliseconds since boot plus this base.
    SinceBoot { base: i64, time: Arc<dyn TimeSource> },
    /// The wall clock at the start of this process, and the time since then: the best that there is on
    /// a machine without a boot id. Processes that started before and after a step disagree.
    Steady,
}

impl StoreClock {
    /// The clock of the file, and whether the file knew this boot. A new boot is stored if the
    /// connection holds the write lock.
    pub(crate) fn of_file(
        connection: &Connection,
        time: &Arc<dyn TimeSource>,
    ) -> StoreResult<(Self, bool)> {
        if time.since_boot().is_none() {
            return Ok((Self::Steady, true));
        }
        let (clock, changed) = Self::from_stored(StoredTime::read(connection)?, time);
        let Some(changed) = changed else { return Ok((clock, true)) };
        let state = connection.transaction_state(Some(MAIN_DB)).map_err(store_error)?;
        if state == TransactionState::Write {
            changed.write(connection)?;
        }
        Ok((clock, false))
    }

    /// The clock that follows from the stored time, and the time to store if it differs.
    pub(crate) fn from_stored(
        stored: Option<StoredTime>,
        time: &Arc<dyn TimeSource>,
    ) -> (Self, Option<StoredTime>) {
        let Some(boot) = time.since_boot() else { return (Self::Steady, None) };
        let wall = to_i64(time.wall().0);
        let base = match stored {
            Some(stored) if stored.boot == boot.boot => {
                // After a snapshot of the machine was restored, the time since boot starts again from
                // the snapshot: do not go back before the last known time.
                stored.base.max(stored.last - boot.elapsed)
            }
            Some(stored) => stored.last + (wall - stored.wall).max(0) - boot.elapsed,
            None => wall - boot.elapsed,
        };
        let is_stored =
            stored.is_some_and(|stored| stored.boot == boot.boot && stored.base == base);
        let new = StoredTime { boot: boot.boot, base, last: base + boot.elapsed, wall };
        (Self::SinceBoot { base, time: time.clone() }, (!is_stored).then_some(new))
    }

    /// The clock of a new connection.
    pub(crate) fn open(connection: &Connection, config: &SqliteConfig) -> StoreResult<Self> {
        if let Some(clock) = &config.clock {
            return Ok(Self::Injected(clock.clone()));
        }
        let (clock, is_stored) = Self::of_file(connection, &config.time)?;
        if is_stored {
            return Ok(clock);
        }
        match in_transaction(connection, || Self::of_file(connection, &config.time)) {
            Ok((clock, _)) => Ok(clock),
            // The base follows from the same rows until somebody can write it.
            Err(StoreError::ReadOnly { .. } | StoreError::Full { .. }) => Ok(clock),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Self::Injected(clock) => clock.now(),
            Self::SinceBoot { base, time } => {
                let elapsed = time.since_boot().map_or(0, |boot| boot.elapsed);
                Timestamp(u64::try_from(base + elapsed).unwrap_or(0))
            }
            Self::Steady => {
                static SINCE_START: OnceLock<SteadyClock> = OnceLock::new();
                SINCE_START.get_or_init(SteadyClock::default).now()
            }
        }
    }

    /// The present time, for calls that share a snapshot.
    pub(crate) fn fixed(&self) -> SessionClock<'static> {
        SessionClock::Fixed { now: self.now(), wall: self.wall() }
    }

    /// The wall clock: for times that are shown, and that decide nothing.
    pub(crate) fn wall(&self) -> Timestamp {
        match self {
            Self::Injected(clock) => clock.now(),
            Self::SinceBoot { time, .. } => time.wall(),
            Self::Steady => SystemClock.now(),
        }
    }

    /// Stores the time inside the open write transaction, once a second. `last` is the time that this
    /// connection stored last.
    pub(crate) fn note(&self, connection: &Connection, last: &mut Timestamp) -> StoreResult<()> {
        let now = self.now();
        if !matches!(self, Self::SinceBoot { .. }) || now.0 < last.0.saturating_add(NOTE_INTERVAL) {
            return Ok(());
        }
        let sql = "UPDATE hapax_meta SET value = CASE name WHEN 'clock_last' THEN ?1 ELSE ?2 END \
                   WHERE name IN ('clock_last', 'clock_wall')";
        execute(connection, sql, params![to_i64(now.0), to_i64(self.wall().0)])?;
        *last = now;
        Ok(())
    }
}

/// Runs `work` under the write lock.
fn in_transaction<T>(
    connection: &Connection,
    work: impl FnOnce() -> StoreResult<T>,
) -> StoreResult<T> {
    execute(connection, "BEGIN IMMEDIATE", [])?;
    let done = work().and_then(|done| execute(connection, "COMMIT", []).map(|_| done));
    if done.is_err() && !connection.is_autocommit() {
        let _ = execute(connection, "ROLLBACK", []);
    }
    done
}

pub(crate) const READ_TIME: &str = "SELECT max(CASE name WHEN 'clock_boot' THEN value END), \
            max(CASE name WHEN 'clock_base' THEN value END), \
            max(CASE name WHEN 'clock_last' THEN value END), \
            max(CASE name WHEN 'clock_wall' THEN value END) \
     FROM hapax_meta WHERE name >= 'clock_' AND name < 'clock`'";

pub(crate) const WRITE_TIME: &str = "INSERT INTO hapax_meta (name, value) VALUES ('clock_boot', ?1), ('clock_base', ?2), \
            ('clock_last', ?3), ('clock_wall', ?4) \
     ON CONFLICT DO UPDATE SET value = excluded.value";

/// The `clock_…` rows of `hapax_meta`.
#[derive(Clone, Copy)]
pub(crate) struct StoredTime {
    boot: i64,
    base: i64,
    last: i64,
    wall: i64,
}

impl StoredTime {
    fn read(connection: &Connection) -> StoreResult<Option<Self>> {
        let found = connection.prepare_cached(READ_TIME).and_then(|mut query| {
            query.query_row([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]))
        });
        found.map(Self::from_columns).map_err(column_error)
    }

    /// From the columns of [`READ_TIME`].
    pub(crate) fn from_columns(columns: [Option<i64>; 4]) -> Option<Self> {
        let [boot, base, last, wall] = columns;
        Some(Self { boot: boot?, base: base?, last: last?, wall: wall? })
    }

    /// The parameters of [`WRITE_TIME`].
    pub(crate) fn columns(self) -> [i64; 4] {
        [self.boot, self.base, self.last, self.wall]
    }

    fn write(self, connection: &Connection) -> StoreResult<()> {
        execute(connection, WRITE_TIME, self.columns()).map(drop)
    }
}

/// The clocks of this machine.
pub(crate) fn machine_time() -> &'static Arc<dyn TimeSource> {
    static MACHINE: OnceLock<Arc<dyn TimeSource>> = OnceLock::new();
    MACHINE.get_or_init(|| Arc::new(MachineTime { boot: boot_id(), offset: namespace_offset() }))
}

#[derive(Debug)]
struct MachineTime {
    boot: Option<i64>,
    /// The milliseconds that a container's time namespace adds to the time since boot. Containers of
    /// one machine share its boot id, so they must agree on the time, too.
    offset: i64,
}

impl TimeSource for MachineTime {
    fn wall(&self) -> Timestamp {
        SystemClock.now()
    }

    #[cfg(target_os = "linux")]
    fn since_boot(&self) -> Option<BootTime> {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let elapsed = time.tv_sec * 1000 + time.tv_nsec / 1_000_000 - self.offset;
        Some(BootTime { boot: self.boot?, elapsed })
    }

    #[cfg(not(target_os = "linux"))]
    fn since_boot(&self) -> Option<BootTime> {
        None
    }
}

/// 63 bits of the random UUID that Linux makes at every boot.
fn boot_id() -> Option<i64> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let number = u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()?;
    i64::try_from(number >> 65).ok()
}

fn namespace_offset() -> i64 {
    let text = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("boottime")).unwrap_or_default();
    let mut numbers = line.split_whitespace().map(|number| number.parse().unwrap_or(0));
    numbers.next().unwrap_or(0) * 1000 + numbers.next().unwrap_or(0_i64) / 1_000_000
}

#[cfg(test)]
mod tests;
