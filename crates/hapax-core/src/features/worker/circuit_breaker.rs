//! Decides whether a failed item or its target is to blame, and stops sending to a target that takes
//! nothing.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::Backoff;
use crate::deadline_after;
use crate::queue::ItemId;

/// Beyond this many failed items their marks are forgotten, which costs each one more uncounted try.
const MAX_MARKS: usize = 4096;

/// Whether the target of a worker takes items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetHealth {
    /// The target takes items, as far as is known.
    Up,
    /// The target takes nothing, and why.
    Down(Cow<'static, str>),
}

impl TargetHealth {
    /// The health of a target that nobody has asked yet.
    pub const NOT_CHECKED: Self = Self::Down(Cow::Borrowed("it was not checked yet"));
}

/// To whom a failure is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The item: the target took another one since this item's last failure. Counts as an attempt.
    Item,
    /// The target: it took nothing since. Does not count; the item waits for so long, so that the next
    /// item to try is another one.
    Target(Duration),
}

/// A failure that may be due to the item or to the target: the target answered that it takes nothing
/// now, or did not answer.
#[derive(Clone, Debug)]
pub struct DoubtfulFailure {
    /// The reason, for operators.
    pub reason: Cow<'static, str>,
    /// Whether the item can have caused the failure at all.
    pub may_be_item: bool,
    /// The shortest wait that the target asked for.
    pub retry_after: Duration,
}

/// A send that has begun, as [`CircuitBreaker::begin`] returned it.
#[derive(Clone, Copy, Debug)]
pub struct BegunSend {
    id: ItemId,
    taken: u64,
    failures: u64,
}

/// The circuit between a worker and its target: a sink, or a bot.
///
/// ```text
///            a failure that is the target's               the pause is over, the check passed
///   closed ─────────────────────────────────► open ◄───────────────────────────────► half-open
///     ▲                                              a failure                           │
///     └──────────────────────────────────────────────────────────────────────────────────┘
///                              the target answered
/// ```
///
/// Closed: items are sent. Open: nothing is sent. Half-open: one item tries.
///
/// A doubtful failure is blamed on the item only if the target took another item since the item's own
/// last failure (or since this send began) and since the last failure that was the target's.
pub struct CircuitBreaker {
    backoff: Backoff,
    state: Mutex<BreakerState>,
    health: watch::Sender<TargetHealth>,
    on_change: Box<dyn Fn(&TargetHealth) + Send + Sync>,
}

#[derive(Default)]
struct BreakerState {
    /// How many items the target took since the start.
    taken: u64,
    /// How many failures were the target's since the start.
    failures: u64,
    /// How often the target failed since its last answer: one outage that ends many sends is one
    /// failure.
    failures_in_a_row: u32,
    is_half_open: bool,
    /// Whether a send has failed, so that a passed check does not prove that items are taken.
    has_send_failed: bool,
    /// `taken` at each item's last doubtful failure.
    marks: HashMap<ItemId, u64>,
    /// `taken` at the last failure that was the target's.
    target_mark: u64,
    /// When the last item that was handed back is due again.
    retry_due: Option<Instant>,
}

impl CircuitBreaker {
    /// A circuit with this health at the start and these pauses between two tries. `on_change` is called
    /// when the health changes, and must not call the circuit.
    pub fn new(
        health: TargetHealth,
        backoff: Backoff,
        on_change: impl Fn(&TargetHealth) + Send + Sync + 'static,
    ) -> Self {
        let (state, health) = (Mutex::default(), watch::Sender::new(health));
        Self { backoff, state, health, on_change: Box::new(on_change) }
    }

    /// The health of the target, to be read and waited for.
    pub fn health(&self) -> watch::Receiver<TargetHealth> {
        self.health.subscribe()
    }

