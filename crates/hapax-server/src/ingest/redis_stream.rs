//! One Redis stream, read through the consumer group.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hapax::StoreError;
use hapax::redis::{RedisCommands, RedisReply};

use super::IngestConfig;
use super::entry::EntryPage;

const PAGE: &str = "200";

/// KEYS: stream; ARGV: group, the own consumer, idle time in ms. One script, so that no consumer reads between the
/// look and the deletion.
const DELETE_IDLE_SCRIPT: &str = "
    local deleted = 0
    for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
      local of = {}
      for i = 1, #consumer, 2 do of[consumer[i]] = consumer[i + 1] end
      if of.name ~= ARGV[2] and string.sub(of.name, 1, 6) == 'hapax-' and of.pending == 0
          and of.idle > tonumber(ARGV[3]) then
        redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], of.name)
        deleted = deleted + 1
      end
    end
    return deleted";

/// A stream and our consumer group on it.
pub(super) struct GroupStream {
    pub(super) name: String,
    pub(super) config: Arc<IngestConfig>,
    pub(super) redis: Arc<RedisCommands>,
    /// The connection for reading new entries, which blocks it.
    pub(super) reader: RedisCommands,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupProgress {
    /// Redis's own count of unread entries. Entries that were trimmed unread count in it for ever.
    lag: Option<u64>,
    /// How many entries were delivered and not acknowledged.
    pub(super) pending: u64,
    /// How many entries were ever delivered, and how many ever added (Redis 7).
    read: Option<u64>,
    added: Option<u64>,
    length: u64,
    delivered: EntryId,
    first: EntryId,
    last: EntryId,
}

/// The id of an entry, comparable in stream order.
pub(super) type EntryId = (u64, u64);

impl GroupStream {
    /// Creates the group at the first entry; an existing group is left as it is.
    pub(super) async fn ensure_group(&self) -> Result<(), StoreError> {
        let parts = ["XGROUP", "CREATE", &self.name, &self.config.group, "0", "MKSTREAM"];
        match self.redis.command(&parts).await {
            Err(StoreError::Internal { reason, .. }) if reason.contains("BUSYGROUP") => Ok(()),
            made => made.map(drop),
        }
    }

    /// Entries after `after` that were delivered to a predecessor of this name and not
    /// acknowledged.
    pub(super) async fn own_pending(&self, after: &str) -> Result<EntryPage, StoreError> {
        self.read(&self.redis, &[], after).await
    }

    /// Entries that were never delivered; waits a moment for them.
    pub(super) async fn new_entries(&self) -> Result<EntryPage, StoreError> {
        let wait =
            Duration::from_millis(500).min(self.config.store_timeout / 2).as_millis().to_string();
        self.read(&self.reader, &["BLOCK", &wait], ">").await
    }

    async fn read(
        &self,
        redis: &RedisCommands,
        more: &[&str],
        after: &str,
    ) -> Result<EntryPage, StoreError> {
        let IngestConfig { group, consumer, .. } = &*self.config;
        let mut parts = vec!["XREADGROUP", "GROUP", group, consumer, "COUNT", PAGE];
        parts.extend(more);
        parts.extend(["STREAMS", &self.name, after]);
        let RedisReply::Many(streams) = redis.command(&parts).await? else {
            return Ok(EntryPage::default());
        };
        // `[[stream, entries]]` in RESP2, `[stream, entries]` from a RESP3 map.
        let entries = match streams.into_iter().next_back() {
            Some(RedisReply::Many(mut pair))
                if matches!(pair.first(), Some(RedisReply::Bytes(_))) =>
            {
                pair.pop().unwrap_or(RedisReply::Nil)
            }
            other => other.unwrap_or(RedisReply::Nil),
        };
        Ok(EntryPage::parse(entries))
    }

    /// Takes over entries of idle consumers. Returns where to continue; `None` at the end.
    pub(super) async fn reclaim(
        &self,
        start: &str,
    ) -> Result<(EntryPage, Option<String>), StoreError> {
        let IngestConfig { group, consumer, reclaim_after, .. } = &*self.config;
        let idle = reclaim_after.as_millis().to_string();
        let parts = ["XAUTOCLAIM", &self.name, group, consumer, &idle, start, "COUNT", PAGE];
        let RedisReply::Many(answer) = self.redis.command(&parts).await? else {
            return Ok((EntryPage::default(), None));
        };
        let mut answer = answer.into_iter();
        let next = answer.next().and_then(text).filter(|next| next != "0-0");
        let mut entries = EntryPage::parse(answer.next().unwrap_or(RedisReply::Nil));
        // Redis 7 lists the trimmed entries, and has acknowledged them.
        if let Some(RedisReply::Many(gone)) = answer.next() {
            entries.gone.extend(gone.into_iter().filter_map(text));
        }
        Ok((entries, next))
    }

