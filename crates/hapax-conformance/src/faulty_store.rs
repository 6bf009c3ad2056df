use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::wrapped_store::{StorePart, StoreWrapper, WrappedStore};
use hapax_core::{Key, Store, StoreError, StoreResult, Watch};

/// The fault of one store call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// The request is lost: the call is not executed, and the caller gets an error.
    LostQuestion,
    /// The reply is lost: the call is executed, and the caller gets an error.
    LostAnswer,
    /// The call is executed, and the caller never gets a reply.
    NoAnswer,
    /// The call is executed twice, and the caller gets the second reply.
    Twice,
    /// The call is executed after this delay.
    Stall(Duration),
    /// The stored value cannot be read: the call is not executed.
    Corrupt,
}

/// Injects faults into the calls of another store: each call gets the next planned [`Fault`], or
/// that of [`FaultInjector::always`] if none is planned.
///
/// ```
/// # use std::sync::Arc;
/// use hapax_conformance::{Fault, FaultyStore};
/// use hapax_core::{memory::MemoryStore, ClaimRequest, Claimed, Claims, Key, Tenant};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = FaultyStore::new(Arc::new(MemoryStore::default()));
/// let key = Key::lock(&Tenant::default(), "k")?;
/// let ask = ClaimRequest::new(std::time::Duration::from_secs(5));
/// store.plan([Fault::LostAnswer]);
/// assert!(store.claim(&key, &ask).await.is_err());
/// // The claim was executed: repeated with the same token, it is the same grant.
/// assert!(matches!(store.claim(&key, &ask).await?, Claimed::Granted { attempt: 1, .. }));
/// # Ok(()) }
/// ```
pub type FaultyStore = WrappedStore<FaultInjector>;

/// The wrapper inside a [`FaultyStore`].
#[derive(Clone)]
pub struct FaultInjector {
    store: Arc<dyn Store>,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Default)]
struct Plan {
    next: VecDeque<Fault>,
    always: Option<Fault>,
    only: Option<StorePart>,
    hints_suppressed: bool,
    calls: u64,
}

impl From<Arc<dyn Store>> for FaultInjector {
    /// No fault is planned yet.
    fn from(store: Arc<dyn Store>) -> Self {
        Self { store, plan: Arc::default() }
    }
}

impl FaultInjector {
    /// Plans the faults of the next calls, one each.
    pub fn plan(&self, faults: impl IntoIterator<Item = Fault>) {
        self.locked(|plan| plan.next.extend(faults));
    }

    /// Sets the fault of every call without a planned one; `None` ends it.
    pub fn always(&self, fault: Option<Fault>) {
        self.locked(|plan| plan.always = fault);
    }

    /// Restricts faults to the calls of this part; `None` allows all.
    pub fn only(&self, part: Option<StorePart>) {
        self.locked(|plan| plan.only = part);
    }

    /// Suppresses all further wake-ups of jobs' listeners.
    pub fn suppress_hints(&self) {
        self.locked(|plan| plan.hints_suppressed = true);
    }

    /// The number of calls so far.
    pub fn calls(&self) -> u64 {
        self.locked(|plan| plan.calls)
    }

    fn locked<T>(&self, act: impl FnOnce(&mut Plan) -> T) -> T {
        act(&mut self.plan.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl StoreWrapper for FaultInjector {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn call<T, F, C>(&self, part: StorePart, call: C) -> StoreResult<T>
    where
        T: Send,
        F: Future<Output = StoreResult<T>> + Send,
        C: Fn() -> F + Send + Sync,
    {
        let fault = self.locked(|plan| {
            plan.calls += 1;
            if plan.only.is_some_and(|only| only != part) {
                return Fault::None;
            }
            plan.next.pop_front().or(plan.always).unwrap_or(Fault::None)
        });
        let lost = |what: &str| StoreError::Unavailable { reason: what.into(), source: None };
        match fault {
            Fault::None => call().await,
            Fault::LostQuestion => Err(lost("the request was lost")),
            Fault::LostAnswer => {
                call().await?;
                Err(lost("the reply was lost"))
            }
            Fault::NoAnswer => {
                call().await?;
                std::future::pending().await
            }
            Fault::Twice => {
                call().await?;
                call().await
            }
            Fault::Stall(time) => {
                tokio::time::sleep(time).await;
                call().await
            }
            Fault::Corrupt => Err(StoreError::Corrupt { reason: "damaged".into() }),
        }
    }
    fn listen(&self, job: &Key) -> Watch {
        match self.locked(|plan| plan.hints_suppressed) {
            true => Watch::never(),
            false => self.store.listen(job),
        }
    }
}
