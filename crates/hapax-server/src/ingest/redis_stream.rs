//! One stream on Redis, as the router's group sees it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hapax::StoreError;
use hapax::redis::{RawRedis, Reply};

use super::entry::Entries;
use super::settings::Plan;

/// How many entries are read at once.
const PAGE: &str = "200";

/// Commands about one stream.
pub(super) struct Stream {
    pub(super) name: String,
    plan: Arc<Plan>,
    redis: Arc<RawRedis>,
    /// For reading what is new, which blocks its connection.
    reader: RawRedis,
}

/// How far the group is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// How many entries the group has not seen, as the server reckons: those that were trimmed unseen
    /// count, and for ever.
    lag: Option<u64>,
    /// How many were delivered and not acknowledged.
    pub(super) pending: u64,
    /// How many were delivered in all, and how many were ever added (Redis 7).
    read: Option<u64>,
    added: Option<u64>,
    length: u64,
    delivered: Id,
    first: Id,
    last: Id,
}

/// An entry's id, in the order of ids.
pub(super) type Id = (u64, u64);

impl Stream {
    pub(super) fn new(
        name: String,
        plan: Arc<Plan>,
        redis: Arc<RawRedis>,
        reader: RawRedis,
    ) -> Self {
        Self { name, plan, redis, reader }
    }

    /// Makes the group, from the first entry on; one that is there stays as it is.
    pub(super) async fn ensure_group(&self) -> Result<(), StoreError> {
        let parts = ["XGROUP", "CREATE", &self.name, &self.plan.group, "0", "MKSTREAM"];
        match self.redis.command(&parts).await {
            Err(StoreError::Internal { reason, .. }) if reason.contains("BUSYGROUP") => Ok(()),
            made => made.map(drop),
        }
    }

    /// Entries that were delivered to us after `after` and not acknowledged: those of a process that
    /// died in our place.
    pub(super) async fn own(&self, after: &str) -> Result<Entries, StoreError> {
        self.read(&self.redis, &[], after).await
    }

    /// Entries that nobody has seen; waits a moment for them.
    pub(super) async fn new_entries(&self) -> Result<Entries, StoreError> {
        let wait = Duration::from_millis(500).min(self.plan.limit / 2).as_millis().to_string();
        self.read(&self.reader, &["BLOCK", &wait], ">").await
    }

    async fn read(
        &self,
        redis: &RawRedis,
        more: &[&str],
        after: &str,
    ) -> Result<Entries, StoreError> {
        let Plan { group, consumer, .. } = &*self.plan;
        let mut parts = vec!["XREADGROUP", "GROUP", group, consumer, "COUNT", PAGE];
        parts.extend(more);
        parts.extend(["STREAMS", &self.name, after]);
        let Reply::Many(streams) = redis.command(&parts).await? else {
            return Ok(Entries::default());
        };
        // `[[stream, entries]]`, or `[stream, entries]` where the server speaks in maps.
        let entries = match streams.into_iter().next_back() {
            Some(Reply::Many(mut pair)) if matches!(pair.first(), Some(Reply::Bytes(_))) => {
                pair.pop().unwrap_or(Reply::Nil)
            }
            other => other.unwrap_or(Reply::Nil),
        };
        Ok(Entries::read(entries))
    }

    /// Takes over entries of consumers that have been silent; where to go on, `None` at the end.
    pub(super) async fn reclaim(
        &self,
        start: &str,
    ) -> Result<(Entries, Option<String>), StoreError> {
        let Plan { group, consumer, reclaim, .. } = &*self.plan;
        let idle = reclaim.as_millis().to_string();
        let parts = ["XAUTOCLAIM", &self.name, group, consumer, &idle, start, "COUNT", PAGE];
        let Reply::Many(answer) = self.redis.command(&parts).await? else {
            return Ok((Entries::default(), None));
        };
        let mut answer = answer.into_iter();
        let next = answer.next().and_then(text).filter(|next| next != "0-0");
        let mut entries = Entries::read(answer.next().unwrap_or(Reply::Nil));
        // Redis 7 names those that are gone, and has acknowledged them by itself.
        if let Some(Reply::Many(gone)) = answer.next() {
            entries.gone.extend(gone.into_iter().filter_map(text));
        }
        Ok((entries, next))
    }

    /// How many times each of these entries was delivered.
    pub(super) async fn deliveries(
        &self,
        first: &str,
        last: &str,
    ) -> Result<HashMap<String, u64>, StoreError> {
        let Plan { group, consumer, .. } = &*self.plan;
        // Between the first and the last there may be others of ours, but not many.
        let parts = ["XPENDING", &self.name, group, first, last, "10000", consumer];
        let Reply::Many(pending) = self.redis.command(&parts).await? else {
            return Ok(HashMap::new());
        };
        let count = |one: Reply| match one {
            Reply::Many(mut parts) => match (parts.pop(), parts.into_iter().next()) {
                (Some(Reply::Number(count)), Some(id)) => {
                    Some((text(id)?, u64::try_from(count).unwrap_or(0)))
                }
                _ => None,
            },
            _ => None,
        };
        Ok(pending.into_iter().filter_map(count).collect())
    }

