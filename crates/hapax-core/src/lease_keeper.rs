//! Renews the leases of running commands. Most commands end long before a third of their lease has passed: those cost an
//! entry in a map and no task.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::claim_retry::{RecordRenewals, renew_until_lost};
use crate::{Claims, Key, Token, deadline_after};

/// Renews leases, each in a task of its own once a third of it has passed.
#[derive(Default)]
pub(crate) struct LeaseKeeper {
    leases: Mutex<KeptLeases>,
    /// Tells the timer task that another lease is due earlier than the one it sleeps for.
    earlier: Notify,
}

#[derive(Default)]
struct KeptLeases {
    /// Leases that are younger than a third, by the time at which they are due, and a number.
    young: BTreeMap<(Instant, u64), LeaseToRenew>,
    /// The renewal tasks of older ones, by their number.
    renewed: HashMap<u64, JoinHandle<()>>,
    last_number: u64,
    timer: Option<RenewalTimer>,
    waker: Option<WorkerWaker>,
}

/// The task that starts renewals when they are due. It ends when it wakes up and no lease is young.
struct RenewalTimer {
    runtime: runtime::Id,
    task: JoinHandle<()>,
    /// When it wakes up by itself, which may be for a lease that has ended since.
    wakes_at: Instant,
}

/// The thread that wakes an idle worker of the runtime now and then, as long as there are leases.
///
/// One worker of tokio waits for timers and sockets. When it gets a request whose handler blocks its thread, no other worker
/// waits in its place until one of them is woken: without this thread no timer of the process would fire, and no lease
/// would be renewed, although other workers are idle.
struct WorkerWaker {
    runtime: runtime::Id,
    thread: Thread,
    /// The shortest lease that was kept since it started; several wake-ups fit into what is left of it when it is due.
    shortest: Duration,
}

/// The pauses between two wake-ups are within these.
const WAKER_PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(1)];

struct LeaseToRenew {
    store: Arc<dyn Claims>,
    key: Key,
    token: Token,
    lease: Duration,
    since: Instant,
}

impl LeaseToRenew {
    async fn renew(self) {
        let Self { store, key, token, lease, since } = self;
        let record = RecordRenewals::Yes;
        renew_until_lost(&*store, &key, &token, lease, since, None, record).await;
    }
}

/// A lease that is renewed until this value is dropped.
pub(crate) struct KeptLease {
    keeper: Arc<LeaseKeeper>,
    due: Instant,
    number: u64,
}

impl LeaseKeeper {
    /// Renews the lease of a claim that was granted just now.
    pub(crate) fn keep(
        self: &Arc<Self>,
        store: Arc<dyn Claims>,
        key: Key,
        token: Token,
        lease: Duration,
    ) -> KeptLease {
        let since = Instant::now();
        let due = deadline_after(since, lease / 3);
        let kept = LeaseToRenew { store, key, token, lease, since };
        let (mut leases, runtime) = (self.lock(), Handle::current());
        leases.last_number += 1;
        let number = leases.last_number;
        match leases.timer.as_mut().filter(|timer| !timer.task.is_finished()) {
            // The timer's runtime may stand still while this one runs.
            Some(timer) if timer.runtime != runtime.id() => {
                leases.renewed.insert(number, runtime.spawn(kept.renew()));
            }
            Some(timer) => {
                if due < timer.wakes_at {
                    timer.wakes_at = due;
                    self.earlier.notify_one();
                    hand_to_another_worker(&runtime);
                }
                leases.young.insert((due, number), kept);
            }
            None => {
                leases.young.insert((due, number), kept);
                let task = runtime.spawn(self.clone().start_due_renewals());
                hand_to_another_worker(&runtime);
                leases.timer = Some(RenewalTimer { runtime: runtime.id(), task, wakes_at: due });
            }
        }
        self.start_waker(&mut leases, &runtime, lease);
        drop(leases);
        KeptLease { keeper: self.clone(), due, number }
    }

    fn start_waker(self: &Arc<Self>, leases: &mut KeptLeases, runtime: &Handle, lease: Duration) {
        match &mut leases.waker {
            Some(waker) if waker.runtime == runtime.id() => {
                if lease < waker.shortest {
                    waker.shortest = lease;
                    waker.thread.unpark();
                }
            }
            // The thread of another runtime ends by itself.
            _ => {
                let (keeper, runtime) = (Arc::downgrade(self), runtime.clone());
                let id = runtime.id();
                let thread = thread::Builder::new().name("hapax-leases".to_owned());
                match thread.spawn(move || wake_workers(&keeper, &runtime)) {
                    Ok(thread) => {
                        let thread = thread.thread().clone();
                        leases.waker = Some(WorkerWaker { runtime: id, thread, shortest: lease });
                    }
                    Err(error) => tracing::warn!(%error, "no thread that keeps timers going"),
                }
            }
        }
    }