    /// Deletes the consumers of other processes of hapax that have been idle for this long and have no pending
    /// entry: each pod has a name of its own, and Redis remembers every name. A failure is only logged,
    /// because routing does not depend on it.
    pub(super) async fn delete_idle_consumers(&self, idle: Duration) {
        let IngestConfig { group, consumer, .. } = &*self.config;
        let idle = idle.as_millis().to_string();
        let parts = ["EVAL", DELETE_IDLE_SCRIPT, "1", &self.name, group, consumer, &idle];
        match self.redis.command(&parts).await {
            Ok(RedisReply::Number(0)) => {}
            Ok(_) => tracing::info!(stream = self.name, "idle consumers of the group were deleted"),
            Err(error) => {
                let (stream, reason) = (self.name.as_str(), error.label());
                tracing::info!(stream, reason, "idle consumers cannot be deleted: {error}");
            }
        }
    }

    /// How many times each entry from `first` to `last` was delivered.
    pub(super) async fn delivery_counts(
        &self,
        first: &str,
        last: &str,
    ) -> Result<HashMap<String, u64>, StoreError> {
        let IngestConfig { group, consumer, .. } = &*self.config;
        // The range may include a few more of our pending entries than the page.
        let parts = ["XPENDING", &self.name, group, first, last, "10000", consumer];
        let RedisReply::Many(pending) = self.redis.command(&parts).await? else {
            return Ok(HashMap::new());
        };
        let count = |one: RedisReply| {
            let RedisReply::Many(mut parts) = one else { return None };
            let Some(RedisReply::Number(count)) = parts.pop() else { return None };
            Some((text(parts.into_iter().next()?)?, u64::try_from(count).unwrap_or(0)))
        };
        Ok(pending.into_iter().filter_map(count).collect())
    }

    pub(super) async fn acknowledge(&self, ids: &[&str]) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        let parts = [&["XACK", &self.name, &self.config.group], ids].concat();
        self.redis.command(&parts).await.map(drop)
    }

    /// The progress of the group, as far as this version of Redis reports it.
    pub(super) async fn progress(&self) -> Result<GroupProgress, StoreError> {
        let groups = self.redis.command(&["XINFO", "GROUPS", &self.name]).await?;
        let stream =
            NamedReplies::from_reply(self.redis.command(&["XINFO", "STREAM", &self.name]).await?);
        let RedisReply::Many(groups) = groups else { return Ok(GroupProgress::default()) };
        let mut groups = groups.into_iter().map(NamedReplies::from_reply);
        let ours = groups.find(|group| group.text("name").as_ref() == Some(&self.config.group));
        let group = ours.unwrap_or_default();
        let id = |named: &NamedReplies, name: &str| {
            named.text(name).map(|id| parse_entry_id(&id)).unwrap_or_default()
        };
        let first = match stream.0.get("first-entry") {
            Some(RedisReply::Many(entry)) => entry.first().cloned().and_then(text),
            _ => None,
        };
        Ok(GroupProgress {
            lag: group.number("lag"),
            pending: group.number("pending").unwrap_or(0),
            read: group.number("entries-read"),
            added: stream.number("entries-added"),
            length: stream.number("length").unwrap_or(0),
            delivered: id(&group, "last-delivered-id"),
            first: first.map(|id| parse_entry_id(&id)).unwrap_or_default(),
            last: id(&stream, "last-generated-id"),
        })
    }
}

impl GroupProgress {
    /// How many of the stored entries are unread; `None` if the group is in the middle of them.
    fn unseen(&self) -> Option<u64> {
        if self.length == 0 || self.delivered >= self.last {
            return Some(0);
        }
        (self.delivered < self.first).then_some(self.length)
    }

    /// How many entries wait to be read, given that `lost` were trimmed unread.
    pub(super) fn waiting(&self, lost: u64) -> Option<u64> {
        self.unseen().or_else(|| Some(self.lag?.saturating_sub(lost)))
    }

    /// How many entries were trimmed before the group read them; `None` if that is unknown now.
    pub(super) fn lost(&self) -> Option<u64> {
        // Redis has no count for a group that has read nothing yet.
        let nothing_yet = self.delivered == (0, 0);
        let read = self.read.or(nothing_yet.then_some(0))?;
        Some(self.added?.saturating_sub(read).saturating_sub(self.unseen()?))
    }

    /// For servers that do not count entries: whether unread entries of `before` are gone.
    pub(super) fn has_lost_since(&self, before: &Self) -> bool {
        let unseen = before.last > before.delivered && before.last > self.delivered;
        self.added.is_none() && unseen && (self.length == 0 || before.last < self.first)
    }
}

