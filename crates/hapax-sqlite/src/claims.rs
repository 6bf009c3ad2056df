//! `Claims` on SQLite: the decisions are `machine`'s, the rows are here.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::claim_rules::{self, ClaimChange, ClaimDecision, ClaimRow};
use hapax_core::{
    ClaimRequest, ClaimView, Claimed, Claims, Clock, Fence, GiveBack, Key, Step, StoreError,
    Timestamp, Token, Watch, with_timeout,
};
use rusqlite::Connection;

use crate::tx::lock::{lock, try_lock};
use crate::{SqliteStore, row};

#[async_trait]
impl Claims for SqliteStore {
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> Result<Claimed, StoreError> {
        // Two threads, one time limit.
        with_timeout(self.0.config.limit, self.ask(key, ask)).await
    }

    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> Result<Step, StoreError> {
        let (clock, key, token) = (self.clock(), key.clone(), token.clone());
        self.write(0, Vec::new(), move |c| extend(c, &*clock, &key, &token, lease)).await
    }

    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> Result<Step, StoreError> {
        let (size, wakes) = (value.len(), vec![key.digest()]);
        let (clock, key, token) = (self.clock(), key.clone(), token.clone());
        self.write(size, wakes, move |c| settle(c, &*clock, &key, &token, &value)).await
    }

    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> Result<Step, StoreError> {
        let wakes = vec![key.digest()];
        let (clock, key, token) = (self.clock(), key.clone(), token.clone());
        self.write(0, wakes, move |c| give_back(c, &*clock, &key, &token, how)).await
    }

    async fn look(&self, key: &Key) -> Result<Option<ClaimView>, StoreError> {
        let (clock, key) = (self.clock(), key.clone());
        self.read(move |c| look(c, &*clock, &key)).await
    }

    fn watch(&self, key: &Key) -> Watch {
        self.register(key)
    }
}

impl SqliteStore {
    /// What a reader can answer, it answers, even while others hold the write lock; the writer
    /// decides the rest anew.
    async fn ask(&self, key: &Key, ask: &ClaimRequest) -> Result<Claimed, StoreError> {
        let (clock, key_, ask_) = (self.clock(), key.clone(), ask.clone());
        let known = self.read(move |c| glance(c, &*clock, &key_, &ask_)).await?;
        if let Some(answer) = known {
            return Ok(answer);
        }
        let (clock, key, ask) = (self.clock(), key.clone(), ask.clone());
        self.write(0, Vec::new(), move |c| claim(c, &*clock, &key, &ask)).await
    }
}

/// What is told as `lease_left` by somebody else's open transaction, which has no lease.
const OPEN_TRANSACTION: Duration = Duration::from_millis(50);

/// Asks for the claim. Never waits for another transaction: where somebody else holds the write
/// lock, or wrote since your transaction began to read, the answer is [`Claimed::Busy`].
///
/// (It sets the connection's busy timeout to zero meanwhile and restores it; a busy *handler*
/// of your own would be lost, so take the lock with `BEGIN IMMEDIATE` if you have one.)
pub fn claim(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    ask: &ClaimRequest,
) -> Result<Claimed, StoreError> {
    if !try_lock(connection)? {
        return Ok(Claimed::Busy { lease_left: OPEN_TRANSACTION });
    }
    let now = clock.now();
    let row = match claim_rules::claim(row::read(connection, key)?.as_ref(), ask, now) {
        ClaimDecision::Answer(answer) => return Ok(answer),
        ClaimDecision::Grant { attempt } => {
            claim_rules::granted(ask, Fence(row::next(connection)?), attempt, now)
        }
        ClaimDecision::Regrant(row) => row,
    };
    row::write(connection, key, &row)?;
    Ok(row.grant())
}

/// The answer to a claim where it can be given without writing.
pub(crate) fn glance(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    ask: &ClaimRequest,
) -> Result<Option<Claimed>, StoreError> {
    // The time first: read the other way round, a lease that was extended in between would look
    // as if it had run out.
    let now = clock.now();
    match claim_rules::claim(row::read(connection, key)?.as_ref(), ask, now) {
        ClaimDecision::Answer(answer) => Ok(Some(answer)),
        ClaimDecision::Grant { .. } | ClaimDecision::Regrant(_) => Ok(None),
    }
}

/// Makes the lease of a pending claim end `lease` from now.
pub fn extend(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    token: &Token,
    lease: Duration,
) -> Result<Step, StoreError> {
    step(connection, clock, key, |row, now| claim_rules::extend(row, token, lease, now))
}

/// Settles a pending claim with `value`.
pub fn settle(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    token: &Token,
    value: &Bytes,
) -> Result<Step, StoreError> {
    step(connection, clock, key, |row, now| claim_rules::settle(row, token, value, now))
}

/// Gives a pending claim back.
pub fn give_back(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    token: &Token,
    how: GiveBack,
) -> Result<Step, StoreError> {
    step(connection, clock, key, |row, now| claim_rules::give_back(row, token, how, now))
}

/// What is known about a claim, as your transaction sees it.
pub fn look(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
) -> Result<Option<ClaimView>, StoreError> {
    let now = clock.now();
    Ok(claim_rules::look(row::read(connection, key)?.as_ref(), now))
}

/// The three steps of an owner differ only in what `machine` decides.
fn step(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    decide: impl FnOnce(Option<&ClaimRow>, Timestamp) -> ClaimChange,
) -> Result<Step, StoreError> {
    lock(connection)?;
    match decide(row::read(connection, key)?.as_ref(), clock.now()) {
        ClaimChange::Nothing(step) => Ok(step),
        ClaimChange::Write(row) => {
            row::write(connection, key, &row)?;
            Ok(Step::Done(row.fence))
        }
        ClaimChange::Delete(fence) => {
            row::delete(connection, key)?;
            Ok(Step::Done(fence))
        }
    }
}
