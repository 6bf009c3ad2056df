use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::Store;
use tokio::sync::Semaphore;

use crate::scene::Scene;
use crate::{claims, log, oversight, queue, records};

/// The store under test, and its time.
#[async_trait]
pub trait Subject: Send + Sync + 'static {
    /// A new handle on the same data, as another process or a restarted one would open it. Where
    /// nothing outlives the handle (memory), the same one again.
    async fn open(&self) -> Arc<dyn Store>;

    /// Lets `time` pass on the store's clock. A store with a clock of its own really waits.
    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

pub(crate) type Law = (&'static str, fn(Scene) -> Pin<Box<dyn Future<Output = ()> + Send>>);

/// Makes the list of laws from the functions that state them.
macro_rules! laws {
    ($($law:ident),* $(,)?) => {
        pub(crate) const LAWS: &[crate::subject::Law] =
            &[$((stringify!($law), |scene| Box::pin($law(scene)))),*];
    };
}
pub(crate) use laws;

/// How many laws run at once: a server need not have a connection for each of them.
const AT_ONCE: usize = 48;

/// Runs every law on a subject of its own, many side by side, each with keys of its own.
///
/// # Panics
/// Where a law is broken, with the name of each one.
pub async fn check<F, S>(make: F)
where
    F: Fn() -> S,
    S: Future<Output = Arc<dyn Subject>>,
{
    let mut laws: Vec<_> = [claims::LAWS, records::LAWS, oversight::LAWS].concat();
    laws.extend(log::laws());
    laws.extend(queue::laws());
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = Vec::new();
    for (name, law) in laws.clone() {
        let place = places.clone().acquire_owned().await;
        let subject = make().await;
        let law = async move {
            let _place = place;
            law(Scene::new(subject).await).await;
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

/// How much of a loop or of a property test to run: `HAPAX_TEST_SCALE`, 1 by default.
pub fn scale(count: u32) -> u32 {
    let scale = std::env::var("HAPAX_TEST_SCALE").ok().and_then(|s| s.parse::<f64>().ok());
    ((f64::from(count) * scale.unwrap_or(1.0)) as u32).max(1)
}
