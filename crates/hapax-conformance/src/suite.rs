use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::Store;
use tokio::sync::Semaphore;

use crate::context::LawContext;
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
    let mut laws: Vec<_> = [records::LAWS, oversight::LAWS, lost_answers::LAWS].concat();
    laws.extend(claims::laws());
    laws.extend(log::laws());
    laws.extend(queue::laws());
    if make().await.lossy().await.is_none() {
        report_skipped(lost_answers::LAWS.len());
    }
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT));
    let mut running = Vec::new();
    for (name, law) in laws.clone() {
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
    assert!(broken.is_empty(), "{} of {} laws broken: {broken:?}", broken.len(), laws.len());
}

#[expect(
    clippy::print_stderr,
    reason = "a test that did not run must not look like one that passed"
)]
fn report_skipped(laws: usize) {
    eprintln!("{laws} laws about lost answers did not run: the store has no lossy connection");
}

/// The number of rounds of a loop or a property test, scaled by `HAPAX_TEST_SCALE` (1 by default).
pub fn scale(count: u32) -> u32 {
    let scale = std::env::var("HAPAX_TEST_SCALE").ok().and_then(|s| s.parse::<f64>().ok());
    ((f64::from(count) * scale.unwrap_or(1.0)) as u32).max(1)
}
