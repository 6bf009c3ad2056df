//! Failovers that lose what was acknowledged: the loss is counted, and what holds nevertheless is demanded.

use std::collections::HashMap;

use hapax_torture::history::{CallOutcome, HistoryEntry, LogPosition, Observation, SeenFrame};
use hapax_torture::{StoreKind, check_history, count_losses};

use crate::simulation::{Model, Moment, SEEDS, accepts, finds, refused, simulate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailoverBug {
    None,
    FenceGoesBack,
    SameFenceTwice,
    SilentLoss,
    ChangedEvent,
    GapAndSkippedEvent,
}

/// The same history as one of a run on this store.
fn on(store: StoreKind, mut history: Vec<HistoryEntry>) -> Vec<HistoryEntry> {
    let what = Observation::RunOn { store: store.name().to_owned(), seed: None };
    history.insert(0, HistoryEntry { from: 0, to: 0, client: 0, what });
    history
}

const TTL_MS: u64 = 150;

/// One lock on a store that forgets its last grant now and then.
struct LockModel {
    bug: FailoverBug,
    owner: Option<(u32, u64, u64)>,
    fence: u64,
    held: HashMap<u32, u64>,
}

impl Model for LockModel {
    fn step(&mut self, client: u32, moment: &mut Moment) -> Option<Observation> {
        let (key, now) = ("k".to_owned(), moment.now);
        if moment.random.one_in(40) {
            self.owner = None;
            match self.bug {
                FailoverBug::FenceGoesBack => self.fence = self.fence.saturating_sub(3),
                FailoverBug::SameFenceTwice => self.fence = self.fence.saturating_sub(1),
                _ => {}
            }
        }
        if let Some(fence) = self.held.remove(&client) {
            let mine = self
                .owner
                .is_some_and(|(who, own, until)| (who, own) == (client, fence) && now < until);
            if mine {
                self.owner = None;
            }
            let outcome = if mine { CallOutcome::Done(()) } else { refused("lock-lost") };
            return Some(Observation::LockRelease { key, fence, outcome: moment.heard(outcome) });
        }
        if self.owner.is_some_and(|(_, _, until)| now < until) {
            let outcome = moment.heard(refused("lock-held"));
            return Some(Observation::LockTake { key, ttl_ms: TTL_MS, outcome });
        }
        self.fence += 1;
        self.owner = Some((client, self.fence, now + TTL_MS * 1000));
        let outcome = moment.heard(CallOutcome::Done(self.fence));
        if outcome.done().is_some() {
            self.held.insert(client, self.fence);
        }
        Some(Observation::LockTake { key, ttl_ms: TTL_MS, outcome })
    }
}

fn locks(bug: FailoverBug, seed: u64) -> Vec<HistoryEntry> {
    let mut model = LockModel { bug, owner: None, fence: 10, held: HashMap::new() };
    simulate(&mut model, 5, 1500, seed)
}

const PUBLISHERS: u32 = 3;
const FOLLOWERS: u32 = 4;

/// A job on a store that forgets its last events now and then, and goes on under another epoch.
struct EventModel {
    bug: FailoverBug,
    /// The events with the epoch of each.
    log: Vec<(u64, LogPosition)>,
    epoch: u64,
    /// Where an epoch began after a loss.
    losses: Vec<LogPosition>,
    followers: HashMap<u32, LogPosition>,
    /// Followers that were told of a gap, and get the snapshot next.
    told: HashMap<u32, LogPosition>,
}

impl EventModel {
    fn fail_over(&mut self, moment: &mut Moment) {
        let lost = 1 + moment.random.below(3) as usize;
        self.log.truncate(self.log.len().saturating_sub(lost).max(1));
        if self.bug != FailoverBug::ChangedEvent {
            self.epoch += 1;
            let offset = self.log.len() as u64 + 1;
            self.losses.retain(|loss| loss.offset < offset);
            self.losses.push(LogPosition { epoch: self.epoch, offset });
        }
    }

    fn publish(&mut self, moment: &mut Moment) -> Observation {
        let seq = 1 + moment.random.below(60);
        let known = self.log.iter().find(|(event, _)| *event == seq).map(|(_, at)| *at);
        let at = known.unwrap_or_else(|| {
            let at = LogPosition { epoch: self.epoch, offset: self.log.len() as u64 + 1 };
            self.log.push((seq, at));
            at
        });
        let outcome = moment.heard(CallOutcome::Done(at));
        Observation::Publish { job: "j".to_owned(), stage: "s".to_owned(), seq, outcome }
    }

    fn frame(&mut self, client: u32) -> Option<SeenFrame> {
        if let Some(at) = self.told.remove(&client) {
            self.followers.insert(client, at);
            return Some(SeenFrame::Snapshot(at));
        }
        let last = self.followers.get(&client).copied();
        let next = last.map_or(1, |last| last.offset + 1);
        // The first place after a loss that this follower has not been told of.
        let known = last.map_or(0, |last| last.epoch);
        let loss = self.losses.iter().find(|loss| loss.epoch > known && last.is_some());
        if let Some(loss) = loss.copied()
            && (next >= loss.offset || self.bug == FailoverBug::GapAndSkippedEvent)
            && self.bug != FailoverBug::SilentLoss
            && self.log.len() as u64 >= loss.offset
        {
            let at = LogPosition { epoch: loss.epoch, offset: loss.offset - 1 };
            self.told.insert(client, at);
            return Some(SeenFrame::Gap);
        }
        if self.bug == FailoverBug::SilentLoss
            && let Some(loss) = loss.copied()
            && next > loss.offset
            && self.log.len() as u64 >= loss.offset
        {
            // It goes on as if nothing had happened.
            let at = LogPosition { epoch: loss.epoch, offset: next - 1 };
            self.followers.insert(client, at);
        }
        let (seq, at) = *self.log.get(next as usize - 1)?;
        self.followers.insert(client, at);
        Some(SeenFrame::Event("s".to_owned(), seq, at))
    }
}

impl Model for EventModel {
    fn step(&mut self, client: u32, moment: &mut Moment) -> Option<Observation> {
        if client < PUBLISHERS {
            if self.log.len() > 3 && moment.random.one_in(40) {
                self.fail_over(moment);
            }
            return moment.random.one_in(3).then(|| self.publish(moment));
        }
        // Some leave between the gap and its snapshot, and are told again when they come back.
        let is_cut = moment.random.one_in(4) && self.told.remove(&client).is_some();
        let frame = if is_cut { SeenFrame::CutBehindGap } else { self.frame(client)? };
        Some(Observation::Followed { job: "j".to_owned(), frame })
    }

    fn finish(&mut self, _moment: &mut Moment) -> Vec<(u32, Observation)> {
        let job = || "j".to_owned();
        // The event that ends the job, for which nobody waits in vain.
        let at = LogPosition { epoch: self.epoch, offset: self.log.len() as u64 + 1 };
        self.log.push((1000, at));
        let (stage, outcome) = ("s".to_owned(), CallOutcome::Done(at));
        let mut rest = vec![(0, Observation::Publish { job: job(), stage, seq: 1000, outcome })];
        for client in PUBLISHERS..PUBLISHERS + FOLLOWERS {
            while let Some(frame) = self.frame(client) {
                rest.push((client, Observation::Followed { job: job(), frame }));
            }
            rest.push((client, Observation::Followed { job: job(), frame: SeenFrame::End }));
        }
        rest
    }
}

fn events(bug: FailoverBug, seed: u64) -> Vec<HistoryEntry> {
    let mut model = EventModel {
        bug,
        log: Vec::new(),
        epoch: 7,
        losses: Vec::new(),
        followers: HashMap::new(),
        told: HashMap::new(),
    };
    simulate(&mut model, PUBLISHERS + FOLLOWERS, 600, seed)
}

#[test]
fn torture_checker_counts_what_failovers_lose() {
    for make in [locks, events] {
        let lossy = |seed| on(StoreKind::RedisSentinel, make(FailoverBug::None, seed));
        accepts(lossy);
        let counted = (0..SEEDS).filter(|seed| !count_losses(&lossy(*seed)).is_empty());
        assert!(counted.count() as u64 > SEEDS / 2, "losses are counted");
        // The same history is wrong where nothing may be lost, and nothing is counted there.
        for store in [StoreKind::Redis, StoreKind::PostgresStandby] {
            let strict = |seed| on(store, make(FailoverBug::None, seed));
            let found = (0..SEEDS).filter(|seed| !check_history(&strict(*seed)).is_empty());
            assert!(found.count() as u64 > SEEDS / 2, "{}", store.name());
            assert!((0..SEEDS).all(|seed| count_losses(&strict(seed)).is_empty()));
        }
    }
}

#[test]
fn torture_checker_finds_planted_failover_bugs() {
    let make = |bug: FailoverBug, seed| {
        let is_lock = matches!(bug, FailoverBug::FenceGoesBack | FailoverBug::SameFenceTwice);
        let history = if is_lock { locks(bug, seed) } else { events(bug, seed) };
        on(StoreKind::RedisCluster, history)
    };
    for (bug, complaint) in [
        (FailoverBug::FenceGoesBack, "the fence went back"),
        (FailoverBug::SameFenceTwice, "granted twice"),
        (FailoverBug::SilentLoss, "acknowledged"),
        (FailoverBug::ChangedEvent, "are two events"),
        (FailoverBug::GapAndSkippedEvent, "never got"),
    ] {
        finds(&format!("{bug:?}"), complaint, |seed| make(bug, seed));
    }
}
