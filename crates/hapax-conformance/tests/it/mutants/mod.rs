//! Checks the suite itself: each of these stores has one planted bug, which the suite must catch.

mod claims;
mod log;
mod queue;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_conformance::{StoreUnderTest, check};
use hapax_core::memory::MemoryStore;
use hapax_core::{Finding, ManualClock, Store, StoreError};

/// Each bug with a law that catches it.
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
    /// Checks whether the key is free, and claims it in a second step.
    CheckThenAct => "one_winner_among_64_concurrent_claims",
    /// Settles with any token.
    AnyTokenSettles => "wrong_token_changes_nothing",
    /// Compares fingerprints only when settled.
    PendingFingerprintIgnored => "another_fingerprint_is_a_mismatch_while_pending",
    /// Grants all claims with the same fence.
    ConstantFence => "fences_grow_across_release_failure_and_expiry",
    /// Does not recognise the token of its owner.
    OwnTokenIsBusy => "claim_repeated_with_its_token_is_the_same_grant",
    /// Takes an unknown claim over although the request says refuse.
    AlwaysTakesOver => "lapsed_lease_is_unknown_under_refuse",
    /// Reads, compares and writes in separate steps.
    PutsWithoutComparing => "compare_and_put_loses_no_update",
    /// Wakes no waiter.
    WakesNobody => "waiter_is_woken_at_settle",
    /// A put without a TTL removes the record's TTL.
    TtlNotKept => "put_without_ttl_keeps_the_ttl",
    /// Tenants share their keys.
    OneTenant => "tenants_with_equal_keys_are_separate",
    /// A list ends with its first page.
    ListsOnePage => "list_shows_exactly_the_claims_of_its_tenant_and_kind",

    /// An offset is left out.
    OffsetHole => "offsets_start_at_one_without_gaps",
    /// A duplicate renews the retention.
    DuplicateRenewsLifetime => "refused_event_does_not_change_the_retention",
    /// The state is the last entry.
    StateGoesBack => "state_follows_the_highest_seq",
    /// Of two entries with the highest seq the first stays the state.
    FirstOfEqualsIsState => "state_is_the_later_of_two_events_with_equal_seq",
    /// The state is forgotten with its entry.
    StateIsTrimmed => "trimming_keeps_dedup_and_state",
    /// An event with a lower seq than the state is acknowledged and dropped.
    LateEventDropped => "late_and_sparse_seqs_are_appended",
    /// A duplicate is refused after the job was closed.
    ClosedBeforeDuplicate => "duplicates_and_conflicts_are_known_after_closing",
    /// The same identity with another content is taken for a duplicate.
    ConflictIgnored => "event_with_other_content_is_a_conflict",
    /// Domains share their jobs.
    OneDomain => "jobs_domains_and_tenants_are_separate",
    /// A log that starts again has the previous epoch.
    EpochStays => "expired_job_starts_again_with_a_greater_epoch",
    /// The tail skips entries.
    TailSkips => "tail_shows_each_entry_once_in_offset_order",
    /// The next page repeats the last entry of the previous one.
    TailRepeats => "tail_continues_from_every_position",
    /// Trimmed entries are not reported as lost.
    LosesSilently => "tail_reports_trimmed_entries_as_lost",
    /// Wakes no listener.
    WakesNoListener => "listener_is_woken_at_an_append",

    /// A retried item is leased after later ones.
    OrderBrokenAfterRetry => "retried_item_comes_before_later_ones",
    /// The items of a lapsed lease are never leased again.
    LapsedLeaseNotReturned => "lapsed_item_is_leased_again_with_a_greater_fence",
    /// Any token may acknowledge.
    LostAckAccepted => "late_resolve_after_another_lease_is_lost",
    /// A dead item does not block its key.
    DeadKeyDoesNotBlock => "later_item_waits_behind_a_dead_one_that_blocks",
    /// Every attempt is the first.
    AttemptsNotCounted => "attempts_count_leases",
    /// An uncounted retry counts as an attempt.
    GivingBackCounts => "uncounted_retry_does_not_count_its_attempt",
    /// A repeated lease is a new lease.
    AskedAgainIsAnother => "lease_repeated_with_its_token_returns_the_same_items",
    /// An item in flight is leased to a second worker.
    TwoHolders => "concurrent_workers_share_no_item_and_keep_key_order",
    /// Every lease has the same fence.
    ConstantLeaseFence => "fences_grow_with_every_lease_of_an_item",
    /// A done item is forgotten at once.
    DoneIsForgotten => "id_of_a_done_item_is_a_duplicate_within_its_retention",
    /// Everything is due at once.
    DelayIgnored => "item_is_not_due_before_its_delay_has_passed",
    /// Items without a key are taken for items of one key.
    NoKeyIsAKey => "items_without_a_key_never_wait_for_others",
    /// A discarded item still blocks its key.
    DiscardedStillBlocks => "discarded_item_is_gone_and_unblocks_its_key",
    /// Each tenant gets the depth of all tenants.
    DepthOfAllTenants => "depth_is_counted_by_tenant",
    /// Wakes no worker.
    WakesNoWorker => "waiter_is_woken_by_an_arrival",
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
impl StoreUnderTest for Under {
    async fn open(&self) -> Arc<dyn Store> {
        self.0.clone()
    }

    async fn advance(&self, time: Duration) {
        self.0.clock.advance(time);
    }
}

/// The suite's panic message for a store with this bug. Runs in virtual time, because the laws about wake-ups would
/// otherwise wait a minute each.
fn verdict(bug: Bug) -> Option<String> {
    let checked = std::panic::catch_unwind(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(check(|| async move {
            Arc::new(Under(Arc::new(Mutant::new(bug)))) as Arc<dyn StoreUnderTest>
        }));
    });
    checked.err().map(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

#[test]
fn suite_accepts_a_store_without_a_bug() {
    assert_eq!(verdict(Bug::Healthy), None);
}

#[test]
fn suite_catches_every_planted_bug() {
    for (bug, law) in BUGS {
        let verdict = verdict(*bug).unwrap_or_else(|| panic!("the suite did not notice {bug:?}"));
        assert!(verdict.contains(law), "{bug:?} was noticed, but not by {law}: {verdict}");
    }
}
