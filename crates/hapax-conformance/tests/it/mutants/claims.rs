//! Planted bugs of claims, records and lists.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_conformance::StoreWrapper;
use hapax_core::claims::ClaimState;
use hapax_core::memory::MemoryStore;
use hapax_core::{
    ClaimPage, ClaimQuery, ClaimRequest, ClaimStep, ClaimView, Claimed, Claims, Expect, Fence,
    Fingerprint, Key, KeyKind, OnUnknown, OpenClaims, Operation, Oversight, Put, Records, Step,
    Store, StoreResult, Swept, Tenant, TenantPage, Ticket, Token, Watch,
};

use super::bugs;

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
    WakesNoWaiter => "waiter_is_woken_at_settle",
    /// A put without a TTL removes the record's TTL.
    TtlNotKept => "put_without_ttl_keeps_the_ttl",
    /// Tenants share their keys.
    OneTenant => "tenants_with_equal_keys_are_separate",
    /// Takes all fingerprints for the same one.
    FingerprintsAreEqual => "another_fingerprint_is_a_mismatch_while_pending",
    /// A sweep deletes nothing.
    SweepsNothing => "sweep_removes_only_expired_claims",
    /// A sweep does not tell how much it deleted.
    SweepCountsNothing => "sweep_removes_only_expired_claims",
    /// A sweep deletes records that have not expired.
    SweepsEverything => "sweep_removes_only_expired_records",
    /// The scopes of a tenant count as tenants.
    ScopesAreTenants => "tenants_lists_each_tenant_once",
    /// What is kept for operators has a tenant, the empty one.
    OperatorsAreTenants => "tenants_leaves_out_what_is_kept_for_operators",
    /// The first page of tenants counts as the last.
    OnePageOfTenants => "tenants_lists_each_tenant_once",
    /// Only tenants with claims are listed.
    RecordsHaveNoTenants => "tenants_lists_those_with_records_or_jobs_alone",
    /// Claims whose lease has ended count as pending.
    UnknownCountsAsPending => "open_claims_are_counted_by_status",
    /// Failed claims are not counted.
    FailedAreNotCounted => "open_claims_are_counted_by_status",
    /// Settled claims count as failed.
    SettledCountsAsFailed => "open_claims_are_counted_by_status",
    /// Claims of all kinds are counted together.
    KindsAreCountedTogether => "open_claims_are_counted_by_status",
    /// The open claims of all tenants are counted.
    OpenClaimsOfAllTenants => "open_claims_are_counted_by_tenant",
    /// The claims of a tenant's scopes are not counted.
    ScopesAreNotCounted => "open_claims_are_counted_by_tenant",
    /// Claims are counted without a limit.
    CountsWithoutLimit => "claims_of_a_tenant_are_counted_up_to_a_limit",
    /// Settled claims are not counted.
    CountsOpenClaims => "claims_of_a_tenant_are_counted_up_to_a_limit",
    /// A list of one operation shows all of them.
    ListsAllScopes => "list_filters_by_scope",
    /// A list of one operation shows those whose names begin with it, too.
    ListsScopesByPrefix => "list_filters_by_scope",
    /// A list does not show the owner's label.
    ListsWithoutLabels => "list_shows_the_label_of_the_owner",
    /// A claim does not show its retention.
    ShowsNoRetention => "look_shows_the_retention_of_a_claim",
    /// A list ends with its first page.
    ListsOnePage => "list_shows_exactly_the_claims_of_its_tenant_and_kind",
}

pub(crate) struct ClaimsMutant {
    bug: Bug,
    store: MemoryStore,
    /// The keys of all records that were put.
    records: Mutex<Vec<Key>>,
    /// How many claims were settled.
    settled: AtomicU64,
}

impl ClaimsMutant {
    pub(crate) fn new(bug: Bug, store: MemoryStore) -> Self {
        Self { bug, store, records: Mutex::default(), settled: AtomicU64::new(0) }
    }

