//! A tenant that makes few calls, one after the other: how long they take tells whether others are served.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use tokio::task::JoinSet;

use super::caller::{CallEnd, CallKind, LoadCaller};

const REST: Duration = Duration::from_millis(5);
/// The calls that are timed.
pub(crate) const QUIET_KINDS: [CallKind; 3] =
    [CallKind::Lock, CallKind::Command, CallKind::Proxied];

/// One call of the quiet tenant.
struct QuietCall {
    kind: CallKind,
    began: Instant,
    took: Duration,
    end: CallEnd,
}

/// The times of all calls of a kind in a span.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallTimes {
    pub(crate) calls: usize,
    pub(crate) not_served: usize,
    pub(crate) median: Duration,
    pub(crate) p99: Duration,
}

/// The times of each kind in [`QUIET_KINDS`].
pub(crate) type QuietTimes = [CallTimes; QUIET_KINDS.len()];

/// The tenant's callers, in a thread of their own.
pub(crate) struct QuietTenant {
    calls: Arc<Mutex<Vec<QuietCall>>>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Vec<String>)>,
}

impl QuietTenant {
    /// Begins to call. Each kind has a caller for each node.
    pub(crate) fn start(nodes: &[String], proxy: &str, token: &str) -> anyhow::Result<Self> {
        let (calls, over) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicBool>::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut callers = Vec::new();
        for (number, node) in nodes.iter().enumerate() {
            for kind in QUIET_KINDS {
                let address = if kind == CallKind::Proxied { proxy } else { node };
                let prefix = format!("quiet-{kind:?}-{number}");
                callers.push((kind, LoadCaller::new(address, token, prefix, None)));
            }
        }
        let (made, ends) = (calls.clone(), over.clone());
        let thread = thread::spawn(move || runtime.block_on(call_and_verify(callers, made, ends)));
        Ok(Self { calls, over, thread })
    }

    /// The times of the calls that began in this span and have ended.
    pub(crate) fn times(&self, from: Instant, to: Instant) -> QuietTimes {
        let calls = lock(&self.calls);
        QUIET_KINDS.map(|kind| {
            let in_span =
                calls.iter().filter(|call| call.kind == kind && (from..to).contains(&call.began));
            let not_served = in_span.clone().filter(|call| call.end != CallEnd::Served).count();
            let mut times: Vec<Duration> = in_span.map(|call| call.took).collect();
            times.sort_unstable();
            let rank = |share: f64| {
                let at = (times.len() as f64 * share) as usize;
                times.get(at.min(times.len().saturating_sub(1))).copied().unwrap_or_default()
            };
            CallTimes { calls: times.len(), not_served, median: rank(0.5), p99: rank(0.99) }
        })
    }

    /// Ends the calls and asks again for everything that was acknowledged: its number, and what was lost.
    pub(crate) fn verify(self) -> anyhow::Result<(u64, Vec<String>)> {
        self.over.store(true, Ordering::SeqCst);
        self.thread.join().map_err(|_| anyhow!("the quiet tenant's thread ended"))
    }
}

async fn call_and_verify(
    callers: Vec<(CallKind, LoadCaller)>,
    calls: Arc<Mutex<Vec<QuietCall>>>,
    over: Arc<AtomicBool>,
) -> (u64, Vec<String>) {
    let mut tasks = JoinSet::new();
    for (kind, mut caller) in callers {
        let (calls, over) = (calls.clone(), over.clone());
        tasks.spawn(async move {
            while !over.load(Ordering::SeqCst) {
                let began = Instant::now();
                let end = caller.call(kind).await;
                lock(&calls).push(QuietCall { kind, began, took: began.elapsed(), end });
                tokio::time::sleep(REST).await;
            }
            let acknowledged = std::mem::take(&mut caller.acknowledged);
            let mut lost = Vec::new();
            for write in &acknowledged {
                lost.extend(caller.ask_again(write).await);
            }
            (acknowledged.len() as u64, lost)
        });
    }
    let ended = tasks.join_all().await;
    let count = ended.iter().map(|(count, _)| count).sum();
    (count, ended.into_iter().flat_map(|(_, lost)| lost).collect())
}

fn lock(calls: &Mutex<Vec<QuietCall>>) -> MutexGuard<'_, Vec<QuietCall>> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}
