//! Who uses the bot: home, office and the last queries, in the bot's own database.

mod postgres;
mod sqlite;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::place::{Place, Spot};

/// So many queries are remembered.
pub(crate) const RECENT: usize = 5;

/// Somebody, at the time of an event. Events may be handled late and out of order: the time tells
/// whether somebody who left has come back since, or has only not left yet.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Visitor {
    pub(crate) id: String,
    /// In milliseconds, by LINE's clock.
    pub(crate) at: i64,
}

/// A query that was made before.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recent {
    /// Stays the same when the place is asked for again.
    pub(crate) id: i64,
    pub(crate) place: Place,
}

/// A database of users. Everything may be repeated: an event is handled again where a process died.
#[async_trait]
pub(crate) trait Users: Send + Sync {
    /// Somebody is there.
    async fn follow(&self, who: &Visitor) -> anyhow::Result<()>;

    /// Somebody left: nothing but that is kept of them.
    async fn unfollow(&self, who: &Visitor) -> anyhow::Result<()>;

    /// The place behind one of their two buttons.
    async fn place(&self, id: &str, spot: Spot) -> anyhow::Result<Option<Place>>;

    /// Puts a place behind a button; not for somebody who left since.
    async fn set_place(&self, who: &Visitor, spot: Spot, place: &Place) -> anyhow::Result<()>;

    /// Their last [`RECENT`] queries, the newest first, each place once.
    async fn recent(&self, id: &str) -> anyhow::Result<Vec<Recent>>;

    /// Remembers a query; not for somebody who left since, who gets `None`.
    async fn remember(&self, who: &Visitor, place: &Place) -> anyhow::Result<Option<i64>>;

    /// Whether the database answers.
    async fn ping(&self) -> anyhow::Result<()>;
}

/// Opens `sqlite:FILE` or `postgres://…`, and makes the tables there. No call takes longer than
/// `limit`: somebody waits for the answer.
pub(crate) async fn open(url: &str, limit: Duration) -> anyhow::Result<Arc<dyn Users>> {
    match url.split_once(':') {
        Some(("sqlite", file)) => Ok(Arc::new(sqlite::SqliteUsers::open(file, limit)?)),
        Some(("postgres" | "postgresql", _)) => {
            Ok(Arc::new(postgres::PostgresUsers::open(url, limit).await?))
        }
        _ => anyhow::bail!("sqlite:FILE or postgres://… is expected"),
    }
}
