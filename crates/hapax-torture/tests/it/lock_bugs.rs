//! Planted bugs of locks.

use std::collections::HashMap;

use hapax_torture::check_history;
use hapax_torture::history::{CallOutcome, HistoryEntry, Observation};

use crate::simulation::{Model, Moment, accepts, finds, refused, simulate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockBug {
    None,
    ReleaseWithoutCompare,
    RenewWithoutCompare,
    FenceGoesBack,
    SameFenceTwice,
    LeaseTooShort,
    GrantForgotten,
    ResourceTakesAnything,
}

const TTL_MS: u64 = 150;

struct LockModel {
    bug: LockBug,
    owner: Option<(u32, u64, u64)>,
    fence: u64,
    largest: u64,
    held: HashMap<u32, u64>,
}

impl LockModel {
    fn is_owner(&self, client: u32, fence: u64, now: u64) -> bool {
        self.owner.is_some_and(|(who, own, until)| (who, own) == (client, fence) && now < until)
    }

    fn take(&mut self, client: u32, moment: &mut Moment) -> Observation {
        let (key, ttl_ms, now) = ("k".to_owned(), TTL_MS, moment.now);
        if self.owner.is_some_and(|(_, _, until)| now < until) {
            let outcome = moment.heard(refused("lock-held"));
            return Observation::LockTake { key, ttl_ms, outcome };
        }
        self.fence += u64::from(self.bug != LockBug::SameFenceTwice);
        let back = self.bug == LockBug::FenceGoesBack && moment.random.one_in(5);
        let fence = if back { self.fence.saturating_sub(3).max(1) } else { self.fence };
        let lease = if self.bug == LockBug::LeaseTooShort { TTL_MS / 4 } else { TTL_MS };
        self.owner = Some((client, fence, now + lease * 1000));
        let outcome = moment.heard(CallOutcome::Done(fence));
        if outcome.done().is_some() {
            self.held.insert(client, fence);
        }
        Observation::LockTake { key, ttl_ms, outcome }
    }
}

impl Model for LockModel {
    fn step(&mut self, client: u32, moment: &mut Moment) -> Option<Observation> {
        let (key, now) = ("k".to_owned(), moment.now);
        if self.bug == LockBug::GrantForgotten && moment.random.one_in(8) {
            self.owner = None;
        }
        let Some(fence) = self.held.get(&client).copied() else {
            return Some(self.take(client, moment));
        };
        match moment.random.below(12) {
            0..3 => {
                let free = self.bug == LockBug::RenewWithoutCompare;
                let mine = self.is_owner(client, fence, now) || free && self.owner.is_some();
                if mine {
                    self.owner = Some((client, fence, now + TTL_MS * 1000));
                }
                let outcome = if mine { CallOutcome::Done(()) } else { refused("lock-lost") };
                let outcome = moment.heard(outcome);
                Some(Observation::LockRenew { key, fence, ttl_ms: TTL_MS, outcome })
            }
            3..5 => {
                self.held.remove(&client);
                let free = self.bug == LockBug::ReleaseWithoutCompare;
                let mine = self.is_owner(client, fence, now) || free && self.owner.is_some();
                if mine {
                    self.owner = None;
                }
                let outcome = if mine { CallOutcome::Done(()) } else { refused("lock-lost") };
                Some(Observation::LockRelease { key, fence, outcome: moment.heard(outcome) })
            }
            5..9 => {
                let anything = self.bug == LockBug::ResourceTakesAnything;
                let accepted = anything || fence >= self.largest;
                self.largest = self.largest.max(fence);
                Some(Observation::FencedWrite { key, fence, accepted })
            }
            _ => None,
        }
    }
}

fn history(bug: LockBug, seed: u64) -> Vec<HistoryEntry> {
    let held = HashMap::new();
    let mut model = LockModel { bug, owner: None, fence: 1, largest: 0, held };
    simulate(&mut model, 5, 1500, seed)
}

#[test]
fn torture_checker_accepts_right_locks() {
    accepts(|seed| history(LockBug::None, seed));
}

#[test]
fn torture_checker_finds_planted_lock_bugs() {
    for (bug, complaint) in [
        (LockBug::ReleaseWithoutCompare, "released the lock"),
        (LockBug::RenewWithoutCompare, "renewed the lock"),
        (LockBug::FenceGoesBack, "the fence went back"),
        (LockBug::SameFenceTwice, "granted twice"),
        (LockBug::LeaseTooShort, "while client"),
        (LockBug::GrantForgotten, "before its TTL"),
        (LockBug::ResourceTakesAnything, "the resource took"),
    ] {
        finds(&format!("{bug:?}"), complaint, |seed| history(bug, seed));
    }
}

/// The first owner takes the lock for a second, and makes these renewals, each with when it was sent and answered, its TTL, and
/// whether its end is known. A second owner gets the lock at 350 ms.
fn two_owners_and_renewals(renewals: &[(u64, u64, u64, bool)]) -> Vec<HistoryEntry> {
    let key = || "k".to_owned();
    let entry = |from: u64, to: u64, client, what| HistoryEntry {
        from: from * 1000,
        to: to * 1000,
        client,
        what,
    };
    let take = |fence| {
        let outcome = CallOutcome::Done(fence);
        Observation::LockTake { key: key(), ttl_ms: 1000, outcome }
    };
    let renewals = renewals.iter().map(|&(from, to, ttl_ms, is_known)| {
        let unknown = CallOutcome::Unknown("cut".to_owned());
        let outcome = if is_known { CallOutcome::Done(()) } else { unknown };
        entry(from, to, 1, Observation::LockRenew { key: key(), fence: 1, ttl_ms, outcome })
    });
    let mut history = vec![entry(0, 5, 1, take(1)), entry(340, 350, 2, take(2))];
    history.extend(renewals);
    history
}

#[test]
fn torture_checker_accepts_shortening_renewal_answered_late() {
    let found = |renewals| check_history(&two_owners_and_renewals(renewals));
    assert_eq!(found(&[(20, 1700, 250, true)]), []);
    assert_eq!(found(&[(20, 1700, 1000, true)]).len(), 1);
    // The first one may be done after the second one.
    assert_eq!(found(&[(20, 30, 250, false), (40, 50, 1000, true)]), []);
    assert_eq!(found(&[(20, 30, 250, true), (40, 50, 1000, true)]).len(), 1);
}
