use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::Store;
use tokio::sync::Semaphore;

use crate::clock_steps::{self, WallClock};
use crate::context::LawContext;
use crate::log::FailoverStore;
use crate::lost_answers::LossyStore;
use crate::{claims, log, lost_answers, oversight, queue, records};

/// A store to be checked, and its clock.
#[async_trait]
pub trait StoreUnderTest: Send + Sync + 'static {
    /// Opens a new handle on the same data, as another process or a restarted one would. A store
    /// without persistence (memory) returns the same handle again.
    async fn open(&self) -> Arc<dyn Store>;

    /// Whether only one law at a time uses the data, so that the law can tell how many rows a sweep has to
    /// delete. No by default, and for stores that expire data by themselves.
    fn is_private(&self) -> bool {
        false
    }

    /// Advances the store's clock. The default sleeps, for a store that uses the real time.
    async fn advance(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Opens a handle over a connection that can lose answers. The laws about lost answers run only
    /// on a store that has one; a store without a connection (SQLite) has none.
    async fn lossy(&self) -> Option<LossyStore> {
        None
    }

    /// The clock that the store reads, if the test can set it. The laws about a clock that goes back run
    /// only then: PostgreSQL and Redis read the clock of their server's machine, which no test may set.
    /// Where it steps, their leases and retentions step with it, which `hapax serve` reports.
    fn wall_clock(&self) -> Option<Arc<dyn WallClock>> {
        None
    }

    /// Opens a store, which no other law uses, on a server that can lose acknowledged writes. The laws about
    /// epochs run only on a store that has one; SQLite has no replica that it could fail over to.
    async fn failover(&self) -> Option<FailoverStore> {
        None
    }
}

pub(crate) type Law = (&'static str, fn(LawContext) -> Pin<Box<dyn Future<Output = ()> + Send>>);

/// Collects functions into the list of laws of their module. A law gets its context; after `key kind;`
/// also a key of this kind; after `TestQueue::new;` what this function makes of the context.
macro_rules! laws {
    (key $kind:ident; $($law:ident),* $(,)?) => {
        crate::suite::laws! { @list context $($law(context.clone(), context.$kind("k")))* }
    };
    ($make:path; $($law:ident),* $(,)?) => {
        crate::suite::laws! { @list context $($law($make(context)))* }
    };
    ($($law:ident),* $(,)?) => {
        crate::suite::laws! { @list context $($law(context))* }
    };
    (@list $context:ident $($law:ident($($argument:expr),*))*) => {
        pub(crate) const LAWS: &[crate::suite::Law] =
            &[$((stringify!($law), |$context| Box::pin($law($($argument),*)))),*];
    };
}
pub(crate) use laws;

/// How many laws run at once, so that a server needs fewer connections than there are laws.
const MAX_CONCURRENT: usize = 48;

/// Runs all laws concurrently, each on a store of its own and with its own keys.
///
/// # Panics
/// If laws are broken, with their names.
pub async fn check<F, S>(make: F)
where
    F: Fn() -> S,
    S: Future<Output = Arc<dyn StoreUnderTest>>,
{
    let subject = make().await;
    if subject.lossy().await.is_none() {
        report_skipped(lost_answers::LAWS, "the store has no lossy connection");
    }
    if subject.wall_clock().is_none() {
        report_skipped(clock_steps::LAWS, "the test cannot set the store's clock");
    }
    if subject.failover().await.is_none() {
        report_skipped(log::FAILOVER_LAWS, "the store has no server that loses writes");
    }
    run(all_laws(), make).await;
}

/// Runs the laws with these names alone: for a store that has passed [`check`] and for which only they are
/// another question in another setting.
///
/// # Panics
/// If laws are broken, with their names, and if there is no law with one of the names.
pub async fn check_only<F, S>(names: &[&str], make: F)
where
    F: Fn() -> S,
    S: Future<Output = Arc<dyn StoreUnderTest>>,
{
    let mut laws = all_laws();
    for name in names {
        assert!(laws.iter().any(|(law, _)| law == name), "there is no law {name}");
    }
    laws.retain(|(law, _)| names.contains(law));
    run(laws, make).await;
}

fn all_laws() -> Vec<Law> {
    let mut laws: Vec<_> =
        [records::LAWS, oversight::LAWS, lost_answers::LAWS, clock_steps::LAWS].concat();
    laws.extend(claims::laws());
    laws.extend(log::laws());
    laws.extend(queue::laws());
    laws
}

async fn run<F, S>(laws: Vec<Law>, make: F)
where
    F: Fn() -> S,
    S: Future<Output = Arc<dyn StoreUnderTest>>,
{
    let count = laws.len();
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT));
    let mut running = Vec::new();
    for (name, law) in laws {
        let permit = permits.clone().acquire_owned().await;
        let subject = make().await;
        let law = async move {
            let _permit = permit;
            law(LawContext::new(subject).await).await;
        };
        running.push((name, tokio::spawn(law)));
    }
    let mut broken = Vec::new();
    for (name, law) in running {
        if law.await.is_err() {
            broken.push(name);
        }
    }
    assert!(broken.is_empty(), "{} of {count} laws broken: {broken:?}", broken.len());
}

#[expect(
    clippy::print_stderr,
    reason = "a test that did not run must not look like one that passed"
)]
fn report_skipped(laws: &[Law], reason: &str) {
    let names: Vec<_> = laws.iter().map(|(name, _)| *name).collect();
    eprintln!("not checked, because {reason}: {}", names.join(", "));
}

/// The number of rounds of a loop or a property test, scaled by `HAPAX_TEST_SCALE` (1 by default).
pub fn scale(count: u32) -> u32 {
    let scale = std::env::var("HAPAX_TEST_SCALE").ok().and_then(|s| s.parse::<f64>().ok());
    ((f64::from(count) * scale.unwrap_or(1.0)) as u32).max(1)
}