    pub(super) async fn acknowledge(&self, ids: &[&str]) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        let parts = [&["XACK", &self.name, &self.plan.group], ids].concat();
        self.redis.command(&parts).await.map(drop)
    }

    /// How far the group is, as far as this server can tell.
    pub(super) async fn standing(&self) -> Result<Standing, StoreError> {
        let groups = self.redis.command(&["XINFO", "GROUPS", &self.name]).await?;
        let stream = Named::of(self.redis.command(&["XINFO", "STREAM", &self.name]).await?);
        let Reply::Many(groups) = groups else { return Ok(Standing::default()) };
        let mut groups = groups.into_iter().map(Named::of);
        let ours = groups.find(|group| group.text("name").as_ref() == Some(&self.plan.group));
        let group = ours.unwrap_or_default();
        let id =
            |named: &Named, name: &str| named.text(name).map(|id| parsed(&id)).unwrap_or_default();
        let first = match stream.0.get("first-entry") {
            Some(Reply::Many(entry)) => entry.first().cloned().and_then(text),
            _ => None,
        };
        Ok(Standing {
            lag: group.number("lag"),
            pending: group.number("pending").unwrap_or(0),
            read: group.number("entries-read"),
            added: stream.number("entries-added"),
            length: stream.number("length").unwrap_or(0),
            delivered: id(&group, "last-delivered-id"),
            first: first.map(|id| parsed(&id)).unwrap_or_default(),
            last: id(&stream, "last-generated-id"),
        })
    }
}

impl Standing {
    /// How many of the entries that are there the group has not seen; `None` where it is in the middle
    /// of them.
    fn unseen(&self) -> Option<u64> {
        if self.length == 0 || self.delivered >= self.last {
            return Some(0);
        }
        (self.delivered < self.first).then_some(self.length)
    }

    /// How many wait to be read, where `lost` are known to be gone.
    pub(super) fn waiting(&self, lost: u64) -> Option<u64> {
        self.unseen().or_else(|| Some(self.lag?.saturating_sub(lost)))
    }

    /// How many entries were trimmed before the group saw them, since it first read; `None` where that
    /// cannot be told now.
    pub(super) fn lost(&self) -> Option<u64> {
        // A group that has read nothing yet has no count.
        let nothing_yet = self.delivered == (0, 0);
        let read = self.read.or(nothing_yet.then_some(0))?;
        Some(self.added?.saturating_sub(read).saturating_sub(self.unseen()?))
    }

    /// For servers that do not count: whether entries that were there before, and unseen, are gone.
    pub(super) fn has_lost_since(&self, before: &Self) -> bool {
        let unseen = before.last > before.delivered && before.last > self.delivered;
        self.added.is_none() && unseen && (self.length == 0 || before.last < self.first)
    }
}

/// Names and values in turn.
#[derive(Default)]
struct Named(HashMap<String, Reply>);

impl Named {
    fn of(reply: Reply) -> Self {
        let Reply::Many(parts) = reply else { return Self::default() };
        let mut parts = parts.into_iter();
        let mut named = HashMap::new();
        while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
            named.extend(text(name).map(|name| (name, value)));
        }
        Self(named)
    }

    fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned().and_then(text)
    }

    fn number(&self, name: &str) -> Option<u64> {
        match self.0.get(name)? {
            Reply::Number(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }
}

fn text(reply: Reply) -> Option<String> {
    match reply {
        Reply::Bytes(bytes) => String::from_utf8(bytes).ok(),
        _ => None,
    }
}

pub(super) fn parsed(id: &str) -> Id {
    let (time, nth) = id.split_once('-').unwrap_or((id, "0"));
    (time.parse().unwrap_or(0), nth.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `added` entries, of which those from `first` on are there, and `read` were read up to
    /// `delivered`.
    fn standing(added: u64, first: u64, read: u64, delivered: u64) -> Standing {
        Standing {
            read: Some(read),
            added: Some(added),
            length: added + 1 - first,
            delivered: (delivered, 0),
            first: (first, 0),
            last: (added, 0),
            ..Standing::default()
        }
    }

    #[test]
    fn what_was_trimmed_unseen_is_counted() {
        assert_eq!(standing(10, 1, 0, 0).lost(), Some(0), "nothing seen, nothing trimmed");
        assert_eq!(standing(10, 4, 0, 0).lost(), Some(3), "three trimmed before anybody looked");
        assert_eq!(standing(10, 4, 3, 3).lost(), Some(0), "three seen, then trimmed");
        assert_eq!(standing(10, 6, 3, 3).lost(), Some(2));
        assert_eq!(standing(10, 6, 8, 10).lost(), Some(2), "and still known when all is seen");
        assert_eq!(standing(10, 6, 4, 7).lost(), None, "in the middle nobody can tell");
    }

    #[test]
    fn a_server_that_does_not_count_is_watched() {
        let uncounted = |standing| Standing { read: None, added: None, ..standing };
        assert_eq!(Standing { read: None, ..standing(10, 4, 0, 0) }.lost(), Some(3));
        assert_eq!(standing(10, 6, 4, 7).waiting(2), None);
        assert_eq!(Standing { lag: Some(6), ..standing(10, 6, 4, 7) }.waiting(2), Some(4));
        let before = uncounted(standing(10, 1, 0, 4));
        assert!(uncounted(standing(30, 20, 0, 4)).has_lost_since(&before));
        assert!(!uncounted(standing(30, 5, 0, 4)).has_lost_since(&before));
        assert!(!uncounted(standing(30, 20, 0, 15)).has_lost_since(&before));
    }
}