    /// Why nothing may be sent now; `None` where the circuit is closed or half-open.
    pub fn reason_not_to_send(&self) -> Option<Cow<'static, str>> {
        if self.is_half_open() {
            return None;
        }
        match &*self.health.borrow() {
            TargetHealth::Up => None,
            TargetHealth::Down(reason) => Some(reason.clone()),
        }
    }

    /// Whether one item tries, to find out whether the target takes items again.
    pub fn is_half_open(&self) -> bool {
        self.state().is_half_open
    }

    /// Whether the target has failed and not answered since: items are sent one at a time.
    pub fn is_doubted(&self) -> bool {
        self.state().failures_in_a_row > 0
    }

    /// How long to wait before the next try; zero where nothing has failed.
    pub fn pause(&self) -> Duration {
        match self.state().failures_in_a_row {
            0 => Duration::ZERO,
            failures => self.backoff.after(failures),
        }
    }

    /// Records that a send begins.
    pub fn begin(&self, id: ItemId) -> BegunSend {
        let state = self.state();
        BegunSend { id, taken: state.taken, failures: state.failures }
    }

    /// Records that the target took the item.
    pub fn taken(&self, send: &BegunSend) {
        let mut state = self.state();
        state.taken += 1;
        state.marks.remove(&send.id);
        self.close(state);
    }

    /// Records an answer about this item alone, such as a refusal: the target works.
    pub fn answered(&self, send: &BegunSend) {
        let mut state = self.state();
        state.marks.remove(&send.id);
        self.close(state);
    }

    /// Records a failure that may be the item's or the target's, and decides.
    pub fn failed(&self, send: &BegunSend, failure: DoubtfulFailure) -> Blame {
        let mut state = self.state();
        let since = state.mark(send.id).unwrap_or(send.taken).max(state.target_mark);
        if failure.may_be_item && state.taken > since {
            return Blame::Item;
        }
        Blame::Target(self.open(state, send, failure.reason, failure.retry_after))
    }

    /// Records that the target cannot be reached; how long the item waits.
    pub fn away(&self, send: &BegunSend, reason: Cow<'static, str>) -> Duration {
        self.open(self.state(), send, reason, Duration::ZERO)
    }

    /// Records that a check found the target down.
    pub fn check_failed(&self, reason: Cow<'static, str>) {
        let mut state = self.state();
        state.failures_in_a_row = state.failures_in_a_row.saturating_add(1);
        self.set_health(&state, TargetHealth::Down(reason));
    }

    /// Records that the pause is over and a check, if there is one, found the target up: half-open after
    /// a failed send, otherwise closed.
    pub fn check_passed(&self) {
        let mut state = self.state();
        state.is_half_open = state.has_send_failed;
        if !state.is_half_open {
            self.set_health(&state, TargetHealth::Up);
        }
    }

    /// Records that there was no item to try. Closes the circuit where the last item that failed is
    /// longer due than `margin`: it went elsewhere, and the target would be down until the next item.
    pub fn found_nothing(&self, margin: Duration) {
        let state = self.state();
        let waited = |due: Instant| Instant::now().saturating_duration_since(due);
        let is_gone = state.retry_due.is_some_and(|due| waited(due) > margin);
        if state.is_half_open && is_gone {
            self.close(state);
        }
    }

    fn close(&self, mut state: MutexGuard<'_, BreakerState>) {
        state.failures_in_a_row = 0;
        state.is_half_open = false;
        state.has_send_failed = false;
        state.retry_due = None;
        self.set_health(&state, TargetHealth::Up);
    }

    /// Opens the circuit; how long the item waits.
    fn open(
        &self,
        mut state: MutexGuard<'_, BreakerState>,
        send: &BegunSend,
        reason: Cow<'static, str>,
        at_least: Duration,
    ) -> Duration {
        // Sends that began before the first failure ended belong to the same outage.
        if state.failures == send.failures {
            state.failures_in_a_row = state.failures_in_a_row.saturating_add(1);
        }
        state.failures += 1;
        state.target_mark = state.taken;
        state.is_half_open = false;
        state.has_send_failed = true;
        let wait = self.backoff.after(state.failures_in_a_row).saturating_mul(2).max(at_least);
        state.retry_due = state.retry_due.max(Some(deadline_after(Instant::now(), wait)));
        self.set_health(&state, TargetHealth::Down(reason));
        wait
    }

    /// Sets the health while the state is locked, so that both change together and in order.
    fn set_health(&self, _locked: &MutexGuard<'_, BreakerState>, health: TargetHealth) {
        self.health.send_if_modified(|now| {
            let is_new = *now != health;
            if is_new {
                *now = health;
                (self.on_change)(now);
            }
            is_new
        });
    }

    fn state(&self) -> MutexGuard<'_, BreakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BreakerState {
    /// Marks the item's failure; the mark of its last one.
    fn mark(&mut self, id: ItemId) -> Option<u64> {
        if self.marks.len() >= MAX_MARKS {
            self.marks.clear();
        }
        self.marks.insert(id, self.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> CircuitBreaker {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        CircuitBreaker::new(TargetHealth::Up, backoff, |_| {})
    }

    fn rejection(reason: &'static str) -> DoubtfulFailure {
        DoubtfulFailure { reason: reason.into(), may_be_item: true, retry_after: Duration::ZERO }
    }

    fn is_items(breaker: &CircuitBreaker, id: ItemId) -> bool {
        breaker.failed(&breaker.begin(id), rejection("503")) == Blame::Item
    }

    fn take(breaker: &CircuitBreaker) {
        breaker.taken(&breaker.begin(ItemId::fresh()));
    }

    #[tokio::test(start_paused = true)]
    async fn breaker_blames_an_item_only_if_another_was_taken_since() {
        let (breaker, poison) = (breaker(), ItemId::fresh());
        assert!(!is_items(&breaker, poison));
        assert!(!is_items(&breaker, poison));
        take(&breaker);
        assert!(is_items(&breaker, poison));
        assert!(!is_items(&breaker, poison), "nothing was taken since");
    }

    /// An item that failed in an earlier outage must not be blamed for the next one.
    #[tokio::test(start_paused = true)]
    async fn breaker_forgets_earlier_outages() {
        let (breaker, early, other) = (breaker(), ItemId::fresh(), ItemId::fresh());
        assert!(!is_items(&breaker, early));
        take(&breaker);
        assert!(!is_items(&breaker, other), "the next outage");
        assert!(!is_items(&breaker, early));
    }

    #[tokio::test(start_paused = true)]
    async fn breaker_is_half_open_after_a_failed_send_until_an_answer() {
        let breaker = breaker();
        breaker.check_failed("refused".into());
        assert!(breaker.reason_not_to_send().is_some());
        breaker.check_passed();
        assert_eq!(*breaker.health().borrow(), TargetHealth::Up, "no send has failed");
        let sends = [(); 3].map(|()| breaker.begin(ItemId::fresh()));
        for send in &sends {
            breaker.failed(send, rejection("503"));
        }
        assert!(breaker.pause() <= Duration::from_secs(2), "three sends, one outage");
        assert_eq!(breaker.reason_not_to_send().as_deref(), Some("503"));
        breaker.check_passed();
        assert_eq!((breaker.reason_not_to_send(), breaker.is_half_open()), (None, true));
        assert_eq!(*breaker.health().borrow(), TargetHealth::Down("503".into()));
        breaker.answered(&sends[0]);
        assert_eq!(*breaker.health().borrow(), TargetHealth::Up);
        assert_eq!((breaker.is_half_open(), breaker.pause()), (false, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn breaker_closes_when_the_failed_item_went_elsewhere() {
        let (breaker, margin) = (breaker(), Duration::from_secs(5));
        let Blame::Target(wait) = breaker.failed(&breaker.begin(ItemId::fresh()), rejection("503"))
        else {
            panic!()
        };
        breaker.check_passed();
        tokio::time::advance(wait + margin).await;
        breaker.found_nothing(margin);
        assert!(breaker.is_half_open());
        tokio::time::advance(Duration::from_millis(1)).await;
        breaker.found_nothing(margin);
        assert_eq!(*breaker.health().borrow(), TargetHealth::Up);
    }
}
