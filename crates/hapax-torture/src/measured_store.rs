//! A store that is not broken, only measured.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hapax_testkit::{Postgres, Redis};

use crate::installation::StoreKind;

/// A running store of a load or a soak.
pub(crate) enum MeasuredStore {
    Sqlite(PathBuf),
    Redis(Redis),
    Postgres(Postgres),
}

impl MeasuredStore {
    /// Starts it with its data in this folder; PostgreSQL has its own.
    pub(crate) fn start(kind: StoreKind, folder: &Path) -> anyhow::Result<Self> {
        Ok(match kind {
            StoreKind::Sqlite => Self::Sqlite(folder.join("hapax.db")),
            StoreKind::Redis => Self::Redis(Redis::with(&["--dir", &folder.display().to_string()])),
            StoreKind::Postgres => Self::Postgres(Postgres::start()),
            _ => bail!("only sqlite, redis and postgres are measured"),
        })
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Sqlite(file) => format!("sqlite:{}", file.display()),
            Self::Redis(redis) => redis.url(),
            Self::Postgres(postgres) => postgres.url(),
        }
    }

    /// The process of the store's server.
    pub(crate) fn pid(&self) -> Option<i32> {
        match self {
            Self::Sqlite(_) => None,
            Self::Redis(redis) => redis.pid(),
            Self::Postgres(postgres) => postgres.pid(),
        }
    }

    /// How many bytes the data takes: the file and its log, `used_memory`, or `pg_database_size`.
    pub(crate) fn size(&self) -> anyhow::Result<u64> {
        match self {
            Self::Sqlite(file) => {
                let parts =
                    ["", "-wal"].map(|end| PathBuf::from(format!("{}{end}", file.display())));
                Ok(parts.iter().filter_map(|part| Some(part.metadata().ok()?.len())).sum())
            }
            Self::Redis(redis) => {
                let info = redis.cli(&["INFO", "memory"]);
                let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
                Ok(line.context("used_memory")?.trim().parse()?)
            }
            Self::Postgres(postgres) => {
                let size = postgres.psql("SELECT pg_database_size(current_database())");
                Ok(size.trim().parse()?)
            }
        }
    }
}
