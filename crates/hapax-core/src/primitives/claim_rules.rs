//! The laws of [`Claims`](crate::Claims) as pure functions over one row, for stores that can read a
//! row, decide, and write it in one atomic step (or write it only if it has not changed meanwhile).
//!
//! Stores that use these functions need no claim logic of its own; [`memory`](crate::memory) is a complete example.

use std::time::Duration;

use bytes::Bytes;

use crate::claims::{
    ClaimState, ClaimStep, ClaimView, Claimed, Fence, GiveBack, OnUnknown, Step, Ticket,
};
use crate::{ClaimRequest, ClaimStatus, ClaimSummary, Fingerprint, Key, Timestamp, Token};

/// The stored row of one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRow {
    /// The stored phase of the claim.
    pub phase: ClaimPhase,
    /// The fence of the last grant.
    pub fence: Fence,
    /// How many times the claim was granted.
    pub attempt: u32,
    /// The token of the last grant.
    pub token: Token,
    /// The fingerprint of the request.
    pub fingerprint: Option<Fingerprint>,
    /// When the claim was last granted.
    pub granted_at: Timestamp,
    /// When the lease ends. From then on a pending claim is *unknown*.
    pub lease_end: Timestamp,
    /// How long the outcome is remembered.
    pub retention: Duration,
    /// When the row expires. An expired row counts as absent.
    pub expires_at: Timestamp,
    /// The value that the claim was settled with; empty before that.
    pub value: Bytes,
}

/// The stored part of a claim's state. Whether a pending claim is *unknown* is not stored: it
/// depends on the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimPhase {
    /// Granted, and neither settled nor given back.
    Pending,
    /// Settled.
    Settled,
    /// Given back as failed.
    Failed,
}

impl ClaimPhase {
    /// The stable number that stores write.
    pub const fn code(self) -> i16 {
        match self {
            Self::Pending => 0,
            Self::Settled => 1,
            Self::Failed => 2,
        }
    }

    /// The phase of a stored number.
    pub const fn from_code(code: i16) -> Option<Self> {
        match code {
            0 => Some(Self::Pending),
            1 => Some(Self::Settled),
            2 => Some(Self::Failed),
            _ => None,
        }
    }
}

/// The decision on a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimDecision {
    /// Return this answer; write nothing.
    Answer(Claimed),
    /// Write a new grant with a fresh fence and this attempt.
    Grant {
        /// The attempt number of the new grant.
        attempt: u32,
    },
    /// The caller owns the claim already: write this row, whose lease starts again.
    Regrant(ClaimRow),
}

/// Decides a claim, given the stored row.
pub fn claim(row: Option<&ClaimRow>, ask: &ClaimRequest, now: Timestamp) -> ClaimDecision {
    let Some(row) = remembered(row, now) else {
        return ClaimDecision::Grant { attempt: 1 };
    };
    if row.fingerprint != ask.fingerprint {
        return ClaimDecision::Answer(Claimed::Mismatch);
    }
    match row.phase {
        ClaimPhase::Settled => ClaimDecision::Answer(Claimed::Settled {
            value: row.value.clone(),
            expires_in: row.expires_at.since(now),
        }),
        ClaimPhase::Failed => ClaimDecision::Grant { attempt: row.attempt.saturating_add(1) },
        ClaimPhase::Pending if row.token == ask.token => {
            ClaimDecision::Regrant(extended(row, ask.lease, now))
        }
        ClaimPhase::Pending if now < row.lease_end => {
            ClaimDecision::Answer(Claimed::Busy { lease_left: row.lease_end.since(now) })
        }
        ClaimPhase::Pending => match ask.on_unknown {
            OnUnknown::TakeOver => ClaimDecision::Grant { attempt: row.attempt.saturating_add(1) },
            OnUnknown::Refuse => {
                ClaimDecision::Answer(Claimed::Unknown { since: now.since(row.lease_end) })
            }
        },
    }
}

/// The row of a new grant.
pub fn granted(ask: &ClaimRequest, fence: Fence, attempt: u32, now: Timestamp) -> ClaimRow {
    let lease_end = now.plus(ask.lease);
    ClaimRow {
        phase: ClaimPhase::Pending,
        fence,
        attempt,
        token: ask.token.clone(),
        fingerprint: ask.fingerprint.clone(),
        granted_at: now,
        lease_end,
        retention: ask.retention,
        expires_at: lease_end.plus(ask.retention),
        value: Bytes::new(),
    }
}

