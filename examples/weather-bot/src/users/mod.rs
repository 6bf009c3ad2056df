//! The bot's users with their home, office and recent queries, in the bot's own database.

#[cfg(test)]
mod tests;

use std::time::Duration;

use anyhow::{Context, ensure};
use example_common::database::{Database, DatabaseRow, DatabaseTransaction};
use tokio::sync::OnceCell;

use crate::place::{Place, Spot};

/// Number of recent queries kept for each user.
pub(crate) const RECENT: usize = 5;

/// Append only: an existing database gets the migrations that it does not have yet.
const MIGRATIONS: &[&str] = &["
    CREATE TABLE users (
        id text PRIMARY KEY, active boolean NOT NULL, since_ms bigint NOT NULL);
    CREATE TABLE user_places (
        user_id text NOT NULL REFERENCES users (id),
        spot text NOT NULL CHECK (spot IN ('home', 'office')),
        name text NOT NULL, latitude float8 NOT NULL, longitude float8 NOT NULL,
        PRIMARY KEY (user_id, spot));
    CREATE TABLE recent_queries (
        id {id},
        user_id text NOT NULL REFERENCES users (id),
        name text NOT NULL, latitude float8 NOT NULL, longitude float8 NOT NULL,
        nth bigint NOT NULL, UNIQUE (user_id, name));
"];

/// An arbitrary number: serializes the migrations of two bots that start at once.
const MIGRATIONS_LOCK: i64 = 7_245_903_311;

const MARK_SEEN: &str = "
    INSERT INTO users (id, active, since_ms) VALUES (?1, ?2, ?3)
    ON CONFLICT (id) DO UPDATE SET
        active = CASE WHEN excluded.since_ms >= users.since_ms
            THEN excluded.active ELSE users.active END,
        since_ms = CASE WHEN excluded.since_ms >= users.since_ms
            THEN excluded.since_ms ELSE users.since_ms END
    RETURNING active";

const SET_PLACE: &str = "
    INSERT INTO user_places (user_id, spot, name, latitude, longitude) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (user_id, spot) DO UPDATE SET
        name = excluded.name, latitude = excluded.latitude, longitude = excluded.longitude";

const ADD_RECENT: &str = "
    INSERT INTO recent_queries (user_id, name, latitude, longitude, nth)
    VALUES (?1, ?2, ?3, ?4,
        (SELECT 1 + coalesce(max(nth), 0) FROM recent_queries WHERE user_id = ?1))
    ON CONFLICT (user_id, name) DO UPDATE SET
        latitude = excluded.latitude, longitude = excluded.longitude, nth = excluded.nth
    RETURNING id";

const DELETE_OLD: &str = "
    DELETE FROM recent_queries WHERE user_id = ?1 AND id NOT IN (
        SELECT id FROM recent_queries WHERE user_id = ?1 ORDER BY nth DESC LIMIT ?2)";

/// A user at the time of an event. Events may be handled late and out of order; the time tells
/// whether a user who unfollowed has followed again since.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Visitor {
    pub(crate) id: String,
    /// LINE's timestamp of the event, in milliseconds.
    pub(crate) at: i64,
}

/// A previous query of a user.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recent {
    /// Stays the same when the user queries the place again.
    pub(crate) id: i64,
    pub(crate) place: Place,
}

/// A database of users. Every operation is safe to repeat, because an event is handled again after
/// a crash.
pub(crate) struct Users {
    pub(crate) database: Database,
    migrated: OnceCell<()>,
}

impl Users {
    /// Opens `sqlite:FILE` or `postgres://…`, and creates the tables. A server that is not up yet is
    /// no error: the tables are created when it answers. `timeout` bounds every call, because a user
    /// waits for the answer.
    pub(crate) async fn open(url: &str, timeout: Duration) -> anyhow::Result<Self> {
        let database = Database::open(url, timeout)?;
        let users = Self { database, migrated: OnceCell::new() };
        if let Err(error) = users.migrate().await {
            ensure!(!url.starts_with("sqlite:"), error);
            tracing::warn!("starting without the users' database: {error:#}");
        }
        Ok(users)
    }

    async fn migrate(&self) -> anyhow::Result<()> {
        let migrated = self.migrated.get_or_try_init(|| self.database.transaction(migrate));
        migrated.await.copied()
    }

    async fn transaction<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(&mut DatabaseTransaction<'_>) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        self.migrate().await?;
        self.database.transaction(work).await
    }

    /// Records that the user follows the bot.
    pub(crate) async fn follow(&self, who: &Visitor) -> anyhow::Result<()> {
        let who = who.clone();
        self.transaction(async move |tx| mark_seen(tx, &who, true).await.map(drop)).await
    }

