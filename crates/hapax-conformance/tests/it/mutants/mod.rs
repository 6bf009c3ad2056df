//! A suite that cannot fail proves nothing: each of these stores has one planted bug, and must be
//! caught.

mod claims;
mod log;
mod queue;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_conformance::{Subject, check};
use hapax_core::memory::MemoryStore;
use hapax_core::{Finding, ManualClock, Store, StoreError};

/// Each bug with a law that notices it.
macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident => $law:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq)]
        enum Bug {
            Healthy,
            $($(#[$doc])* $bug,)*
        }

        const BUGS: &[(Bug, &str)] = &[$((Bug::$bug, $law),)*];
    };
}

bugs! {
    /// Looks whether it is free, and then takes it.
    CheckThenAct => "one_winner_among_64_concurrent_claims",
    /// Does not ask whose token it is.
    AnyTokenSettles => "a_wrong_token_changes_nothing",
    /// Compares fingerprints only when settled.
    PendingFingerprintIgnored => "another_fingerprint_is_a_mismatch_while_pending",
    /// Hands out the same fence to everybody.
    ConstantFence => "fences_grow_over_release_failure_and_expiry",
    /// Does not recognise the token of its owner.
    OwnTokenIsBusy => "a_claim_asked_again_with_its_token_is_the_same_grant",
    /// Takes over what it was told to refuse.
    AlwaysTakesOver => "a_lease_that_ran_out_is_unknown_under_refuse",
    /// Reads, compares and writes in three steps.
    PutsWithoutComparing => "compare_and_put_loses_no_update",
    /// Forgets to wake anybody.
    WakesNobody => "a_waiter_is_woken_at_settle",
    /// A put without a TTL removes the one there was.
    TtlNotKept => "a_put_without_ttl_keeps_what_is_left",
    /// Tenants share their keys.
    OneTenant => "tenants_with_equal_keys_never_meet",
    /// A list ends with its first page.
    ListsOnePage => "a_list_shows_every_claim_of_its_tenant_and_kind_and_no_other",

    /// An offset is left out.
    OffsetHole => "offsets_begin_at_one_and_have_no_holes",
    /// A duplicate counts as an event.
    DuplicateRenewsLifetime => "what_is_not_appended_leaves_the_lifetime_alone",
    /// The state is the last entry.
    StateGoesBack => "state_follows_the_highest_seq",
    /// Of two entries with the highest seq the first stays the state.
    FirstOfEqualsIsState => "of_two_events_with_the_highest_seq_the_later_is_the_state",
    /// The state is forgotten with its entry.
    StateIsTrimmed => "trimming_keeps_dedup_and_state",
    /// An event below the state is acknowledged and thrown away.
    LateEventDropped => "late_and_sparse_seqs_are_appended",
    /// A retry of what a closed job has is refused.
    ClosedBeforeDuplicate => "duplicates_and_conflicts_are_recognised_after_closing",
    /// The same identity with another content is taken for a duplicate.
    ConflictIgnored => "another_content_is_a_conflict",
    /// Domains share their jobs.
    OneDomain => "jobs_domains_and_tenants_never_meet",
    /// A log that begins anew has the epoch of the one before it.
    EpochStays => "a_forgotten_job_begins_anew_under_a_greater_epoch",
    /// What committed late is passed over.
    TailSkips => "the_tail_shows_each_entry_once_in_offset_order",
    /// The next page begins with the end of the last one.
    TailRepeats => "the_tail_goes_on_from_every_position",
    /// Trimmed entries are missing without a word.
    LosesSilently => "the_tail_tells_that_trimmed_entries_were_lost",
    /// Forgets to wake listeners.
    WakesNoListener => "a_listener_is_woken_at_an_append",

    /// What is retried goes behind what came later.
    OrderBrokenAfterRetry => "a_retried_item_comes_before_later_ones",
    /// The items of a holder that died stay with it.
    LapsedLeaseNotReturned => "a_lapsed_lease_is_handed_out_again_with_a_greater_fence",
    /// Anybody may acknowledge.
    LostAckAccepted => "a_late_step_after_the_item_was_handed_on_is_lost",
    /// The key of a dead letter goes on.
    DeadKeyDoesNotBlock => "a_later_item_waits_behind_a_dead_one_that_blocks",
    /// Every attempt is the first.
    AttemptsNotCounted => "attempts_count_leases",
    /// Work that was not begun counts as an attempt.
    GivingBackCounts => "an_uncounted_retry_takes_its_attempt_back",
    /// A lease asked again is another lease.
    AskedAgainIsAnother => "a_lease_asked_again_with_its_token_gives_the_same_items_and_no_others",
    /// What is in flight is handed out once more.
    TwoHolders => "concurrent_holders_never_share_an_item_nor_break_the_order_of_a_key",
    /// Every lease has the same fence.
    ConstantLeaseFence => "fences_grow_with_every_lease_of_an_item",
    /// What was done is forgotten at once.
    DoneIsForgotten => "an_id_that_was_done_is_a_duplicate_as_long_as_it_is_remembered",
    /// Everything is due at once.
    DelayIgnored => "an_item_is_not_due_before_its_delay_has_passed",
    /// Items without a key are taken for items of one key.
    NoKeyIsAKey => "items_without_a_key_wait_for_nobody",
    /// A discarded letter still stands in the way.
    DiscardedStillBlocks => "a_discarded_letter_is_forgotten_and_its_key_goes_on",
    /// Everybody sees everybody's depth.
    DepthOfAllTenants => "depth_is_told_by_tenant",
    /// Forgets to wake those who wait for work.
    WakesNoWorker => "a_waiter_is_woken_by_an_arrival",
}

struct Mutant {
    store: MemoryStore,
    clock: Arc<ManualClock>,
    bug: Bug,
    duplicates: log::Duplicates,
    leases: queue::Leases,
}

impl Mutant {
    fn new(bug: Bug) -> Self {
        let clock = Arc::new(ManualClock::default());
        let store = MemoryStore::new(clock.clone());
        Self { store, clock, bug, duplicates: Default::default(), leases: Default::default() }
    }
}

#[async_trait]
impl Store for Mutant {
    fn name(&self) -> &'static str {
        "mutant"
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(Vec::new())
    }

    async fn sweep(&self, at_most: u32) -> Result<u64, StoreError> {
        self.store.sweep(at_most).await
    }
}

struct Under(Arc<Mutant>);

#[async_trait]
impl Subject for Under {
    async fn open(&self) -> Arc<dyn Store> {
        self.0.clone()
    }

    async fn pass(&self, time: Duration) {
        self.0.clock.advance(time);
    }
}

/// What the suite says about a store with this bug. In virtual time: the laws about wake-ups would
/// otherwise really wait for nobody.
fn verdict(bug: Bug) -> Option<String> {
    let checked = std::panic::catch_unwind(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(check(|| async move {
            Arc::new(Under(Arc::new(Mutant::new(bug)))) as Arc<dyn Subject>
        }));
    });
    checked.err().map(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

#[test]
fn a_store_without_a_bug_is_not_accused() {
    assert_eq!(verdict(Bug::Healthy), None);
}

#[test]
fn every_planted_bug_is_caught() {
    for (bug, law) in BUGS {
        let verdict = verdict(*bug).unwrap_or_else(|| panic!("the suite did not notice {bug:?}"));
        assert!(verdict.contains(law), "{bug:?} was noticed, but not by {law}: {verdict}");
    }
}
