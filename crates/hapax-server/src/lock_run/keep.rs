//! Keeping the lock alive.

use std::time::Duration;

use tokio::time::Instant;

use super::door::{Door, Refusal, Ticket};

/// Renews a lock for as long as it is ours.
pub(super) struct Keeper<'a> {
    pub(super) door: &'a Door,
    pub(super) ticket: &'a Ticket,
    pub(super) ttl: Duration,
    pub(super) grace: Duration,
}

impl Keeper<'_> {
    /// Renews it every third of its TTL, and returns when it is lost or must be given up for lost:
    /// the moment at which the work has to be over.
    ///
    /// Where renewals get no answer, that moment is the end of the last confirmed lease, and this
    /// returns while there is still time to end the work gently.
    pub(super) async fn until_lost(&self, asked_at: Instant) -> Instant {
        let third = self.ttl / 3;
        // Every moment is measured from before the call that it belongs to, so that we never
        // believe in the lock for longer than its store does.
        let mut alive_until = asked_at + self.ttl;
        let mut next = asked_at + third;
        loop {
            tokio::time::sleep_until(next).await;
            let now = Instant::now();
            let give_up_at = alive_until - third.min(self.grace);
            let left = give_up_at.saturating_duration_since(now);
            if left.is_zero() {
                return alive_until;
            }
            match self.door.renew(self.ticket, self.ttl, left).await {
                Ok(()) => {
                    alive_until = now + self.ttl;
                    next = now + third;
                }
                Err(Refusal::Lost(_)) => return Instant::now() + self.grace,
                // Soon again, but not in a hot loop: the server may be restarting.
                Err(_) => next = (Instant::now() + third / 8).min(give_up_at),
            }
        }
    }
}