    /// Records that the user unfollowed the bot, and deletes everything else about the user, unless
    /// the user has been active since the event.
    pub(crate) async fn unfollow(&self, who: &Visitor) -> anyhow::Result<()> {
        let who = who.clone();
        self.transaction(async move |tx| {
            if !mark_seen(tx, &who, false).await? {
                tx.query("DELETE FROM user_places WHERE user_id = ?1", &[&who.id]).await?;
                tx.query("DELETE FROM recent_queries WHERE user_id = ?1", &[&who.id]).await?;
            }
            Ok(())
        })
        .await
    }

    /// The user's home or office.
    pub(crate) async fn place(&self, id: &str, spot: Spot) -> anyhow::Result<Option<Place>> {
        let sql = "SELECT name, latitude, longitude FROM user_places
            WHERE user_id = ?1 AND spot = ?2";
        let id = id.to_owned();
        self.transaction(async move |tx| {
            let rows = tx.query(sql, &[&id, &spot.as_str()]).await?;
            rows.first().map(read_place).transpose()
        })
        .await
    }

    /// Sets the user's home or office, unless the user has unfollowed since the event.
    pub(crate) async fn set_place(
        &self,
        who: &Visitor,
        spot: Spot,
        place: &Place,
    ) -> anyhow::Result<()> {
        let (who, Place { name, latitude, longitude }) = (who.clone(), place.clone());
        self.transaction(async move |tx| {
            if mark_seen(tx, &who, true).await? {
                let spot = spot.as_str();
                tx.query(SET_PLACE, &[&who.id, &spot, &name, &latitude, &longitude]).await?;
            }
            Ok(())
        })
        .await
    }

    /// The user's last [`RECENT`] queries, newest first, each place once.
    pub(crate) async fn recent(&self, id: &str) -> anyhow::Result<Vec<Recent>> {
        let sql = "SELECT name, latitude, longitude, id FROM recent_queries
            WHERE user_id = ?1 ORDER BY nth DESC";
        let id = id.to_owned();
        self.transaction(async move |tx| {
            let rows = tx.query(sql, &[&id]).await?;
            rows.iter().map(|row| Ok(Recent { id: row.get(3)?, place: read_place(row)? })).collect()
        })
        .await
    }

    /// Records a query and returns its id; `None` if the user has unfollowed since the event.
    pub(crate) async fn add_recent(
        &self,
        who: &Visitor,
        place: &Place,
    ) -> anyhow::Result<Option<i64>> {
        let (who, Place { name, latitude, longitude }) = (who.clone(), place.clone());
        self.transaction(async move |tx| {
            if !mark_seen(tx, &who, true).await? {
                return Ok(None);
            }
            let added = tx.query(ADD_RECENT, &[&who.id, &name, &latitude, &longitude]).await?;
            tx.query(DELETE_OLD, &[&who.id, &i64::try_from(RECENT)?]).await?;
            Ok(Some(added.first().context("no id")?.get(0)?))
        })
        .await
    }
}

/// Records that the user was active, or left, at the time of the event, unless a later event is
/// already recorded; returns whether the user is active. Also locks the user's row, so that two
/// events of one user run one after the other.
async fn mark_seen(
    tx: &DatabaseTransaction<'_>,
    who: &Visitor,
    active: bool,
) -> anyhow::Result<bool> {
    let rows = tx.query(MARK_SEEN, &[&who.id, &active, &who.at]).await?;
    Ok(rows.first().context("no user")?.get(0)?)
}

fn read_place(row: &DatabaseRow) -> anyhow::Result<Place> {
    Ok(Place { name: row.get(0)?, latitude: row.get(1)?, longitude: row.get(2)? })
}

/// Brings the tables up to date: SQLite keeps the number of applied migrations as `user_version`,
/// PostgreSQL as the rows of a table.
async fn migrate(tx: &mut DatabaseTransaction<'_>) -> anyhow::Result<()> {
    tx.lock(MIGRATIONS_LOCK).await?;
    let count = match tx {
        DatabaseTransaction::Sqlite(_) => "PRAGMA user_version",
        DatabaseTransaction::Postgres(_) => {
            tx.batch(
                "CREATE TABLE IF NOT EXISTS weather_bot_migrations (version bigint PRIMARY KEY)",
            )
            .await?;
            "SELECT count(*) FROM weather_bot_migrations"
        }
    };
    let applied: i64 = tx.query(count, &[]).await?.first().context("no version")?.get(0)?;
    let applied = usize::try_from(applied)?;
    ensure!(applied <= MIGRATIONS.len(), "a newer version of the bot has used this database");
    for (number, migration) in MIGRATIONS.iter().enumerate().skip(applied) {
        tx.batch(migration).await?;
        let record = match tx {
            DatabaseTransaction::Sqlite(_) => format!("PRAGMA user_version = {}", number + 1),
            DatabaseTransaction::Postgres(_) => {
                format!("INSERT INTO weather_bot_migrations VALUES ({number})")
            }
        };
        tx.batch(&record).await?;
    }
    Ok(())
}