/// A reply of alternating names and values.
#[derive(Default)]
struct NamedReplies(HashMap<String, RedisReply>);

impl NamedReplies {
    fn from_reply(reply: RedisReply) -> Self {
        let RedisReply::Many(parts) = reply else { return Self::default() };
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
            RedisReply::Number(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }
}

fn text(reply: RedisReply) -> Option<String> {
    match reply {
        RedisReply::Bytes(bytes) => String::from_utf8(bytes).ok(),
        _ => None,
    }
}

pub(super) fn parse_entry_id(id: &str) -> EntryId {
    let (time, nth) = id.split_once('-').unwrap_or((id, "0"));
    (time.parse().unwrap_or(0), nth.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use hapax::redis::RedisConfig;
    use hapax_testkit::Redis;

    use super::*;
    use crate::settings::IngestDomains;

    /// `added` entries, still there from `first` on, of which `read` were read up to `delivered`.
    fn progress(added: u64, first: u64, read: u64, delivered: u64) -> GroupProgress {
        GroupProgress {
            read: Some(read),
            added: Some(added),
            length: added + 1 - first,
            delivered: (delivered, 0),
            first: (first, 0),
            last: (added, 0),
            ..GroupProgress::default()
        }
    }

    #[test]
    fn progress_counts_entries_trimmed_unread() {
        assert_eq!(progress(10, 1, 0, 0).lost(), Some(0), "nothing seen, nothing trimmed");
        assert_eq!(progress(10, 4, 0, 0).lost(), Some(3), "three trimmed before anybody looked");
        assert_eq!(progress(10, 4, 3, 3).lost(), Some(0), "three seen, then trimmed");
        assert_eq!(progress(10, 6, 3, 3).lost(), Some(2));
        assert_eq!(progress(10, 6, 8, 10).lost(), Some(2), "and still known when all is seen");
        assert_eq!(progress(10, 6, 4, 7).lost(), None, "in the middle nobody can tell");
    }

    #[test]
    fn progress_notices_losses_without_redis_counts() {
        let uncounted = |progress| GroupProgress { read: None, added: None, ..progress };
        assert_eq!(GroupProgress { read: None, ..progress(10, 4, 0, 0) }.lost(), Some(3));
        assert_eq!(progress(10, 6, 4, 7).waiting(2), None);
        assert_eq!(GroupProgress { lag: Some(6), ..progress(10, 6, 4, 7) }.waiting(2), Some(4));
        let before = uncounted(progress(10, 1, 0, 4));
        assert!(uncounted(progress(30, 20, 0, 4)).has_lost_since(&before));
        assert!(!uncounted(progress(30, 5, 0, 4)).has_lost_since(&before));
        assert!(!uncounted(progress(30, 20, 0, 15)).has_lost_since(&before));
    }

    /// Redis remembers every consumer, and each pod has a name of its own.
    #[tokio::test]
    async fn fault_16_idle_consumers_of_other_pods_are_deleted() {
        let server = Redis::with(&["--appendonly", "no"]);
        let open = || RedisCommands::open(RedisConfig::new(&server.url()).unwrap()).unwrap();
        let config = IngestConfig {
            domains: IngestDomains(Vec::new()),
            group: "router".into(),
            consumer: "hapax-me-1".into(),
            channel: None,
            max_deliveries: 5,
            reclaim_after: Duration::from_secs(30),
            state_retention: Duration::from_secs(30),
            max_stall: Duration::from_secs(30),
            store_timeout: Duration::from_secs(30),
        };
        let (name, config) = ("scan:events:0".to_owned(), Arc::new(config));
        let stream = GroupStream { name, config, redis: Arc::new(open()), reader: open() };
        stream.ensure_group().await.unwrap();
        for consumer in ["hapax-me-1", "hapax-gone-1", "hapax-busy-1", "another-router"] {
            let create = ["XGROUP", "CREATECONSUMER", &stream.name, "router", consumer];
            server.cli(&create);
        }
        server.cli(&["XADD", &stream.name, "*", "data", "{}"]);
        let read = ["XREADGROUP", "GROUP", "router", "hapax-busy-1", "STREAMS", &stream.name, ">"];
        server.cli(&read);
        let consumers = || server.cli(&["XINFO", "CONSUMERS", &stream.name, "router"]);
        stream.delete_idle_consumers(Duration::from_secs(3600)).await;
        assert!(consumers().contains("hapax-gone-1"), "not idle for long enough");
        // Idle for a millisecond at least.
        while consumers().contains("hapax-gone-1") {
            stream.delete_idle_consumers(Duration::ZERO).await;
        }
        for kept in ["hapax-me-1", "hapax-busy-1", "another-router"] {
            assert!(consumers().contains(kept), "{kept} was deleted");
        }
    }
}
