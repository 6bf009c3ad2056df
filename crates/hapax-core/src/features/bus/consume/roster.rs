//! Who is in a group: a record in which each member beats.
//!
//! No clock is compared with another: a member counts its beats, and is gone to the others when its
//! count has not changed for a while by their own clock.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Group;
use crate::{Expect, Key, Put, Record, Store, StoreError, Token};

/// How often a beat is tried that met somebody else's.
const TRIES: u64 = 10;
/// A roster that nobody has beaten in for this long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(7 * 86_400);

type Beats = BTreeMap<String, u64>;

pub(super) struct Roster {
    store: Arc<dyn Store>,
    key: Key,
    pub(super) me: String,
    beats: u64,
    /// What was last seen of the others, and when it was first seen.
    seen: HashMap<String, (u64, Instant)>,
    patience: Duration,
    members: usize,
}

impl Roster {
    pub(super) fn new(group: &Group) -> Self {
        Self {
            store: group.bus.store().clone(),
            key: group.record("members"),
            me: Token::random().as_str().to_owned(),
            beats: 0,
            seen: HashMap::new(),
            patience: group.consume.lease,
            members: 1,
        }
    }

    /// Gives a sign of life; how many members there are.
    pub(super) async fn beat(&mut self) -> Result<usize, StoreError> {
        self.beats += 1;
        for nth in 1..=TRIES {
            let (mut members, expect) = self.read().await?;
            self.look(&members);
            members.retain(|member, _| self.is_alive(member));
            members.insert(self.me.clone(), self.beats);
            self.members = members.len();
            if self.write(&members, &expect).await? {
                return Ok(self.members);
            }
            // Whoever met once goes apart: the waits differ from member to member.
            let unlike = u64::from(self.me.bytes().fold(0_u8, u8::wrapping_add)) % 16;
            tokio::time::sleep(Duration::from_millis(nth * (4 + unlike))).await;
        }
        Ok(self.members)
    }

    /// Says good-bye, so that nobody waits.
    pub(super) async fn leave(&self) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            let (mut members, expect) = self.read().await?;
            if members.remove(&self.me).is_none() || self.write(&members, &expect).await? {
                break;
            }
        }
        Ok(())
    }

    fn look(&mut self, members: &Beats) {
        let now = Instant::now();
        self.seen.retain(|member, _| members.contains_key(member));
        for (member, beats) in members {
            match self.seen.get(member) {
                Some((known, _)) if known == beats => {}
                _ => drop(self.seen.insert(member.clone(), (*beats, now))),
            }
        }
    }

    fn is_alive(&self, member: &str) -> bool {
        self.seen.get(member).is_some_and(|(_, since)| since.elapsed() < self.patience)
    }

    async fn read(&self) -> Result<(Beats, Expect), StoreError> {
        let Some(Record { value, version, .. }) = self.store.get(&self.key).await? else {
            return Ok((Beats::new(), Expect::Absent));
        };
        // One that cannot be read is begun anew: every member is in it again with its next beat.
        let members = serde_json::from_slice(&value).unwrap_or_default();
        Ok((members, Expect::Version(version)))
    }

    async fn write(&self, members: &Beats, expect: &Expect) -> Result<bool, StoreError> {
        let json = serde_json::to_vec(members).expect("texts and numbers become JSON");
        let put = self.store.put(&self.key, json.into(), expect, Some(FORGOTTEN)).await?;
        Ok(matches!(put, Put::Stored { .. }))
    }
}
