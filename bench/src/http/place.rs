//! Where a store keeps its data: one server for each kind, with room for several subjects.

use hapax_bench::Processes;
use hapax_testkit::{Postgres, Redis};
use tempfile::TempDir;

use crate::arena::{Engine, redis_version};

pub(super) enum Place {
    Memory,
    Sqlite(TempDir),
    Redis(Redis),
    Postgres(Postgres),
}

impl Place {
    pub(super) fn start(engine: Engine) -> anyhow::Result<Self> {
        Ok(match engine {
            Engine::Memory => Self::Memory,
            Engine::Sqlite => Self::Sqlite(tempfile::tempdir()?),
            Engine::Redis => Self::Redis(Redis::with(&["--appendonly", "no"])),
            Engine::Postgres => Self::Postgres(Postgres::start()),
        })
    }

    /// A store of this name alone, save on Redis, where no two runs have a key in common.
    pub(super) fn url(&self, name: &str) -> String {
        match self {
            Self::Memory => "memory:".into(),
            Self::Sqlite(folder) => {
                format!("sqlite:{}", folder.path().join(format!("{name}.db")).display())
            }
            Self::Redis(server) => server.url(),
            Self::Postgres(server) => server.database(name),
        }
    }

    pub(super) fn processes(&self) -> Processes {
        let pid = match self {
            Self::Memory | Self::Sqlite(_) => None,
            Self::Redis(server) => server.pid(),
            Self::Postgres(server) => server.pid(),
        };
        Processes::new(pid.map(i32::cast_unsigned))
    }

    pub(super) fn description(&self) -> String {
        match self {
            Self::Memory => "memory of the server's own process".into(),
            Self::Sqlite(_) => format!(
                "SQLite {} (in the server's process; WAL, synchronous=FULL)",
                hapax_sqlite::rusqlite::version()
            ),
            Self::Redis(_) => format!("Redis {} (appendonly no: not durable)", redis_version()),
            Self::Postgres(server) => format!(
                "PostgreSQL {} (fsync and synchronous_commit on)",
                // Debian adds its own version in brackets.
                server.psql("SHOW server_version").split(' ').next().unwrap_or_default()
            ),
        }
    }
}
