//! Random histories: the same steps run on a store and on a model that is written independently of
//! it.
//!
//! Real time cannot be stopped, so every duration in a history is either `LONG` (longer than the
//! test) or `BRIEF` (over before the next step).

mod claims;
mod log;
mod queue;

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tokio::runtime::Runtime;

use crate::context::LONG;
use crate::{StoreUnderTest, scale};

const BRIEF: Duration = Duration::from_millis(5);

fn time(brief: bool) -> Duration {
    if brief { BRIEF } else { LONG }
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
/// on the store and on a model, and compares all results. It builds its own runtime, so call it
/// from a plain `#[test]`.
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
    run(&runtime, 48, &claims::steps(), |steps| claims::run(subject.clone(), steps));
    run(&runtime, 40, &log::steps(), |steps| log::run(subject.clone(), steps));
    run(&runtime, 40, &queue::steps(), |steps| queue::run(subject.clone(), steps));
}

fn run<T, P>(
    runtime: &Runtime,
    cases: u32,
    steps: &impl Strategy<Value = Vec<T>>,
    run: impl Fn(Vec<T>) -> P,
) where
    T: Debug,
    P: Future<Output = Result<(), TestCaseError>>,
{
    let config = Config { cases: scale(cases), failure_persistence: None, ..Config::default() };
    if let Err(error) = TestRunner::new(config).run(steps, |steps| runtime.block_on(run(steps))) {
        panic!("{error}");
    }
}
