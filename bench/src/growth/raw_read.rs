//! The raw engine's read of any key beside as many keys: how much of what a replay loses is the engine's own loss. The
//! table has the columns of hapax's, and its rows have the same sizes and names, but no other index. In memory it is a
//! map from names to values.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use async_trait::async_trait;
use deadpool_postgres::Pool;
use hapax_sqlite::rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use hapax_workload::{BenchError, BenchOperation, BenchPlan, BenchSpan, Measurement, measure};
use redis::aio::MultiplexedConnection;
use tokio::task::block_in_place;

use super::keys::{KeyStage, command_key, scattered};
use super::work::{TASKS, VALUE, WARM_UP};
use crate::progress;
use crate::raw::{engine, postgres, redis::connect};
use crate::store_server::{Engine, StoreServer};

/// The table of the raw engine.
pub(super) const RAW_TABLE: &str = "raw_claims";
/// The threads with which hapax's SQLite store reads, and a task of ours for each.
const SQLITE_READERS: usize = 2;
/// How many reads share a snapshot on SQLite, as they may in hapax's readers.
const SQLITE_READS: usize = 32;
/// The parts of the map in memory, each with a lock: as many as hapax has.
const MEMORY_PARTS: usize = 256;

const SQLITE_SELECT: &str = "SELECT value FROM raw_claims \
     WHERE tenant = ?1 AND kind = 'command' AND scope = ?2 AND name = ?3";
const POSTGRES_SELECT: &str = "SELECT value FROM raw_claims \
     WHERE tenant = $1 AND kind = 'command' AND scope = $2 AND name = $3";

/// A map in parts.
struct RawMap {
    hasher: RandomState,
    parts: Vec<Mutex<HashMap<String, Vec<u8>>>>,
}

impl RawMap {
    fn of(filled: KeyStage) -> Self {
        let map = Self {
            hasher: RandomState::new(),
            parts: std::iter::repeat_with(Mutex::default).take(MEMORY_PARTS).collect(),
        };
        for nth in 0..filled.count {
            let name = filled.name(nth);
            let value = VALUE.as_bytes().to_vec();
            map.part(&name).lock().unwrap_or_else(PoisonError::into_inner).insert(name, value);
        }
        map
    }

    fn part(&self, name: &str) -> &Mutex<HashMap<String, Vec<u8>>> {
        &self.parts[(self.hasher.hash_one(name) >> 56) as usize]
    }

    fn has_value(&self, name: &str) -> bool {
        let part = self.part(name).lock().unwrap_or_else(PoisonError::into_inner);
        // A copy, as hapax hands out one.
        part.get(name).cloned().is_some_and(|value| value == VALUE.as_bytes())
    }
}

/// Connections that read, as many as hapax has.
enum RawConnections {
    Memory(RawMap),
    Sqlite(Vec<Mutex<Connection>>),
    Redis { connection: MultiplexedConnection, before: String, after: String },
    Postgres(Pool),
}

/// Reads of any key that was filled in, without hapax.
pub(super) struct RawReads {
    connections: RawConnections,
    filled: KeyStage,
}

impl RawReads {
    /// Opens the connections. `url` is that of the raw table; on Redis a key is `template` with another name.
    pub(super) async fn open(
        server: &StoreServer,
        url: &str,
        template: Option<(&str, &str)>,
        filled: KeyStage,
    ) -> anyhow::Result<Self> {
        let connections = match server.engine() {
            Engine::Memory => RawConnections::Memory(RawMap::of(filled)),
            Engine::Sqlite => {
                let path = url.strip_prefix("sqlite:").context("no SQLite file")?;
                let open = |_| {
                    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)
                        .map(Mutex::new)
                };
                let readers = (0..SQLITE_READERS).map(open).collect::<Result<_, _>>()?;
                RawConnections::Sqlite(readers)
            }
            Engine::Redis => {
                let (before, after) = template.context("no template")?;
                let connection = connect(url).await?;
                let (before, after) = (before.to_owned(), after.to_owned());
                RawConnections::Redis { connection, before, after }
            }
            Engine::Postgres => RawConnections::Postgres(postgres::open_pool(url, "").await?),
        };
        Ok(Self { connections, filled })
    }

    /// Measures once.
    pub(super) async fn measure_once(
        self: &Arc<Self>,
        server: &StoreServer,
        time: std::time::Duration,
    ) -> Result<Measurement, BenchError> {
        let tasks = match &self.connections {
            RawConnections::Sqlite(readers) => readers.len(),
            _ => TASKS,
        };
        let plan = BenchPlan::new(tasks, BenchSpan::Time(time))
            .warm_up(WARM_UP)
            .servers([server.processes()]);
        let measured = measure(self.clone(), &plan).await;
        progress();
        measured
    }

    /// Any filled name.
    fn name(&self, task: usize, turn: u64) -> String {
        self.filled.name(scattered(task, turn) % self.filled.count)
    }
}

#[async_trait]
impl BenchOperation for RawReads {
    async fn run(&self, task: usize, turn: u64) -> Result<(), BenchError> {
        match &self.connections {
            RawConnections::Memory(map) => expect_value(map.has_value(&self.name(task, turn))),
            RawConnections::Sqlite(readers) => {
                let first = turn * SQLITE_READS as u64;
                let names = (first..first + SQLITE_READS as u64).map(|turn| self.name(task, turn));
                let reader = readers[task].lock().unwrap_or_else(PoisonError::into_inner);
                block_in_place(|| read_sqlite(&reader, names))
            }
            RawConnections::Redis { connection, before, after } => {
                let name = self.name(task, turn);
                let mut get = redis::cmd("GET");
                get.arg(format!("{before}{name}{after}"));
                let value: Option<Vec<u8>> =
                    get.query_async(&mut connection.clone()).await.map_err(engine)?;
                // hapax's value has its header before the response.
                expect_value(value.is_some_and(|value| value.ends_with(VALUE.as_bytes())))
            }
            RawConnections::Postgres(pool) => {
                let key = command_key(&self.name(task, turn))?;
                let client = pool.get().await.map_err(engine)?;
                let statement = client.prepare_cached(POSTGRES_SELECT).await.map_err(engine)?;
                let (tenant, scope) = (key.tenant().as_str(), key.scope());
                let row = client.query_one(&statement, &[&tenant, &scope, &key.name()]).await;
                let row = row.map_err(engine)?;
                expect_value(row.try_get::<_, &[u8]>(0).map_err(engine)? == VALUE.as_bytes())
            }
        }
    }

    fn batch(&self) -> u32 {
        match self.connections {
            RawConnections::Sqlite(_) => SQLITE_READS as u32,
            _ => 1,
        }
    }
}

/// Reads some keys in one transaction.
fn read_sqlite(
    connection: &Connection,
    names: impl Iterator<Item = String>,
) -> Result<(), BenchError> {
    let tx = connection.unchecked_transaction().map_err(engine)?;
    let mut select = tx.prepare_cached(SQLITE_SELECT).map_err(engine)?;
    for name in names {
        let key = command_key(&name)?;
        let values = params![key.tenant().as_str(), key.scope(), key.name()];
        let is_there = select
            .query_row(values, |row| Ok(row.get_ref(0)?.as_blob()? == VALUE.as_bytes()))
            .optional()
            .map_err(engine)?;
        expect_value(is_there == Some(true))?;
    }
    drop(select);
    tx.commit().map_err(engine)
}

fn expect_value(is_there: bool) -> Result<(), BenchError> {
    match is_there {
        true => Ok(()),
        false => Err(BenchError::Unexpected("a raw key has not the value that was filled in")),
    }
}
