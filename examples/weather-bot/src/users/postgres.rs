use std::future::Future;
use std::time::Duration;

use anyhow::{Context, ensure};
use async_trait::async_trait;
use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime, Transaction,
};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio_postgres::{NoTls, Row};

use super::{RECENT, Recent, Users, Visitor};
use crate::place::{Place, Spot};

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
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        user_id text NOT NULL REFERENCES users (id),
        name text NOT NULL, latitude float8 NOT NULL, longitude float8 NOT NULL,
        nth bigint NOT NULL, UNIQUE (user_id, name));
"];

/// Serializes the migrations of two bots that start at once. The number is arbitrary.
const ONE_AT_A_TIME: &str = "SELECT pg_advisory_xact_lock(7245903311)";

/// Records that the user was active, or left, at the time of the event, unless a later event is
/// already recorded; returns whether the user is active. Also locks the user's row, so that two
/// events of one user run one after the other.
const SEEN: &str = "
    INSERT INTO users (id, active, since_ms) VALUES ($1, $2, $3)
    ON CONFLICT (id) DO UPDATE SET
        active = CASE WHEN excluded.since_ms >= users.since_ms
            THEN excluded.active ELSE users.active END,
        since_ms = greatest(users.since_ms, excluded.since_ms)
    RETURNING active";

const SET_PLACE: &str = "
    INSERT INTO user_places (user_id, spot, name, latitude, longitude) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (user_id, spot) DO UPDATE SET
        name = excluded.name, latitude = excluded.latitude, longitude = excluded.longitude";

const REMEMBER: &str = "
    INSERT INTO recent_queries (user_id, name, latitude, longitude, nth)
    VALUES ($1, $2, $3, $4,
        (SELECT 1 + coalesce(max(nth), 0) FROM recent_queries WHERE user_id = $1))
    ON CONFLICT (user_id, name) DO UPDATE SET
        latitude = excluded.latitude, longitude = excluded.longitude, nth = excluded.nth
    RETURNING id";

const FORGET_OLD: &str = "
    DELETE FROM recent_queries WHERE user_id = $1 AND id NOT IN (
        SELECT id FROM recent_queries WHERE user_id = $1 ORDER BY nth DESC LIMIT $2)";

pub(super) struct PostgresUsers {
    pool: Pool,
    limit: Duration,
    migrated: OnceCell<()>,
}

impl PostgresUsers {
    /// A server that is not up yet is no error: the tables are created when it answers.
    pub(super) async fn open(url: &str, limit: Duration) -> anyhow::Result<Self> {
        // `Verified` checks a connection before it is reused, so that a hanging one is discarded.
        let config = ManagerConfig { recycling_method: RecyclingMethod::Verified };
        // The driver's message would contain the URL, and with it the password.
        let url = url.parse().ok().context("that is no URL of a PostgreSQL database")?;
        let pool = Pool::builder(Manager::from_config(url, NoTls, config))
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(limit))
            .create_timeout(Some(limit))
            .recycle_timeout(Some(limit))
            .build()?;
        let users = Self { pool, limit, migrated: OnceCell::new() };
        if let Err(error) = users.limited(users.connection()).await {
            tracing::warn!("starting without the users' database: {error:#}");
        }
        Ok(users)
    }

    async fn connection(&self) -> anyhow::Result<Object> {
        let mut database = self.pool.get().await?;
        self.migrated.get_or_try_init(|| migrate(&mut database)).await?;
        Ok(database)
    }

    async fn limited<T>(&self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        timeout(self.limit, work).await.context("the database gives no answer in time")?
    }
}

