use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use async_trait::async_trait;
use hapax::sqlite::rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use hapax::sqlite::rusqlite::{Result as SqlResult, TransactionBehavior};
use tokio::task::spawn_blocking;

use super::{RECENT, Recent, Users, Visitor};
use crate::place::{Place, Spot};

/// Append only: an existing file gets the migrations after its `user_version`.
const MIGRATIONS: &[&str] = &["
    CREATE TABLE users (
        id TEXT PRIMARY KEY, active INTEGER NOT NULL, since_ms INTEGER NOT NULL);
    CREATE TABLE user_places (
        user_id TEXT NOT NULL REFERENCES users (id),
        spot TEXT NOT NULL CHECK (spot IN ('home', 'office')),
        name TEXT NOT NULL, latitude REAL NOT NULL, longitude REAL NOT NULL,
        PRIMARY KEY (user_id, spot));
    CREATE TABLE recent_queries (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        user_id TEXT NOT NULL REFERENCES users (id),
        name TEXT NOT NULL, latitude REAL NOT NULL, longitude REAL NOT NULL,
        nth INTEGER NOT NULL, UNIQUE (user_id, name));
"];

const SEEN: &str = "
    INSERT INTO users (id, active, since_ms) VALUES (?1, ?2, ?3)
    ON CONFLICT (id) DO UPDATE SET
        active = CASE WHEN excluded.since_ms >= since_ms THEN excluded.active ELSE active END,
        since_ms = max(since_ms, excluded.since_ms)
    RETURNING active";

const SET_PLACE: &str = "
    INSERT INTO user_places (user_id, spot, name, latitude, longitude) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (user_id, spot) DO UPDATE SET
        name = excluded.name, latitude = excluded.latitude, longitude = excluded.longitude";

const REMEMBER: &str = "
    INSERT INTO recent_queries (user_id, name, latitude, longitude, nth)
    VALUES (?1, ?2, ?3, ?4,
        (SELECT 1 + coalesce(max(nth), 0) FROM recent_queries WHERE user_id = ?1))
    ON CONFLICT (user_id, name) DO UPDATE SET
        latitude = excluded.latitude, longitude = excluded.longitude, nth = excluded.nth
    RETURNING id";

const FORGET_OLD: &str = "
    DELETE FROM recent_queries WHERE user_id = ?1 AND id NOT IN (
        SELECT id FROM recent_queries WHERE user_id = ?1 ORDER BY nth DESC LIMIT ?2)";

pub(super) struct SqliteUsers(Arc<Mutex<Connection>>);

impl SqliteUsers {
    pub(super) fn open(file: &str, limit: Duration) -> anyhow::Result<Self> {
        let mut database = Connection::open(file)?;
        // Other connections write to the same file: a backup, a second bot.
        database.busy_timeout(limit)?;
        database.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        migrate(&mut database)?;
        Ok(Self(Arc::new(Mutex::new(database))))
    }

    /// Runs `work` in a transaction on a blocking thread, so that async threads are never blocked.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> SqlResult<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let database = self.0.clone();
        let work = move || {
            // A panic rolls back its transaction, so the connection of a poisoned mutex is still
            // usable.
            let mut database = database.lock().unwrap_or_else(PoisonError::into_inner);
            let tx = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&tx)?;
            tx.commit()?;
            Ok(done)
        };
        spawn_blocking(work).await?
    }
}

fn migrate(database: &mut Connection) -> anyhow::Result<()> {
    let tx = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version: usize = tx.pragma_query_value(None, "user_version", |row| row.get(0))?;
    ensure!(version <= MIGRATIONS.len(), "a newer version of the bot has used this file");
    for migration in &MIGRATIONS[version..] {
        tx.execute_batch(migration)?;
    }
    tx.pragma_update(None, "user_version", MIGRATIONS.len())?;
    Ok(tx.commit()?)
}

/// Records that the user was active, or left, at the time of the event, unless a later event is
/// already recorded; returns whether the user is active.
fn seen(tx: &Transaction<'_>, who: &Visitor, active: bool) -> SqlResult<bool> {
    tx.query_row(SEEN, params![who.id, active, who.at], |row| row.get(0))
}

fn place(row: &Row<'_>) -> SqlResult<Place> {
    let (name, latitude) = (row.get("name")?, row.get("latitude")?);
    Ok(Place { name, latitude, longitude: row.get("longitude")? })
}

#[async_trait]
impl Users for SqliteUsers {
    async fn follow(&self, who: &Visitor) -> anyhow::Result<()> {
        let who = who.clone();
        self.with(move |tx| seen(tx, &who, true)).await?;
        Ok(())
    }

    async fn unfollow(&self, who: &Visitor) -> anyhow::Result<()> {
        let who = who.clone();
        self.with(move |tx| {
            if !seen(tx, &who, false)? {
                tx.execute("DELETE FROM user_places WHERE user_id = ?1", [&who.id])?;
                tx.execute("DELETE FROM recent_queries WHERE user_id = ?1", [&who.id])?;
            }
            Ok(())
        })
        .await
    }

    async fn place(&self, id: &str, spot: Spot) -> anyhow::Result<Option<Place>> {
        let id = id.to_owned();
        let sql = "SELECT * FROM user_places WHERE user_id = ?1 AND spot = ?2";
        self.with(move |tx| tx.query_row(sql, [&id, spot.as_str()], place).optional()).await
    }

    async fn set_place(&self, who: &Visitor, spot: Spot, place: &Place) -> anyhow::Result<()> {
        let (who, Place { name, latitude, longitude }) = (who.clone(), place.clone());
        self.with(move |tx| {
            if seen(tx, &who, true)? {
                tx.execute(SET_PLACE, params![who.id, spot.as_str(), name, latitude, longitude])?;
            }
            Ok(())
        })
        .await
    }

    async fn recent(&self, id: &str) -> anyhow::Result<Vec<Recent>> {
        let id = id.to_owned();
        self.with(move |tx| {
            let sql = "SELECT * FROM recent_queries WHERE user_id = ?1 ORDER BY nth DESC";
            let mut all = tx.prepare(sql)?;
            let all =
                all.query_map([id], |row| Ok(Recent { id: row.get("id")?, place: place(row)? }))?;
            all.collect()
        })
        .await
    }

    async fn remember(&self, who: &Visitor, place: &Place) -> anyhow::Result<Option<i64>> {
        let (who, Place { name, latitude, longitude }) = (who.clone(), place.clone());
        self.with(move |tx| {
            if !seen(tx, &who, true)? {
                return Ok(None);
            }
            let values = params![who.id, name, latitude, longitude];
            let id = tx.query_row(REMEMBER, values, |row| row.get(0))?;
            tx.execute(FORGET_OLD, params![who.id, RECENT])?;
            Ok(Some(id))
        })
        .await
    }

    async fn ping(&self) -> anyhow::Result<()> {
        self.with(|tx| tx.query_row("SELECT 1", [], |_| Ok(()))).await
    }
}