impl ClaimRow {
    /// The answer that the owner of this row gets.
    pub fn grant(&self) -> Claimed {
        Claimed::Granted {
            ticket: Ticket { token: self.token.clone(), fence: self.fence },
            attempt: self.attempt,
        }
    }
}

/// The decision on an extend, settle or give-back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimChange {
    /// Return this answer; write nothing.
    Nothing(Step),
    /// Write this row, then return [`Step::Done`] with its fence.
    Write(ClaimRow),
    /// Delete the row, then return [`Step::Done`] with this fence.
    Delete(Fence),
}

/// Decides a step, given the stored row.
pub fn step(
    row: Option<&ClaimRow>,
    token: &Token,
    step: &ClaimStep,
    now: Timestamp,
) -> ClaimChange {
    let Some(row) = remembered(row, now).filter(|row| row.token == *token) else {
        return ClaimChange::Nothing(Step::Lost);
    };
    let expires_at = now.plus(row.retention);
    match (row.phase, step) {
        (ClaimPhase::Pending, ClaimStep::Extend(lease)) => {
            ClaimChange::Write(extended(row, *lease, now))
        }
        (ClaimPhase::Pending, ClaimStep::Settle(value)) => {
            let (phase, value) = (ClaimPhase::Settled, value.clone());
            ClaimChange::Write(ClaimRow { phase, expires_at, value, ..row.clone() })
        }
        (ClaimPhase::Settled, ClaimStep::Settle(value)) if row.value == *value => {
            ClaimChange::Nothing(Step::Done(row.fence))
        }
        (ClaimPhase::Pending, ClaimStep::GiveBack(GiveBack::Forget)) => {
            ClaimChange::Delete(row.fence)
        }
        (ClaimPhase::Pending, ClaimStep::GiveBack(GiveBack::Keep)) => {
            let phase = ClaimPhase::Failed;
            ClaimChange::Write(ClaimRow { phase, expires_at, ..row.clone() })
        }
        (ClaimPhase::Failed, ClaimStep::GiveBack(GiveBack::Keep)) => {
            ClaimChange::Nothing(Step::Done(row.fence))
        }
        _ => ClaimChange::Nothing(Step::Lost),
    }
}

/// The view of a row for [`Claims::look`](crate::Claims::look); `None` if it is absent or expired.
pub fn look(row: Option<&ClaimRow>, now: Timestamp) -> Option<ClaimView> {
    let row = remembered(row, now)?;
    let expires_in = row.expires_at.since(now);
    let state = match row.phase {
        ClaimPhase::Settled => ClaimState::Settled { value: row.value.clone(), expires_in },
        ClaimPhase::Failed => ClaimState::Failed { expires_in },
        ClaimPhase::Pending if now < row.lease_end => {
            ClaimState::Pending { lease_left: row.lease_end.since(now) }
        }
        ClaimPhase::Pending => ClaimState::Unknown { since: now.since(row.lease_end), expires_in },
    };
    Some(ClaimView {
        state,
        fence: Some(row.fence),
        attempt: row.attempt,
        granted_ago: Some(now.since(row.granted_at)),
        retention: Some(row.retention),
        fingerprint: row.fingerprint.clone(),
        token: Some(row.token.clone()),
    })
}

/// The summary of a row for [`Oversight::list`](crate::Oversight::list); `None` if it has expired.
pub fn listed(key: Key, row: &ClaimRow, now: Timestamp) -> Option<ClaimSummary> {
    let status = status(row, now)?;
    Some(ClaimSummary {
        key,
        status,
        fence: row.fence,
        attempt: row.attempt,
        granted_ago: now.since(row.granted_at),
        expires_in: row.expires_at.since(now),
        label: row.token.label().map(Into::into),
    })
}

/// The status of a row; `None` if it has expired.
pub(crate) fn status(row: &ClaimRow, now: Timestamp) -> Option<ClaimStatus> {
    Some(match remembered(Some(row), now)?.phase {
        ClaimPhase::Settled => ClaimStatus::Settled,
        ClaimPhase::Failed => ClaimStatus::Failed,
        ClaimPhase::Pending if now < row.lease_end => ClaimStatus::Pending,
        ClaimPhase::Pending => ClaimStatus::Unknown,
    })
}

fn remembered(row: Option<&ClaimRow>, now: Timestamp) -> Option<&ClaimRow> {
    row.filter(|row| now < row.expires_at)
}

fn extended(row: &ClaimRow, lease: Duration, now: Timestamp) -> ClaimRow {
    let lease_end = now.plus(lease);
    ClaimRow { lease_end, expires_at: lease_end.plus(row.retention), ..row.clone() }
}
