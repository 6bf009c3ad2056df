//! A partition that this member owns: its lease, and the group's progress in it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::{ConsumerProgress, Group};
use crate::claim_retry::{ClaimAnswer, RecordRenewals};
use crate::log::TailPosition;
use crate::{
    ClaimRequest, Claimed, Claims, Expect, Fence, GiveBack, Key, Put, StoreResult, Ticket, Version,
    claim_retry,
};

/// Whether a partition is still to be handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseState {
    Held,
    /// To be handed over: finish the current event.
    Leaving,
    /// Taken over by another member, or possibly so.
    Lost,
}

pub(super) struct PartitionLease {
    group: Arc<Group>,
    key: Key,
    ticket: Ticket,
    pub(super) state: watch::Sender<LeaseState>,
    renewal: AbortHandle,
}

impl PartitionLease {
    /// Takes a partition that no other member holds.
    pub(super) async fn take(group: &Arc<Group>, partition: u16) -> StoreResult<Option<Self>> {
        let key = group.lock(partition);
        let claims: Arc<dyn Claims> = group.store.clone();
        let lease = group.config.lease;
        let request = ClaimRequest::new(lease);
        let claim = claim_retry::claim(&claims, &key, &request, Duration::ZERO, GiveBack::Forget);
        let ClaimAnswer { claimed, asked_at: since, .. } = claim.await?;
        let Claimed::Granted { ticket, .. } = claimed else { return Ok(None) };
        let state = watch::Sender::new(LeaseState::Held);
        let renewal = {
            let (key, token, state) = (key.clone(), ticket.token.clone(), state.clone());
            async move {
                let record = RecordRenewals::No;
                claim_retry::renew_until_lost(&*claims, &key, &token, lease, since, None, record)
                    .await;
                state.send_replace(LeaseState::Lost);
            }
        };
        let renewal = tokio::spawn(renewal).abort_handle();
        Ok(Some(Self { group: group.clone(), key, ticket, state, renewal }))
    }

    pub(super) fn fence(&self) -> Fence {
        self.ticket.fence
    }

    pub(super) fn is(&self, state: LeaseState) -> bool {
        *self.state.borrow() == state
    }

    /// Asks the page that is being handled to end early; a lost lease stays lost.
    pub(super) fn start_leaving(&self) {
        self.state.send_if_modified(|state| {
            let leaves = *state == LeaseState::Held;
            if leaves {
                *state = LeaseState::Leaving;
            }
            leaves
        });
    }

    pub(super) async fn give_back(self) {
        // Where this fails, the lease runs out by itself.
        let store = &self.group.store;
        let _ = store.give_back(&self.key, &self.ticket.token, GiveBack::Forget).await;
    }
}

impl Drop for PartitionLease {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

/// The group's progress in a partition.
#[derive(Clone, Debug)]
pub(super) struct PartitionProgress {
    key: Key,
    pub(super) position: TailPosition,
    expect: Expect,
    /// Whether `position` is ahead of the stored one.
    unsaved: bool,
    saved_at: Instant,
}

impl PartitionProgress {
    pub(super) async fn load(group: &Group, partition: u16) -> StoreResult<Self> {
        let key = group.record(&format!("partition:{partition}"));
        let initial =
            || if group.config.from_start { TailPosition::start() } else { TailPosition::end() };
        let (position, expect) = match group.store.get(&key).await? {
            None => (initial(), Expect::Absent),
            Some(record) => {
                let text: Option<String> = serde_json::from_slice(&record.value).ok();
                let position = text.map_or_else(initial, |text| TailPosition::new(&text));
                (position, Expect::Version(record.version))
            }
        };
        Ok(Self { key, position, expect, unsaved: false, saved_at: Instant::now() })
    }

    /// The record that a handler may put in its own transaction.
    pub(super) fn record_for(&self, position: &TailPosition) -> ConsumerProgress {
        let (key, expect) = (self.key.clone(), self.expect.clone());
        ConsumerProgress { key, value: encode(position), expect }
    }

    pub(super) fn advance(&mut self, position: &TailPosition) {
        self.unsaved |= self.position != *position;
        self.position = position.clone();
    }

    /// Notes that this position is stored, as this version.
    pub(super) fn mark_saved(&mut self, position: &TailPosition, version: Version) {
        self.position = position.clone();
        self.expect = Expect::Version(version);
        self.unsaved = false;
        self.saved_at = Instant::now();
    }

    /// How long ago the progress was stored; zero where the stored one is current.
    pub(super) fn unsaved_for(&self) -> Duration {
        if self.unsaved { self.saved_at.elapsed() } else { Duration::ZERO }
    }

    /// Stores the progress; false where another member has stored its own meanwhile.
    pub(super) async fn save(&mut self, group: &Group) -> StoreResult<bool> {
        if !self.unsaved {
            return Ok(true);
        }
        let value = encode(&self.position);
        let put = group.store.put(&self.key, value.clone(), &self.expect, None).await?;
        let version = match put {
            Put::Stored { version, .. } => version,
            // This may be our own put, whose answer was lost.
            Put::Conflict => match group.store.get(&self.key).await? {
                Some(record) if record.value == value => record.version,
                _ => return Ok(false),
            },
        };
        let position = self.position.clone();
        self.mark_saved(&position, version);
        Ok(true)
    }
}

/// JSON, because operators read records.
fn encode(position: &TailPosition) -> Bytes {
    serde_json::to_vec(position.as_str()).expect("a text becomes JSON").into()
}