async fn migrate(database: &mut Object) -> anyhow::Result<()> {
    let tx = database.transaction().await?;
    tx.batch_execute(ONE_AT_A_TIME).await?;
    let table = "CREATE TABLE IF NOT EXISTS weather_bot_migrations (version bigint PRIMARY KEY)";
    tx.batch_execute(table).await?;
    let sql = "SELECT count(*) FROM weather_bot_migrations";
    let version: usize = tx.query_one(sql, &[]).await?.try_get::<_, i64>(0)?.try_into()?;
    ensure!(version <= MIGRATIONS.len(), "a newer version of the bot has used this database");
    for (number, migration) in MIGRATIONS.iter().enumerate().skip(version) {
        tx.batch_execute(migration).await?;
        let sql = "INSERT INTO weather_bot_migrations VALUES ($1)";
        tx.execute(sql, &[&i64::try_from(number)?]).await?;
    }
    Ok(tx.commit().await?)
}

async fn seen(tx: &Transaction<'_>, who: &Visitor, active: bool) -> anyhow::Result<bool> {
    Ok(tx.query_one(SEEN, &[&who.id, &active, &who.at]).await?.try_get(0)?)
}

fn place(row: &Row) -> anyhow::Result<Place> {
    let (name, latitude) = (row.try_get("name")?, row.try_get("latitude")?);
    Ok(Place { name, latitude, longitude: row.try_get("longitude")? })
}

#[async_trait]
impl Users for PostgresUsers {
    async fn follow(&self, who: &Visitor) -> anyhow::Result<()> {
        self.limited(async {
            let mut database = self.connection().await?;
            let tx = database.transaction().await?;
            seen(&tx, who, true).await?;
            Ok(tx.commit().await?)
        })
        .await
    }

    async fn unfollow(&self, who: &Visitor) -> anyhow::Result<()> {
        self.limited(async {
            let mut database = self.connection().await?;
            let tx = database.transaction().await?;
            if !seen(&tx, who, false).await? {
                tx.execute("DELETE FROM user_places WHERE user_id = $1", &[&who.id]).await?;
                tx.execute("DELETE FROM recent_queries WHERE user_id = $1", &[&who.id]).await?;
            }
            Ok(tx.commit().await?)
        })
        .await
    }

    async fn place(&self, id: &str, spot: Spot) -> anyhow::Result<Option<Place>> {
        self.limited(async {
            let sql = "SELECT * FROM user_places WHERE user_id = $1 AND spot = $2";
            let row = self.connection().await?.query_opt(sql, &[&id, &spot.as_str()]).await?;
            row.as_ref().map(place).transpose()
        })
        .await
    }

    async fn set_place(&self, who: &Visitor, spot: Spot, place: &Place) -> anyhow::Result<()> {
        self.limited(async {
            let mut database = self.connection().await?;
            let tx = database.transaction().await?;
            if seen(&tx, who, true).await? {
                let Place { name, latitude, longitude } = place;
                tx.execute(SET_PLACE, &[&who.id, &spot.as_str(), name, latitude, longitude])
                    .await?;
            }
            Ok(tx.commit().await?)
        })
        .await
    }

    async fn recent(&self, id: &str) -> anyhow::Result<Vec<Recent>> {
        self.limited(async {
            let sql = "SELECT * FROM recent_queries WHERE user_id = $1 ORDER BY nth DESC";
            let rows = self.connection().await?.query(sql, &[&id]).await?;
            let recent = |row| Ok(Recent { id: Row::try_get(row, "id")?, place: place(row)? });
            rows.iter().map(recent).collect()
        })
        .await
    }

    async fn remember(&self, who: &Visitor, place: &Place) -> anyhow::Result<Option<i64>> {
        self.limited(async {
            let mut database = self.connection().await?;
            let tx = database.transaction().await?;
            let mut id = None;
            if seen(&tx, who, true).await? {
                let Place { name, latitude, longitude } = place;
                let row = tx.query_one(REMEMBER, &[&who.id, name, latitude, longitude]).await?;
                tx.execute(FORGET_OLD, &[&who.id, &i64::try_from(RECENT)?]).await?;
                id = Some(row.try_get(0)?);
            }
            tx.commit().await?;
            Ok(id)
        })
        .await
    }

    async fn ping(&self) -> anyhow::Result<()> {
        self.limited(async { Ok(self.connection().await?.batch_execute("SELECT 1").await?) }).await
    }
}
