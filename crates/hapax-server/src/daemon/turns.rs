//! A number of turns, for which tenants wait in rotation.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hapax::Tenant;
use tokio::sync::oneshot;

/// So many may have a turn at once. The others wait: the tenants one after the other, and those of one tenant in the order in
/// which they came.
pub(super) struct Turns(Mutex<TurnState>);

struct TurnState {
    free: usize,
    /// The tenants that wait, in the order in which they are next.
    rotation: VecDeque<Tenant>,
    waiting: HashMap<Tenant, VecDeque<oneshot::Sender<Turn>>>,
}

/// The right to go on. The next one gets it when it is dropped.
pub(super) struct Turn {
    turns: Arc<Turns>,
    /// Whether it was offered to one who had left; then the offer goes to another.
    is_refused: bool,
}

impl Turns {
    pub(super) fn new(at_once: usize) -> Arc<Self> {
        let state = TurnState { free: at_once, rotation: VecDeque::new(), waiting: HashMap::new() };
        Arc::new(Self(Mutex::new(state)))
    }

    /// A turn, if one is free.
    pub(super) fn try_take(self: &Arc<Self>) -> Option<Turn> {
        let mut state = self.state();
        state.free = state.free.checked_sub(1)?;
        Some(self.turn())
    }

    /// Waits for a turn of this tenant.
    pub(super) async fn take(self: &Arc<Self>, tenant: &Tenant) -> Turn {
        let offer = {
            let mut state = self.state();
            if state.free > 0 {
                state.free -= 1;
                return self.turn();
            }
            state.wait(tenant)
        };
        // A sender stays where it waits until it has sent.
        offer.await.unwrap_or_else(|_| self.turn())
    }

    fn next(&self) -> Option<oneshot::Sender<Turn>> {
        self.state().next()
    }

    fn turn(self: &Arc<Self>) -> Turn {
        Turn { turns: self.clone(), is_refused: false }
    }

    fn state(&self) -> MutexGuard<'_, TurnState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TurnState {
    fn wait(&mut self, tenant: &Tenant) -> oneshot::Receiver<Turn> {
        let (sender, receiver) = oneshot::channel();
        let waiting = self.waiting.entry(tenant.clone()).or_default();
        if waiting.is_empty() {
            self.rotation.push_back(tenant.clone());
        }
        waiting.push_back(sender);
        receiver
    }

    /// The next one who waits; a turn is free where nobody does.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let Some(tenant) = self.rotation.pop_front() else {
            self.free += 1;
            return None;
        };
        let waiting = self.waiting.get_mut(&tenant)?;
        let next = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&tenant);
        } else {
            self.rotation.push_back(tenant);
        }
        next
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_refused {
            return;
        }
        while let Some(next) = self.turns.next() {
            match next.send(self.turns.turn()) {
                Ok(()) => return,
                Err(mut turn) => turn.is_refused = true,
            }
        }
    }
}