    async fn has_claims(&self, tenant: &Tenant) -> StoreResult<bool> {
        for kind in [KeyKind::Lock, KeyKind::Command, KeyKind::Inbox] {
            let (tenant, max_claims) = (tenant.clone(), 1);
            let query =
                ClaimQuery { tenant, kind, status: None, scope: None, after: None, max_claims };
            if !self.store.list(&query).await?.claims.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Counts the claims of the tenant itself.
    async fn count_open_without_scopes(
        &self,
        tenant: &Tenant,
        kind: KeyKind,
    ) -> StoreResult<OpenClaims> {
        let query = ClaimQuery {
            tenant: tenant.clone(),
            kind,
            status: None,
            scope: None,
            after: None,
            max_claims: 1000,
        };
        let mut open = OpenClaims::default();
        let claims = self.store.list(&query).await?.claims;
        claims
            .iter()
            .filter(|listed| listed.key.tenant() == tenant)
            .for_each(|listed| open.add(listed.status, 1));
        Ok(open)
    }

    fn key(&self, key: &Key) -> Key {
        let tenant = key.tenant().as_str();
        if self.bug == Bug::OneTenant && tenant.len() == 34 {
            let tenant = Tenant::new(&tenant[..33]).unwrap();
            return Key::command(&tenant, Operation(key.scope()), key.name()).unwrap();
        }
        key.clone()
    }
}

#[async_trait]
impl StoreWrapper for ClaimsMutant {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
        let key = &self.key(key);
        let state = self.store.look(key).await?.map(|view| view.state);
        match (self.bug, state) {
            (Bug::CheckThenAct, None) => {
                tokio::task::yield_now().await;
                if let Some(ClaimView { state: ClaimState::Pending { .. }, fence, .. }) =
                    self.store.look(key).await?
                {
                    let ticket = Ticket { token: ask.token.clone(), fence: fence.unwrap() };
                    return Ok(Claimed::Granted { ticket, attempt: 1 });
                }
            }
            (
                Bug::PendingFingerprintIgnored | Bug::OwnTokenIsBusy,
                Some(ClaimState::Pending { lease_left }),
            ) => return Ok(Claimed::Busy { lease_left }),
            _ => {}
        }
        let mut ask = ask.clone();
        match self.bug {
            Bug::AlwaysTakesOver => ask.on_unknown = OnUnknown::TakeOver,
            Bug::FingerprintsAreEqual => {
                ask.fingerprint = ask.fingerprint.and_then(|_| Fingerprint::new("same"));
            }
            _ => {}
        }
        Ok(match self.store.claim(key, &ask).await? {
            Claimed::Granted { ticket, attempt } if self.bug == Bug::ConstantFence => {
                Claimed::Granted { ticket: Ticket { fence: Fence(1), ..ticket }, attempt }
            }
            answer => answer,
        })
    }

    async fn step(&self, key: &Key, token: &Token, step: ClaimStep) -> StoreResult<Step> {
        let settles = matches!(step, ClaimStep::Settle(_));
        self.settled.fetch_add(settles.into(), Ordering::Relaxed);
        Ok(match self.store.step(&self.key(key), token, step).await? {
            Step::Lost if settles && self.bug == Bug::AnyTokenSettles => Step::Done(Fence(1)),
            step => step,
        })
    }

    fn watch(&self, key: &Key) -> Watch {
        if self.bug == Bug::WakesNoWaiter { Watch::never() } else { self.store.watch(key) }
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> StoreResult<Put> {
        self.records.lock().unwrap().push(key.clone());
        if self.bug == Bug::TtlNotKept && ttl.is_none() && *expect == Expect::Any {
            let _ = self.store.delete(key, &Expect::Any).await?;
        }
        if self.bug == Bug::PutsWithoutComparing {
            let current = self.store.get(key).await?.map(|record| record.version);
            if !expect.holds(current.as_ref()) {
                return Ok(Put::Conflict);
            }
            tokio::task::yield_now().await;
            return self.store.put(key, value, &Expect::Any, ttl).await;
        }
        self.store.put(key, value, expect, ttl).await
    }

    async fn sweep(&self, at_most: u32) -> StoreResult<Swept> {
        if self.bug == Bug::SweepsNothing {
            return Ok(Swept { count: 0, more: false });
        }
        let mut swept = self.store.sweep(at_most).await?;
        if self.bug == Bug::SweepCountsNothing {
            swept.count = 0;
        }
        if self.bug == Bug::SweepsEverything {
            let records = std::mem::take(&mut *self.records.lock().unwrap());
            for key in records {
                let _ = self.store.delete(&key, &Expect::Any).await?;
            }
        }
        Ok(swept)
    }

    async fn tenants(&self, after: Option<&str>, at_most: u32) -> StoreResult<TenantPage> {
        let TenantPage { mut tenants, next } = self.store.tenants(after, at_most).await?;
        if self.bug == Bug::ScopesAreTenants
            && let Some(tenant) = tenants.first()
        {
            tenants.push(Tenant::stored(&format!("{}/scope", tenant.as_str())));
        }
        if self.bug == Bug::OperatorsAreTenants {
            tenants.insert(0, Tenant::stored(""));
        }
        if self.bug == Bug::RecordsHaveNoTenants {
            let mut with_claims = Vec::new();
            for tenant in tenants {
                if self.has_claims(&tenant).await? {
                    with_claims.push(tenant);
                }
            }
            tenants = with_claims;
        }
        let next = next.filter(|_| self.bug != Bug::OnePageOfTenants);
        Ok(TenantPage { tenants, next })
    }

    async fn count_open(
        &self,
        whose: Option<&Tenant>,
        kind: KeyKind,
    ) -> StoreResult<Option<OpenClaims>> {
        let whose = whose.filter(|_| self.bug != Bug::OpenClaimsOfAllTenants);
        let Some(mut open) = self.store.count_open(whose, kind).await? else { return Ok(None) };
        if let (Bug::ScopesAreNotCounted, Some(tenant)) = (self.bug, whose) {
            open = self.count_open_without_scopes(tenant, kind).await?;
        }
        match self.bug {
            Bug::UnknownCountsAsPending => open.pending += std::mem::take(&mut open.unknown),
            Bug::FailedAreNotCounted => open.failed = 0,
            Bug::SettledCountsAsFailed => open.failed += self.settled.load(Ordering::Relaxed),
            Bug::KindsAreCountedTogether => {
                return self.store.count_open(whose, KeyKind::Inbox).await;
            }
            _ => {}
        }
        Ok(Some(open))
    }

    async fn count_claims(&self, tenant: &Tenant, at_most: u64) -> StoreResult<Option<u64>> {
        match self.bug {
            Bug::CountsWithoutLimit => self.store.count_claims(tenant, u64::MAX).await,
            Bug::CountsOpenClaims => {
                let mut claims = 0;
                for kind in [KeyKind::Lock, KeyKind::Command, KeyKind::Inbox] {
                    let open = self.store.count_open(Some(tenant), kind).await?.unwrap_or_default();
                    claims += open.pending + open.unknown + open.failed;
                }
                Ok(Some(claims.min(at_most)))
            }
            _ => self.store.count_claims(tenant, at_most).await,
        }
    }

    async fn look(&self, key: &Key) -> StoreResult<Option<ClaimView>> {
        let mut view = self.store.look(&self.key(key)).await?;
        if let (Bug::ShowsNoRetention, Some(view)) = (self.bug, &mut view) {
            view.retention = None;
        }
        Ok(view)
    }

    async fn list(&self, query: &ClaimQuery) -> StoreResult<ClaimPage> {
        let all_scopes = ClaimQuery { scope: None, ..query.clone() };
        let mut page = match (self.bug, query.scope.as_deref()) {
            (Bug::ListsAllScopes, Some(_)) => self.store.list(&all_scopes).await?,
            (Bug::ListsScopesByPrefix, Some(scope)) => {
                let mut page = self.store.list(&all_scopes).await?;
                page.claims.retain(|listed| listed.key.scope().starts_with(scope));
                page
            }
            _ => self.store.list(query).await?,
        };
        match self.bug {
            Bug::ListsOnePage => page.next = None,
            Bug::ListsWithoutLabels => page.claims.iter_mut().for_each(|claim| claim.label = None),
            _ => {}
        }
        Ok(page)
    }
}
