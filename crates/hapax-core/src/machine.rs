//! The laws of [`Claims`](crate::Claims) as pure functions over one row, for stores that can read a
//! row, decide, and write it in one atomic step (or write it only if it is still what was read).
//!
//! A store that does so needs no logic of its own; see [`memory`](crate::memory) for a whole one.

use std::time::Duration;

use bytes::Bytes;

use crate::claims::{Claimed, Fence, GiveBack, OnUnknown, State, Step, Ticket, View};
use crate::{Ask, Fingerprint, Key, Listed, Standing, Timestamp, Token};

/// Everything that is stored about one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Where it stands.
    pub phase: Phase,
    /// The fence of the last grant.
    pub fence: Fence,
    /// How many times it was granted.
    pub attempt: u32,
    /// The secret of the last grant.
    pub token: Token,
    /// What it is about.
    pub fingerprint: Option<Fingerprint>,
    /// When it was last granted.
    pub granted_at: Timestamp,
    /// When the owner stops being believed alive.
    pub lease_end: Timestamp,
    /// How long the outcome is remembered.
    pub retention: Duration,
    /// When the row is forgotten: from then on it is as if it were not there.
    pub expires_at: Timestamp,
    /// What it was settled with; empty before.
    pub value: Bytes,
}

/// The stored half of a claim's state; whether a pending one is unknown depends on the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Granted, and nothing heard since.
    Pending,
    /// Settled.
    Settled,
    /// Given back as failed.
    Failed,
}

impl Phase {
    /// A stable number to store.
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

/// What a claim comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Answer this; write nothing.
    Answer(Claimed),
    /// Write a new grant with a fresh fence and this attempt.
    Grant {
        /// The attempt it will be.
        attempt: u32,
    },
    /// The asker owns it already: write the row with the lease anew.
    Regrant(Row),
}

/// Decides a claim on what is stored now.
pub fn claim(row: Option<&Row>, ask: &Ask, now: Timestamp) -> Decision {
    let Some(row) = remembered(row, now) else {
        return Decision::Grant { attempt: 1 };
    };
    if row.fingerprint != ask.fingerprint {
        return Decision::Answer(Claimed::Mismatch);
    }
    match row.phase {
        Phase::Settled => Decision::Answer(Claimed::Settled {
            value: row.value.clone(),
            expires_in: row.expires_at.since(now),
        }),
        Phase::Failed => Decision::Grant { attempt: row.attempt.saturating_add(1) },
        Phase::Pending if row.token == ask.token => {
            Decision::Regrant(extended(row, ask.lease, now))
        }
        Phase::Pending if now < row.lease_end => {
            Decision::Answer(Claimed::Busy { lease_left: row.lease_end.since(now) })
        }
        Phase::Pending => match ask.on_unknown {
            OnUnknown::TakeOver => Decision::Grant { attempt: row.attempt.saturating_add(1) },
            OnUnknown::Refuse => {
                Decision::Answer(Claimed::Unknown { since: now.since(row.lease_end) })
            }
        },
    }
}

/// The row of a new grant.
pub fn granted(ask: &Ask, fence: Fence, attempt: u32, now: Timestamp) -> Row {
    let lease_end = now.plus(ask.lease);
    Row {
        phase: Phase::Pending,
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

impl Row {
    /// The answer that its owner gets.
    pub fn grant(&self) -> Claimed {
        Claimed::Granted {
            ticket: Ticket { token: self.token.clone(), fence: self.fence },
            attempt: self.attempt,
        }
    }
}

/// What an extend, settle or give-back comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Answer this; write nothing.
    Nothing(Step),
    /// Write this row, then answer [`Step::Done`] with its fence.
    Write(Row),
    /// Delete the row, then answer [`Step::Done`] with this fence.
    Delete(Fence),
}

/// Decides an extend.
pub fn extend(row: Option<&Row>, token: &Token, lease: Duration, now: Timestamp) -> Change {
    match owned(row, token, now) {
        Some(row) if row.phase == Phase::Pending => Change::Write(extended(row, lease, now)),
        _ => Change::Nothing(Step::Lost),
    }
}

/// Decides a settle.
pub fn settle(row: Option<&Row>, token: &Token, value: &Bytes, now: Timestamp) -> Change {
    match owned(row, token, now) {
        Some(row) if row.phase == Phase::Pending => Change::Write(Row {
            phase: Phase::Settled,
            expires_at: now.plus(row.retention),
            value: value.clone(),
            ..row.clone()
        }),
        Some(row) if row.phase == Phase::Settled && row.value == *value => {
            Change::Nothing(Step::Done(row.fence))
        }
        _ => Change::Nothing(Step::Lost),
    }
}

/// Decides a give-back.
pub fn give_back(row: Option<&Row>, token: &Token, how: GiveBack, now: Timestamp) -> Change {
    let Some(row) = owned(row, token, now) else {
        return Change::Nothing(Step::Lost);
    };
    match (row.phase, how) {
        (Phase::Pending, GiveBack::Forget) => Change::Delete(row.fence),
        (Phase::Pending, GiveBack::Keep) => Change::Write(Row {
            phase: Phase::Failed,
            expires_at: now.plus(row.retention),
            ..row.clone()
        }),
        (Phase::Failed, GiveBack::Keep) => Change::Nothing(Step::Done(row.fence)),
        _ => Change::Nothing(Step::Lost),
    }
}

/// What a look shows.
pub fn look(row: Option<&Row>, now: Timestamp) -> Option<View> {
    let row = remembered(row, now)?;
    let expires_in = row.expires_at.since(now);
    let state = match row.phase {
        Phase::Settled => State::Settled { value: row.value.clone(), expires_in },
        Phase::Failed => State::Failed { expires_in },
        Phase::Pending if now < row.lease_end => {
            State::Pending { lease_left: row.lease_end.since(now) }
        }
        Phase::Pending => State::Unknown { since: now.since(row.lease_end), expires_in },
    };
    Some(View {
        state,
        fence: Some(row.fence),
        attempt: row.attempt,
        granted_ago: Some(now.since(row.granted_at)),
        fingerprint: row.fingerprint.clone(),
        token: Some(row.token.clone()),
    })
}

/// What a list shows of a row.
pub fn listed(key: Key, row: &Row, now: Timestamp) -> Option<Listed> {
    let row = remembered(Some(row), now)?;
    let standing = match row.phase {
        Phase::Settled => Standing::Settled,
        Phase::Failed => Standing::Failed,
        Phase::Pending if now < row.lease_end => Standing::Pending,
        Phase::Pending => Standing::Unknown,
    };
    Some(Listed {
        key,
        standing,
        fence: row.fence,
        attempt: row.attempt,
        granted_ago: now.since(row.granted_at),
        expires_in: row.expires_at.since(now),
    })
}

fn remembered(row: Option<&Row>, now: Timestamp) -> Option<&Row> {
    row.filter(|row| now < row.expires_at)
}

fn owned<'a>(row: Option<&'a Row>, token: &Token, now: Timestamp) -> Option<&'a Row> {
    remembered(row, now).filter(|row| row.token == *token)
}

fn extended(row: &Row, lease: Duration, now: Timestamp) -> Row {
    let lease_end = now.plus(lease);
    Row { lease_end, expires_at: lease_end.plus(row.retention), ..row.clone() }
}
