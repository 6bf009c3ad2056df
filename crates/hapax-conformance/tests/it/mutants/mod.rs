//! Checks the suite itself: each of these stores has one planted bug, which the suite must catch.

mod claims;
mod log;
mod queue;

use std::fmt::Debug;
use std::sync::Arc;

use hapax_conformance::{StoreUnderTest, StoreWrapper, WrappedStore, check, check_histories};
use hapax_core::ManualClock;
use hapax_core::memory::MemoryStore;

use crate::memory::InManualTime;

/// Declares the bugs of a mutant, each with a law that catches it.
macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident => $law:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(crate) enum Bug {
            Healthy,
            $($(#[$doc])* $bug,)*
        }

        pub(crate) const BUGS: &[(Bug, &str)] = &[$((Bug::$bug, $law),)*];
    };
}
use bugs;

/// The suite's panic message for a mutant. Runs in virtual time, because the laws about wake-ups
/// would otherwise wait a minute each.
fn verdict<W: StoreWrapper>(mutant: impl Fn(MemoryStore) -> W) -> Option<String> {
    let make = || async {
        let clock = Arc::new(ManualClock::default());
        let store = Arc::new(WrappedStore(mutant(MemoryStore::new(clock.clone()))));
        Arc::new(InManualTime { store, clock }) as Arc<dyn StoreUnderTest>
    };
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(check(make));
    }));
    checked.err().map(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

fn expect_caught<B: Copy + Debug, W: StoreWrapper>(
    bugs: &[(B, &str)],
    mutant: impl Fn(B, MemoryStore) -> W,
) {
    for (bug, law) in bugs {
        let verdict = verdict(|store| mutant(*bug, store));
        let verdict = verdict.unwrap_or_else(|| panic!("the suite did not notice {bug:?}"));
        assert!(verdict.contains(law), "{bug:?} was noticed, but not by {law}: {verdict}");
    }
}

#[test]
fn suite_accepts_a_store_without_a_bug() {
    assert_eq!(verdict(|store| claims::ClaimsMutant::new(claims::Bug::Healthy, store)), None);
    assert_eq!(verdict(|store| log::LogMutant::new(log::Bug::Healthy, store)), None);
    assert_eq!(verdict(|store| queue::QueueMutant::new(queue::Bug::Healthy, store)), None);
}

#[test]
fn suite_catches_every_planted_bug() {
    expect_caught(claims::BUGS, claims::ClaimsMutant::new);
    expect_caught(log::BUGS, log::LogMutant::new);
    expect_caught(queue::BUGS, queue::QueueMutant::new);
}

#[test]
fn fault_38_concurrent_histories_catch_steps_that_are_not_atomic() {
    for bug in [claims::Bug::CheckThenAct, claims::Bug::PutsWithoutComparing] {
        let make = || async move {
            let clock = Arc::new(ManualClock::default());
            let mutant = claims::ClaimsMutant::new(bug, MemoryStore::new(clock.clone()));
            let store = Arc::new(WrappedStore(mutant));
            Arc::new(InManualTime { store, clock }) as Arc<dyn StoreUnderTest>
        };
        let checked = std::panic::catch_unwind(|| check_histories(make));
        let panic = checked.expect_err("the bug was not noticed");
        let verdict = panic.downcast_ref::<String>().expect("a message");
        assert!(verdict.contains("no order of the calls"), "{bug:?}: {verdict}");
    }
}
