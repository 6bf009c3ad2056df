//! The members of a group: one record in which each member counts its heartbeats.
//!
//! Clocks of different machines are never compared: a member is considered gone when its count has
//! not changed for a lease by the observer's own clock.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Group;
use crate::{Expect, Key, Put, Record, Store, StoreResult, Token};

/// How often a write is tried that conflicts with another member's.
const MAX_TRIES: u64 = 10;
/// How long the record is kept after the last heartbeat.
const RETENTION: Duration = Duration::from_secs(7 * 86_400);

type Heartbeats = BTreeMap<String, u64>;

pub(super) struct Membership {
    store: Arc<dyn Store>,
    key: Key,
    pub(super) id: String,
    heartbeats: u64,
    /// The last count of each member, and when this count was first seen.
    seen: HashMap<String, (u64, Instant)>,
    timeout: Duration,
    members: usize,
}

impl Membership {
    pub(super) fn new(group: &Group) -> Self {
        Self {
            store: group.store.clone(),
            key: group.record("members"),
            id: Token::random().as_str().to_owned(),
            heartbeats: 0,
            seen: HashMap::new(),
            timeout: group.config.lease,
            members: 1,
        }
    }

    /// Counts a heartbeat; returns the number of members.
    pub(super) async fn heartbeat(&mut self) -> StoreResult<usize> {
        self.heartbeats += 1;
        for nth in 1..=MAX_TRIES {
            let (mut members, expect) = self.read().await?;
            self.observe(&members);
            members.retain(|member, _| self.is_alive(member));
            members.insert(self.id.clone(), self.heartbeats);
            self.members = members.len();
            if self.write(&members, &expect).await? {
                return Ok(self.members);
            }
            // Members that conflicted once wait differently long.
            let jitter = u64::from(self.id.bytes().fold(0_u8, u8::wrapping_add)) % 16;
            tokio::time::sleep(Duration::from_millis(nth * (4 + jitter))).await;
        }
        Ok(self.members)
    }

    /// Removes this member, so that the others take its share at once.
    pub(super) async fn leave(&self) -> StoreResult<()> {
        for _ in 0..MAX_TRIES {
            let (mut members, expect) = self.read().await?;
            if members.remove(&self.id).is_none() || self.write(&members, &expect).await? {
                break;
            }
        }
        Ok(())
    }

    fn observe(&mut self, members: &Heartbeats) {
        let now = Instant::now();
        self.seen.retain(|member, _| members.contains_key(member));
        for (member, count) in members {
            match self.seen.get(member) {
                Some((known, _)) if known == count => {}
                _ => drop(self.seen.insert(member.clone(), (*count, now))),
            }
        }
    }

    fn is_alive(&self, member: &str) -> bool {
        self.seen.get(member).is_some_and(|(_, since)| since.elapsed() < self.timeout)
    }

    async fn read(&self) -> StoreResult<(Heartbeats, Expect)> {
        let Some(Record { value, version, .. }) = self.store.get(&self.key).await? else {
            return Ok((Heartbeats::new(), Expect::Absent));
        };
        // Start over where the record is unreadable; every member adds itself with its next heartbeat.
        let members = serde_json::from_slice(&value).unwrap_or_default();
        Ok((members, Expect::Version(version)))
    }

    async fn write(&self, members: &Heartbeats, expect: &Expect) -> StoreResult<bool> {
        let json = serde_json::to_vec(members).expect("texts and numbers become JSON");
        let put = self.store.put(&self.key, json.into(), expect, Some(RETENTION)).await?;
        Ok(matches!(put, Put::Stored { .. }))
    }
}
