//! Checks the suite itself: each of these stores has one planted bug, which the suite must catch.

mod claims;
mod clock_steps;
mod log;
mod queue;

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use hapax_conformance::{
    StoreUnderTest, StoreWrapper, WrappedStore, check, check_histories, check_only,
};
use hapax_core::log::{Appended, LogEvent, LogRetention, PageRequest};
use hapax_core::memory::MemoryStore;
use hapax_core::{Log, ManualClock, Store, StoreResult};

use self::clock_steps::ClockMutant;
use crate::cut_off::AfterACut;
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

/// The suite's panic message for a mutant, from all laws or from one. Runs in virtual time, because the laws about
/// wake-ups would otherwise wait a minute each.
fn verdict<W: StoreWrapper>(
    law: Option<&str>,
    after_a_cut: AfterACut,
    mutant: impl Fn(MemoryStore, &Arc<ManualClock>) -> W,
) -> Option<String> {
    let make = || async {
        let clock = Arc::new(ManualClock::default());
        let memory = MemoryStore::new(clock.clone());
        let store = Arc::new(WrappedStore(mutant(memory.clone(), &clock)));
        Arc::new(InManualTime { store, memory, clock, after_a_cut }) as Arc<dyn StoreUnderTest>
    };
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            match law {
                Some(law) => check_only(&[law], make).await,
                None => check(make).await,
            }
        });
    }));
    checked.err().map(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

fn expect_accepted<W: StoreWrapper>(mutant: impl Fn(MemoryStore, &Arc<ManualClock>) -> W) {
    assert_eq!(verdict(None, AfterACut::Fails, mutant), None);
}

fn expect_caught<B: Copy + Debug, W: StoreWrapper>(
    bugs: &[(B, &str)],
    mutant: impl Fn(B, MemoryStore, &Arc<ManualClock>) -> W,
) {
    for (bug, law) in bugs {
        let verdict =
            verdict(Some(law), AfterACut::Fails, |store, clock| mutant(*bug, store, clock));
        let verdict = verdict.unwrap_or_else(|| panic!("{law} did not notice {bug:?}"));
        assert!(verdict.contains(law), "{bug:?}: {verdict}");
    }
}

#[test]
fn suite_accepts_a_store_without_a_bug() {
    expect_accepted(|store, _| claims::ClaimsMutant::new(claims::Bug::Healthy, store));
    expect_accepted(|store, _| log::LogMutant::new(log::Bug::Healthy, store));
    expect_accepted(|store, _| queue::QueueMutant::new(queue::Bug::Healthy, store));
    expect_accepted(|store, clock| ClockMutant::new(clock_steps::Bug::Healthy, store, clock));
}

#[test]
fn suite_catches_every_planted_bug() {
    expect_caught(claims::BUGS, |bug, store, _| claims::ClaimsMutant::new(bug, store));
    expect_caught(log::BUGS, |bug, store, _| log::LogMutant::new(bug, store));
    expect_caught(queue::BUGS, |bug, store, _| queue::QueueMutant::new(bug, store));
}

#[test]
fn fault_38_suite_catches_a_store_that_follows_its_clock_back() {
    expect_caught(clock_steps::BUGS, ClockMutant::new);
}

/// Appends, and reads the offset of the new entry in a second step.
struct OffsetReadLater(MemoryStore);

#[async_trait]
impl StoreWrapper for OffsetReadLater {
    fn inner(&self) -> &dyn Store {
        &self.0
    }

    async fn append(&self, events: &[LogEvent], keep: &LogRetention) -> StoreResult<Vec<Appended>> {
        let mut answers = self.0.append(events, keep).await?;
        if let ([event], [Appended::Published(at)]) = (events, &mut answers[..]) {
            tokio::task::yield_now().await;
            let attached = self.0.attach(&event.job, &PageRequest::new(0, 0)).await?;
            *at = attached.expect("a log with an entry").head.end();
        }
        Ok(answers)
    }
}

/// The verdict of the histories on a store with a bug. Histories are random: a few rounds make it practically certain
/// that they notice it.
fn verdict_of_histories<W: StoreWrapper>(mutant: impl Fn(MemoryStore) -> W) -> String {
    let make = || async {
        let clock = Arc::new(ManualClock::default());
        let memory = MemoryStore::new(clock.clone());
        let store = Arc::new(WrappedStore(mutant(memory.clone())));
        Arc::new(InManualTime { store, memory, clock, after_a_cut: AfterACut::Fails })
            as Arc<dyn StoreUnderTest>
    };
    let check = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check_histories(make)));
    let panic = (0..10).find_map(|_| check().err()).expect("the bug was not noticed");
    panic.downcast_ref::<String>().expect("a message").clone()
}

#[test]
fn fault_38_concurrent_histories_catch_steps_that_are_not_atomic() {
    let of = |bug| verdict_of_histories(move |store| claims::ClaimsMutant::new(bug, store));
    let verdicts = [
        of(claims::Bug::CheckThenAct),
        of(claims::Bug::PutsWithoutComparing),
        verdict_of_histories(OffsetReadLater),
    ];
    for verdict in verdicts {
        assert!(verdict.contains("no order of the calls"), "{verdict}");
    }
}

#[test]
fn suite_catches_a_store_that_repeats_writes_after_a_cut() {
    let healthy = |store, _: &_| claims::ClaimsMutant::new(claims::Bug::Healthy, store);
    let verdict = verdict(None, AfterACut::Repeats, healthy).expect("the suite notices it");
    for law in [
        "put_with_a_lost_answer_keeps_a_later_put",
        "put_of_an_absent_record_with_a_lost_answer_keeps_a_later_delete",
        "delete_with_a_lost_answer_keeps_a_later_put",
        "enqueue_with_a_lost_answer_adds_nothing_after_an_ack",
        "requeue_with_a_lost_answer_keeps_a_later_burial",
    ] {
        assert!(verdict.contains(law), "not noticed by {law}: {verdict}");
    }
}

/// The histories once drew their fingerprints from a range of one value.
#[test]
fn fault_38_histories_compare_fingerprints() {
    let mutant = |store| claims::ClaimsMutant::new(claims::Bug::FingerprintsAreEqual, store);
    verdict_of_histories(mutant);
}
