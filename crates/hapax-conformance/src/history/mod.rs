//! Random histories on a store against models that are written independently of it.
//!
//! On a store with a clock of its own time cannot be stopped, so every time in a history is either
//! `LONG` (does not end within the test) or `BRIEF` (has ended before the next step is taken).

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

use crate::scene::LONG;
use crate::{Subject, scale};

const BRIEF: Duration = Duration::from_millis(5);

fn time(brief: bool) -> Duration {
    if brief { BRIEF } else { LONG }
}

macro_rules! same {
    ($left:expr, $right:expr) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            return Err(TestCaseError::fail(format!("store: {left:?}, model: {right:?}")));
        }
    }};
}
use same;

fn holds(what: bool, else_say: impl FnOnce() -> String) -> Result<(), TestCaseError> {
    if what { Ok(()) } else { Err(TestCaseError::fail(else_say())) }
}

fn failed(error: hapax_core::StoreError) -> TestCaseError {
    TestCaseError::fail(format!("the store failed: {error}"))
}

/// Plays random histories (128 × `HAPAX_TEST_SCALE`, of claims and records, of logs and of queues) on
/// the subject and on a model, and compares every answer. Builds a runtime of its own: call it from
/// a plain `#[test]`.
///
/// # Panics
/// Where an answer differs, with the shortest history that shows it.
pub fn check_histories<F, S>(make: F)
where
    F: FnOnce() -> S,
    S: Future<Output = Arc<dyn Subject>>,
{
    let runtime = Runtime::new().expect("a runtime");
    let subject = runtime.block_on(make());
    run(&runtime, 48, &claims::moves(), |moves| claims::play(subject.clone(), moves));
    run(&runtime, 40, &log::moves(), |moves| log::play(subject.clone(), moves));
    run(&runtime, 40, &queue::moves(), |moves| queue::play(subject.clone(), moves));
}

fn run<T, P>(
    runtime: &Runtime,
    cases: u32,
    moves: &impl Strategy<Value = Vec<T>>,
    play: impl Fn(Vec<T>) -> P,
) where
    T: Debug,
    P: Future<Output = Result<(), TestCaseError>>,
{
    let config = Config { cases: scale(cases), failure_persistence: None, ..Config::default() };
    if let Err(error) = TestRunner::new(config).run(moves, |moves| runtime.block_on(play(moves))) {
        panic!("{error}");
    }
}