    async fn start_due_renewals(self: Arc<Self>) {
        loop {
            let next = {
                let mut leases = self.lock();
                let now = Instant::now();
                while let Some(first) = leases.young.first_entry()
                    && first.key().0 <= now
                {
                    let ((_, number), kept) = first.remove_entry();
                    leases.renewed.insert(number, tokio::spawn(kept.renew()));
                }
                let next = leases.young.first_key_value().map(|((due, _), _)| *due);
                match (next, &mut leases.timer) {
                    (Some(due), Some(timer)) => timer.wakes_at = due,
                    // Under the lock, so that a lease that is added now starts another timer.
                    _ => return leases.timer = None,
                }
                next.unwrap_or(now)
            };
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = self.earlier.notified() => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, KeptLeases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for KeptLease {
    fn drop(&mut self) {
        let mut leases = self.keeper.lock();
        if leases.young.remove(&(self.due, self.number)).is_none()
            && let Some(renewal) = leases.renewed.remove(&self.number)
        {
            renewal.abort();
        }
    }
}

/// The thread of a [`WorkerWaker`]; it ends when no lease is left.
fn wake_workers(keeper: &Weak<LeaseKeeper>, runtime: &Handle) {
    let mut last: Option<JoinHandle<()>> = None;
    loop {
        let Some(keeper) = keeper.upgrade() else { return };
        let mut leases = keeper.lock();
        let Some(waker) = leases.waker.as_ref().filter(|waker| waker.runtime == runtime.id())
        else {
            return;
        };
        let pause = (waker.shortest / 8).clamp(WAKER_PAUSES[0], WAKER_PAUSES[1]);
        if leases.young.is_empty() && leases.renewed.is_empty() {
            return leases.waker = None;
        }
        drop(leases);
        drop(keeper);
        // A runtime that nobody drives collects one of these tasks, not many.
        if last.as_ref().is_none_or(JoinHandle::is_finished) {
            last = Some(runtime.spawn(async {}));
        }
        thread::park_timeout(pause);
    }
}

/// Makes sure that the task that was spawned or woken last can be run by another worker.
///
/// tokio keeps it for the worker that woke it (its LIFO slot), where it waits for the end of the running poll. That
/// poll may be a handler that blocks its thread for longer than the lease. A second task takes that place.
fn hand_to_another_worker(runtime: &Handle) {
    runtime.spawn(async {});
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::claims::ClaimState;
    use crate::memory::MemoryStore;
    use crate::{ClaimRequest, RuntimeClock, Tenant};

    struct Fixture {
        store: Arc<MemoryStore>,
        keeper: Arc<LeaseKeeper>,
    }

    impl Fixture {
        fn new() -> Self {
            let store = Arc::new(MemoryStore::new(Arc::new(RuntimeClock::default())));
            Self { store, keeper: Arc::default() }
        }

        async fn claim(&self, name: &str, lease: Duration) -> KeptLease {
            let key = Key::lock(&Tenant::default(), name).unwrap();
            let request = ClaimRequest::new(lease);
            let _ = self.store.claim(&key, &request).await.unwrap();
            self.keeper.keep(self.store.clone(), key, request.token, lease)
        }

        async fn is_pending(&self, name: &str) -> bool {
            let key = Key::lock(&Tenant::default(), name).unwrap();
            let view = self.store.look(&key).await.unwrap();
            view.is_some_and(|view| matches!(view.state, ClaimState::Pending { .. }))
        }

        fn tasks(&self) -> (usize, bool) {
            let leases = self.keeper.lock();
            (leases.renewed.len(), leases.timer.is_some())
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn lease_is_renewed_until_dropped() {
        let fixture = Fixture::new();
        let kept = fixture.claim("a", 30 * SECOND).await;
        tokio::time::sleep(100 * SECOND).await;
        assert!(fixture.is_pending("a").await);
        drop(kept);
        assert_eq!(fixture.tasks().0, 0);
        tokio::time::sleep(31 * SECOND).await;
        assert!(!fixture.is_pending("a").await);
    }

    #[tokio::test(start_paused = true)]
    async fn short_run_starts_no_renewal() {
        let fixture = Fixture::new();
        let kept = fixture.claim("a", 30 * SECOND).await;
        tokio::time::sleep(9 * SECOND).await;
        assert_eq!(fixture.tasks(), (0, true));
        drop(kept);
        tokio::time::sleep(2 * SECOND).await;
        assert_eq!(fixture.tasks(), (0, false), "the timer ends when nothing is left to renew");
        let _kept = fixture.claim("b", 30 * SECOND).await;
        tokio::time::sleep(100 * SECOND).await;
        assert!(fixture.is_pending("b").await, "another timer has started");
    }

    #[tokio::test(start_paused = true)]
    async fn shorter_lease_behind_a_longer_one_is_renewed_in_time() {
        let fixture = Fixture::new();
        let _long = fixture.claim("long", 300 * SECOND).await;
        // The timer sleeps for the long one when the short one comes.
        tokio::time::sleep(SECOND).await;
        let _short = fixture.claim("short", 3 * SECOND).await;
        tokio::time::sleep(20 * SECOND).await;
        assert!(fixture.is_pending("short").await);
        assert!(fixture.is_pending("long").await);
    }

    /// Keeps a lease in a task that then blocks its worker. Returns when a renewal has begun.
    async fn renew_beside_a_blocked_worker(fixture: Arc<Fixture>) {
        let (unblock, blocked) = mpsc::channel::<()>();
        let claiming = fixture.clone();
        let task = tokio::spawn(async move {
            let _kept = claiming.claim("blocked", SECOND / 10).await;
            let _ = blocked.recv();
        });
        let bound = std::time::Instant::now() + 60 * SECOND;
        while fixture.tasks().0 == 0 {
            assert!(std::time::Instant::now() < bound, "nothing renews the lease");
            tokio::time::sleep(SECOND / 100).await;
        }
        drop(unblock);
        task.await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn handler_that_blocks_its_thread_keeps_its_lease() {
        renew_beside_a_blocked_worker(Arc::new(Fixture::new())).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn handler_that_blocks_its_thread_keeps_a_shorter_lease() {
        let fixture = Arc::new(Fixture::new());
        let _long = fixture.claim("long", 3000 * SECOND).await;
        renew_beside_a_blocked_worker(fixture).await;
    }

    #[test]
    fn worker_that_blocks_instead_of_waiting_for_timers_stops_no_renewal() {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let fixture = runtime.block_on(async { Arc::new(Fixture::new()) });
        let claiming = fixture.clone();
        let claiming = runtime.spawn(async move { claiming.claim("kept", SECOND).await });
        let (unblock, blocked) = mpsc::channel::<()>();
        // The worker that waits for timers runs this when the time has passed, and blocks.
        runtime.spawn(async move {
            tokio::time::sleep(SECOND / 20).await;
            let _ = blocked.recv();
        });
        let bound = std::time::Instant::now() + 60 * SECOND;
        while fixture.tasks().0 == 0 {
            assert!(std::time::Instant::now() < bound, "nothing renews the lease");
            thread::sleep(SECOND / 100);
        }
        drop(unblock);
        drop(runtime.block_on(claiming));
    }

    #[test]
    fn lease_is_renewed_on_the_runtime_of_its_caller() {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().start_paused(true).build().unwrap()
        };
        let (standing, running) = (runtime(), runtime());
        let fixture = running.block_on(async { Fixture::new() });
        let _first = standing.block_on(fixture.claim("first", 30 * SECOND));
        // The timer belongs to a runtime that nobody drives any more.
        running.block_on(async {
            let _second = fixture.claim("second", 30 * SECOND).await;
            tokio::time::sleep(100 * SECOND).await;
            assert!(fixture.is_pending("second").await);
        });
    }

    #[test]
    fn lease_of_an_ended_runtime_does_not_stop_later_ones() {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().start_paused(true).build().unwrap()
        };
        let ended = runtime();
        let fixture = ended.block_on(async { Fixture::new() });
        let _first = ended.block_on(fixture.claim("first", 30 * SECOND));
        drop(ended);
        runtime().block_on(async {
            let _second = fixture.claim("second", 30 * SECOND).await;
            tokio::time::sleep(SECOND).await;
            assert_eq!(fixture.tasks(), (0, true));
            tokio::time::sleep(15 * SECOND).await;
            assert!(fixture.tasks().0 >= 1);
        });
    }
}
