//! A partition that is ours for now: its lease, and how far the group is with it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::{ConsumerProgress, Group};
use crate::log::TailPosition;
use crate::{
    ClaimRequest, Claimed, Claims, Expect, Fence, GiveBack, Key, Put, StoreError, Ticket, Version,
    claim_retry,
};

/// Whether a partition is still to be handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Going {
    On,
    /// Somebody else shall have it: end in order.
    Leave,
    /// Somebody else has it, or could.
    Lost,
}

pub(super) struct Lease {
    group: Arc<Group>,
    key: Key,
    ticket: Ticket,
    pub(super) going: watch::Sender<Going>,
    keeper: AbortHandle,
}

impl Lease {
    /// Takes a partition that nobody has.
    pub(super) async fn take(
        group: &Arc<Group>,
        partition: u16,
    ) -> Result<Option<Self>, StoreError> {
        let key = group.lock(partition);
        let claims: Arc<dyn Claims> = group.bus.store().clone();
        let lease = group.consume.lease;
        let ask = ClaimRequest::new(lease);
        let claim = claim_retry::claim(&claims, &key, &ask, Duration::ZERO, GiveBack::Forget);
        let (answer, since) = claim.await?;
        let Claimed::Granted { ticket, .. } = answer else { return Ok(None) };
        let going = watch::Sender::new(Going::On);
        let keeping = {
            let (key, token, going) = (key.clone(), ticket.token.clone(), going.clone());
            async move {
                claim_retry::renew_until_lost(&*claims, &key, &token, lease, since, None).await;
                going.send_replace(Going::Lost);
            }
        };
        let keeper = tokio::spawn(keeping).abort_handle();
        Ok(Some(Self { group: group.clone(), key, ticket, going, keeper }))
    }

    pub(super) fn fence(&self) -> Fence {
        self.ticket.fence
    }

    pub(super) fn is(&self, going: Going) -> bool {
        *self.going.borrow() == going
    }

    /// Asks whoever handles it to come to an end; what is lost stays lost.
    pub(super) fn leave(&self) {
        self.going.send_if_modified(|going| {
            let leaves = *going == Going::On;
            if leaves {
                *going = Going::Leave;
            }
            leaves
        });
    }

    /// Lets others have it at once.
    pub(super) async fn give_back(self) {
        let store = self.group.bus.store();
        // Where this fails, the lease runs out by itself.
        let _ = store.give_back(&self.key, &self.ticket.token, GiveBack::Forget).await;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// How far the group is with a partition.
#[derive(Clone, Debug)]
pub(super) struct Place {
    key: Key,
    pub(super) position: TailPosition,
    expect: Expect,
    /// Whether it is further than what is stored.
    unsaved: bool,
    saved_at: Instant,
}

impl Place {
    pub(super) async fn load(group: &Group, partition: u16) -> Result<Self, StoreError> {
        let key = group.record(&format!("partition:{partition}"));
        let begin =
            || if group.consume.from_start { TailPosition::start() } else { TailPosition::end() };
        let (position, expect) = match group.bus.store().get(&key).await? {
            None => (begin(), Expect::Absent),
            Some(record) => {
                let text: Option<String> = serde_json::from_slice(&record.value).ok();
                let position = text.map_or_else(begin, |text| TailPosition::new(&text));
                (position, Expect::Version(record.version))
            }
        };
        Ok(Self { key, position, expect, unsaved: false, saved_at: Instant::now() })
    }

    /// What a handler may put in its own transaction.
    pub(super) fn progress(&self, position: &TailPosition) -> ConsumerProgress {
        ConsumerProgress {
            key: self.key.clone(),
            value: value(position),
            expect: self.expect.clone(),
        }
    }

    pub(super) fn reached(&mut self, position: &TailPosition) {
        self.unsaved |= self.position != *position;
        self.position = position.clone();
    }

    /// The handler stored it.
    pub(super) fn was_saved(&mut self, position: &TailPosition, version: Version) {
        self.position = position.clone();
        self.expect = Expect::Version(version);
        self.unsaved = false;
        self.saved_at = Instant::now();
    }

    /// How long ago it was stored, where it is further by now.
    pub(super) fn unsaved_for(&self) -> Duration {
        if self.unsaved { self.saved_at.elapsed() } else { Duration::ZERO }
    }

    /// Stores it; false where another member has stored its own meanwhile.
    pub(super) async fn save(&mut self, group: &Group) -> Result<bool, StoreError> {
        if !self.unsaved {
            return Ok(true);
        }
        let store = group.bus.store();
        let bytes = value(&self.position);
        let put = store.put(&self.key, bytes.clone(), &self.expect, None).await?;
        let version = match put {
            Put::Stored { version, .. } => version,
            // Perhaps it was our own put, whose answer was lost.
            Put::Conflict => match store.get(&self.key).await? {
                Some(record) if record.value == bytes => record.version,
                _ => return Ok(false),
            },
        };
        let position = self.position.clone();
        self.was_saved(&position, version);
        Ok(true)
    }
}

/// JSON, as every record is that people may look at.
fn value(position: &TailPosition) -> Bytes {
    serde_json::to_vec(position.as_str()).expect("a text becomes JSON").into()
}
