//! Failovers that lose what was acknowledged: the loss is counted, and what holds nevertheless is demanded.

use std::collections::HashMap;

use hapax_torture::history::{
    CallOutcome, CommandAnswer, HistoryEntry, LogPosition, Observation, SeenFrame,
};
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

/// Few steps for each command, so that a history has many of them.
const STEPS_PER_COMMAND: usize = 40;

/// The last grant of a command, and its answer.
#[derive(Clone, Default)]
struct CommandRow {
    attempt: u64,
    /// A token, which no other begin has.
    owner: Option<u64>,
    lease_until: u64,
    answer: Option<String>,
}

/// Commands on a store that forgets their last grant or answer now and then.
struct CommandModel {
    bug: FailoverBug,
    /// The command of the moment, and what a failover goes back to.
    row: CommandRow,
    before: CommandRow,
    fence: u64,
    /// The key, the attempt and the token of what each client runs.
    running: HashMap<u32, (String, u64, u64)>,
    steps: usize,
    tokens: u64,
}

impl CommandModel {
    fn fail_over(&mut self) {
        self.row = self.before.clone();
        match self.bug {
            FailoverBug::FenceGoesBack => self.fence = self.fence.saturating_sub(3),
            FailoverBug::SameFenceTwice => self.fence = self.fence.saturating_sub(1),
            _ => {}
        }
    }

    fn begin(&mut self, client: u32, key: String, moment: &mut Moment) -> Observation {
        let rerun = moment.random.one_in(2);
        let outcome = if let Some(answer) = self.row.answer.clone() {
            CallOutcome::Done(CommandAnswer::Replayed(answer))
        } else if self.row.owner.is_some() && moment.now < self.row.lease_until {
            refused("in-progress")
        } else if self.row.owner.is_some() && !rerun {
            refused("outcome-unknown")
        } else {
            self.before = self.row.clone();
            self.fence += 1;
            self.tokens += 1;
            self.row.attempt += 1;
            self.row.owner = Some(self.tokens);
            self.row.lease_until = moment.now + TTL_MS * 1000;
            CallOutcome::Done(CommandAnswer::Granted {
                attempt: self.row.attempt,
                fence: self.fence,
            })
        };
        let outcome = moment.heard(outcome);
        if let Some(CommandAnswer::Granted { attempt, .. }) = outcome.done() {
            self.running.insert(client, (key.clone(), *attempt, self.tokens));
        }
        let fingerprint = "same".to_owned();
        Observation::CommandBegin { key, fingerprint, rerun, lease_ms: TTL_MS, outcome }
    }
}

impl Model for CommandModel {
    fn step(&mut self, client: u32, moment: &mut Moment) -> Option<Observation> {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_COMMAND) {
            (self.row, self.before) = Default::default();
        }
        if moment.random.one_in(20) {
            self.fail_over();
        }
        let Some((key, attempt, token)) = self.running.remove(&client) else {
            let key = format!("k{}", self.steps / STEPS_PER_COMMAND);
            return Some(self.begin(client, key, moment));
        };
        // Some owners disappear.
        if moment.random.one_in(4) {
            return None;
        }
        let body = format!("answer {token}");
        let mine = self.row.owner == Some(token) && self.row.answer.is_none();
        if mine {
            self.before = self.row.clone();
            self.row.answer = Some(body.clone());
        }
        let outcome = if mine { CallOutcome::Done(()) } else { refused("claim-lost") };
        let outcome = moment.heard(outcome);
        Some(Observation::CommandComplete { key, attempt, body, outcome })
    }
}

fn commands(bug: FailoverBug, seed: u64) -> Vec<HistoryEntry> {
    let (row, before, running) = Default::default();
    let mut model = CommandModel { bug, row, before, fence: 10, running, steps: 0, tokens: 0 };
    simulate(&mut model, 5, 4000, seed)
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
    for make in [locks, commands, events] {
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
    for (bug, complaint) in [
        (FailoverBug::FenceGoesBack, "the fence went back"),
        (FailoverBug::SameFenceTwice, "granted twice"),
    ] {
        for (workload, make) in [("locks", locks as fn(_, _) -> _), ("commands", commands)] {
            finds(&format!("{workload}: {bug:?}"), complaint, |seed| {
                on(StoreKind::RedisCluster, make(bug, seed))
            });
        }
    }
    for (bug, complaint) in [
        (FailoverBug::SilentLoss, "acknowledged"),
        (FailoverBug::ChangedEvent, "are two events"),
        (FailoverBug::GapAndSkippedEvent, "never got"),
    ] {
        finds(&format!("{bug:?}"), complaint, |seed| {
            on(StoreKind::RedisCluster, events(bug, seed))
        });
    }
}
