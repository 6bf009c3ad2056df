//! Clients whose calls overlap, in simulated time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use hapax_torture::history::{CallOutcome, HistoryEntry, Observation};
use hapax_torture::{SeededRandom, check_history};

/// Seeds that every model is run with.
pub(crate) const SEEDS: u64 = 30;

/// Every planted bug is found within this time, with all seeds; a slow machine takes a few seconds.
const FIND_TIMEOUT: Duration = Duration::from_secs(120);

/// A feature with clients: in each step a client's call takes effect.
pub(crate) trait Model {
    /// The client's call takes effect now; what it records. `None` if it does nothing this time.
    fn step(&mut self, client: u32, simulation: &mut Moment) -> Option<Observation>;

    /// What is recorded at the end.
    fn finish(&mut self, _simulation: &mut Moment) -> Vec<(u32, Observation)> {
        Vec::new()
    }
}

/// The present of the simulation.
pub(crate) struct Moment {
    pub(crate) now: u64,
    pub(crate) random: SeededRandom,
}

impl Moment {
    /// The answer as its client heard it: some answers are lost.
    pub(crate) fn heard<T>(&mut self, outcome: CallOutcome<T>) -> CallOutcome<T> {
        if self.random.one_in(12) { CallOutcome::Unknown("cut".to_owned()) } else { outcome }
    }
}

pub(crate) fn refused<T>(code: &str) -> CallOutcome<T> {
    CallOutcome::Refused(code.to_owned())
}

/// Lets clients make calls that overlap, in the order in which they take effect.
pub(crate) fn simulate(
    model: &mut impl Model,
    clients: u32,
    steps: usize,
    seed: u64,
) -> Vec<HistoryEntry> {
    let mut moment = Moment { now: 0, random: SeededRandom::new(seed, 7) };
    let mut history = Vec::new();
    let mut calls = BinaryHeap::new();
    for client in 0..clients {
        calls.push(Reverse((1 + moment.random.below(2000), client, 0)));
    }
    for _ in 0..steps {
        let Some(Reverse((effect, client, from))) = calls.pop() else { break };
        moment.now = effect;
        let to = effect + 1 + moment.random.below(800);
        if let Some(what) = model.step(client, &mut moment) {
            let (from, to) = if is_instant(&what) { (effect, effect) } else { (from, to) };
            history.push(HistoryEntry { from, to, client, what });
        }
        // Some clients pause beyond their lease.
        let pause = if moment.random.one_in(12) { 300_000 } else { 4000 };
        let next = to + 1 + moment.random.below(pause);
        calls.push(Reverse((next + 1 + moment.random.below(800), client, next)));
    }
    moment.now += 10_000_000;
    for (client, what) in model.finish(&mut moment) {
        moment.now += 1;
        history.push(HistoryEntry { from: moment.now, to: moment.now, client, what });
    }
    history
}

/// Whether it is seen at one moment, without a network in between.
fn is_instant(what: &Observation) -> bool {
    matches!(
        what,
        Observation::FencedWrite { .. }
            | Observation::CommandEffect { .. }
            | Observation::Followed { .. }
            | Observation::Delivery { .. }
            | Observation::LineHandled { .. }
    )
}

/// Fails unless right histories are accepted, with every seed.
pub(crate) fn accepts(make: impl Fn(u64) -> Vec<HistoryEntry>) {
    for seed in 0..4 * SEEDS {
        let wrong = check_history(&make(seed));
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
    }
}

/// Fails unless the bug is found in time with this complaint in most of the histories: in some its moment does not come.
#[track_caller]
pub(crate) fn finds(bug: &str, complaint: &str, make: impl Fn(u64) -> Vec<HistoryEntry>) {
    let began = Instant::now();
    let found = (0..SEEDS).filter(|seed| {
        check_history(&make(*seed)).iter().any(|violation| violation.what.contains(complaint))
    });
    let found = found.count() as u64;
    assert!(found > SEEDS / 2, "{bug}: found with {found} of {SEEDS} seeds");
    let time = began.elapsed();
    assert!(time < FIND_TIMEOUT, "{bug}: found after {time:?}");
}
