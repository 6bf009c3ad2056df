//! The bot's users with their home, office and recent queries, in the bot's own database.

mod postgres;
mod sqlite;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::place::{Place, Spot};

/// Number of recent queries kept for each user.
pub(crate) const RECENT: usize = 5;

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
#[async_trait]
pub(crate) trait Users: Send + Sync {
    /// Records that the user follows the bot.
    async fn follow(&self, who: &Visitor) -> anyhow::Result<()>;

    /// Records that the user unfollowed the bot, and deletes everything else about the user, unless
    /// the user has been active since the event.
    async fn unfollow(&self, who: &Visitor) -> anyhow::Result<()>;

    /// The user's home or office.
    async fn place(&self, id: &str, spot: Spot) -> anyhow::Result<Option<Place>>;

    /// Sets the user's home or office, unless the user has unfollowed since the event.
    async fn set_place(&self, who: &Visitor, spot: Spot, place: &Place) -> anyhow::Result<()>;

    /// The user's last [`RECENT`] queries, newest first, each place once.
    async fn recent(&self, id: &str) -> anyhow::Result<Vec<Recent>>;

    /// Records a query and returns its id; `None` if the user has unfollowed since the event.
    async fn remember(&self, who: &Visitor, place: &Place) -> anyhow::Result<Option<i64>>;

    /// Checks that the database answers.
    async fn ping(&self) -> anyhow::Result<()>;
}

/// Opens `sqlite:FILE` or `postgres://…`, and creates the tables. `limit` bounds every call,
/// because a user waits for the answer.
pub(crate) async fn open(url: &str, limit: Duration) -> anyhow::Result<Arc<dyn Users>> {
    match url.split_once(':') {
        Some(("sqlite", file)) => Ok(Arc::new(sqlite::SqliteUsers::open(file, limit)?)),
        Some(("postgres" | "postgresql", _)) => {
            Ok(Arc::new(postgres::PostgresUsers::open(url, limit).await?))
        }
        _ => anyhow::bail!("sqlite:FILE or postgres://… is expected"),
    }
}
