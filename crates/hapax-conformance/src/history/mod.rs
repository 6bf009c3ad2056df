//! Random histories: the same steps run on a store and on a model that is written independently of
//! it.
//!
//! Real time cannot be stopped, so every duration in a history is either `LONG` (longer than the
//! test) or brief (over before the next step, but not before its own step has ended). On a busy
//! machine a step may take longer than a brief duration. A history that fails after such a step
//! proves nothing, and runs again with longer brief durations.

mod claims;
mod concurrent;
mod log;
mod queue;

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::context::{LONG, LawContext};
use crate::{StoreUnderTest, scale};

/// A model, and the store that it is compared with.
trait Model: Sized {
    type Step: Clone + Debug;

    async fn new(context: LawContext, times: HistoryTimes) -> Result<Self, TestCaseError>;

    /// Runs one step on the store and on the model, and compares the results.
    async fn step(&mut self, step: Self::Step) -> Result<(), TestCaseError>;

    /// Expires everything with a brief duration in the model. Returns whether there was any.
    fn expire_brief(&mut self) -> bool;

    /// Compares what can be seen after the last step.
    async fn finish(&mut self) -> Result<(), TestCaseError>;
}

/// The durations of one history.
#[derive(Clone, Copy)]
struct HistoryTimes {
    brief: Duration,
}

impl HistoryTimes {
    /// The brief durations that a history runs with first.
    const FIRST_BRIEF: Duration = Duration::from_millis(5);
    /// The longest brief durations. A history that fails with them is reported in any case.
    const MAX_BRIEF: Duration = Duration::from_secs(10);

    fn time(self, brief: bool) -> Duration {
        if brief { self.brief } else { LONG }
    }
}

macro_rules! expect_equal {
    ($left:expr, $right:expr) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            return Err(TestCaseError::fail(format!("store: {left:?}, model: {right:?}")));
        }
    }};
}
use expect_equal;

fn expect(condition: bool, reason: impl FnOnce() -> String) -> Result<(), TestCaseError> {
    if condition { Ok(()) } else { Err(TestCaseError::fail(reason())) }
}

fn failed(error: hapax_core::StoreError) -> TestCaseError {
    TestCaseError::fail(format!("the store failed: {error}"))
}

/// Runs random histories (128 × `HAPAX_TEST_SCALE`, of claims and records, of logs and of queues)
/// on the store and on a model, and compares all results; then histories of several actors at once,
/// whose answers some order of their calls must explain. It builds its own runtime, so call it from
/// a plain `#[test]`.
///
/// # Panics
/// If a result differs, with the shortest history that shows it.
pub fn check_histories<F, S>(make: F)
where
    F: FnOnce() -> S,
    S: Future<Output = Arc<dyn StoreUnderTest>>,
{
    let runtime = Runtime::new().expect("a runtime");
    let subject = runtime.block_on(make());
    check_model::<claims::ClaimsModel>(&runtime, &subject, 48, &claims::steps(1..24));
    check_model::<log::LogModel>(&runtime, &subject, 40, &log::steps());
    check_model::<queue::QueueModel>(&runtime, &subject, 40, &queue::steps());
    let count = 2..concurrent::MAX_STEPS + 1;
    check_cases(48, &claims::concurrent_steps(count.clone()), |steps| {
        runtime.block_on(concurrent::compare::<claims::ClaimActor>(&subject, &steps))
    });
    check_cases(24, &log::concurrent_steps(count), |steps| {
        runtime.block_on(concurrent::compare::<log::LogActor>(&subject, &steps))
    });
}

fn check_model<M: Model>(
    runtime: &Runtime,
    subject: &Arc<dyn StoreUnderTest>,
    cases: u32,
    steps: &impl Strategy<Value = Vec<M::Step>>,
) {
    check_cases(cases, steps, |steps| runtime.block_on(compare::<M>(subject, &steps)));
}

fn check_cases<S: Strategy>(
    cases: u32,
    steps: &S,
    run: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let config = Config { cases: scale(cases), failure_persistence: None, ..Config::default() };
    if let Err(error) = TestRunner::new(config).run(steps, run) {
        panic!("{error}");
    }
}

/// Runs a history until it succeeds, or fails although every step was over well before the brief
/// durations.
async fn compare<M: Model>(
    subject: &Arc<dyn StoreUnderTest>,
    steps: &[M::Step],
) -> Result<(), TestCaseError> {
    let mut brief = HistoryTimes::FIRST_BRIEF;
    loop {
        let mut slowest = Duration::ZERO;
        let result = run::<M>(subject, steps, HistoryTimes { brief }, &mut slowest).await;
        // Half, because stores round durations to milliseconds.
        if result.is_ok() || slowest < brief / 2 || brief >= HistoryTimes::MAX_BRIEF {
            return result;
        }
        brief = (4 * slowest).min(HistoryTimes::MAX_BRIEF);
    }
}

async fn run<M: Model>(
    subject: &Arc<dyn StoreUnderTest>,
    steps: &[M::Step],
    times: HistoryTimes,
    slowest: &mut Duration,
) -> Result<(), TestCaseError> {
    let context = LawContext::new(subject.clone()).await;
    let mut model = M::new(context.clone(), times).await?;
    for step in steps {
        let began = Instant::now();
        let compared = model.step(step.clone()).await;
        *slowest = began.elapsed().max(*slowest);
        compared?;
        if model.expire_brief() {
            context.outlive(2 * times.brief).await;
        }
    }
    model.finish().await
}
