//! Renews the leases of running commands. Most commands end long before a third of their lease has passed: those cost an
//! entry in a map and no task.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// The task that starts renewals when they are due, and its runtime. It ends when no lease is young.
    timer: Option<(runtime::Id, JoinHandle<()>)>,
}

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
        let timer = leases.timer.as_ref().filter(|(_, task)| !task.is_finished());
        match timer.map(|(id, _)| *id) {
            // The timer's runtime may stand still while this one runs.
            Some(id) if id != runtime.id() => {
                leases.renewed.insert(number, runtime.spawn(kept.renew()));
            }
            timer => {
                let is_first =
                    leases.young.first_key_value().is_none_or(|(first, _)| due < first.0);
                leases.young.insert((due, number), kept);
                if timer.is_none() {
                    let task = runtime.spawn(self.clone().start_due_renewals());
                    leases.timer = Some((runtime.id(), task));
                } else if is_first {
                    self.earlier.notify_one();
                }
            }
        }
        drop(leases);
        KeptLease { keeper: self.clone(), due, number }
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
                match leases.young.first_key_value() {
                    Some(((due, _), _)) => *due,
                    // Under the lock, so that a lease that is added now starts another timer.
                    None => return leases.timer = None,
                }
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

#[cfg(test)]
mod tests {
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
