use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Fence, Key, KeyKind, StoreResult, Tenant};

/// Lists the claims of a store, for operators.
///
/// # Laws
///
/// 1. A walk over all pages shows every claim that exists during the whole walk at least once, and
///    no claim of another kind or of another tenant.
/// 2. A page may be short, and even empty, although there is a next one.
#[async_trait]
pub trait Oversight: Send + Sync {
    /// Reads one page.
    async fn list(&self, list: &ClaimQuery) -> StoreResult<ClaimPage>;

    /// Reads one page of the tenants that have claims, records or jobs, without their scopes. `after` is
    /// [`TenantPage::next`] of the page before. A page has at most `at_most` tenants; on a store that finds them only by a
    /// walk over its keys (Redis) it is what a limited number of keys shows. The laws of the list hold: a walk over all
    /// pages shows every tenant at least once, and pages may be empty.
    ///
    /// Jobs and records that hapax keeps for operators ([`activity::keys`](crate::activity::keys)) make no tenant. Those
    /// that have nothing but queued items may be left out, because no store finds items by their tenant
    /// without reading all of them.
    async fn tenants(&self, after: Option<&str>, at_most: u32) -> StoreResult<TenantPage>;

    /// Counts the claims of a kind that are not settled, of one tenant and its scopes or of all tenants. `None`
    /// where a store could tell only by a scan of everything (Redis; memory beyond 20,000 claims).
    async fn count_open(
        &self,
        whose: Option<&Tenant>,
        kind: KeyKind,
    ) -> StoreResult<Option<OpenClaims>>;

    /// Counts the claims of a tenant and its scopes, of all kinds, up to `at_most`: that number means that there
    /// are as many or more. Claims that have expired and are not swept yet may be counted. `None` where a store
    /// could tell only by a scan of everything (Redis; memory beyond 20,000 claims).
    async fn count_claims(&self, tenant: &Tenant, at_most: u64) -> StoreResult<Option<u64>>;
}

/// How many claims of a kind are not settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenClaims {
    /// Granted, and the lease has not ended.
    pub pending: u64,
    /// The lease has ended; the owner may or may not have acted.
    pub unknown: u64,
    /// Given back as failed.
    pub failed: u64,
}

impl OpenClaims {
    /// Adds claims with this status; settled ones are not open.
    pub fn add(&mut self, status: ClaimStatus, claims: u64) {
        match status {
            ClaimStatus::Pending => self.pending += claims,
            ClaimStatus::Unknown => self.unknown += claims,
            ClaimStatus::Failed => self.failed += claims,
            ClaimStatus::Settled => {}
        }
    }
}

/// The filter and the page of [`Oversight::list`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimQuery {
    /// The tenant; claims of its scopes are listed too.
    pub tenant: Tenant,
    /// The kind of the keys.
    pub kind: KeyKind,
    /// Lists only claims with this status.
    pub status: Option<ClaimStatus>,
    /// Lists only claims of this operation or consumer: [`Key::scope`].
    pub scope: Option<Arc<str>>,
    /// [`ClaimPage::next`] of the page before; `None` for the first page.
    pub after: Option<String>,
    /// The most claims of this page. A store may examine only as many stored claims, and show those that match.
    pub max_claims: u32,
}

/// One page of a list of claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimPage {
    /// The claims of this page.
    pub claims: Vec<ClaimSummary>,
    /// The value of [`ClaimQuery::after`] for the next page; `None` on the last one.
    pub next: Option<String>,
}

/// One page of the tenants of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantPage {
    /// The tenants of this page.
    pub tenants: Vec<Tenant>,
    /// The value of `after` for the next page; `None` on the last one.
    pub next: Option<String>,
}

impl TenantPage {
    /// The page of the names that a store has found after the page before, which must be the first `at_most + 1` of those that
    /// are left, or all of them. Scopes count as their tenants.
    pub fn of_names(mut names: Vec<String>, at_most: u32) -> Self {
        names.sort_unstable();
        names.dedup();
        let at_most = at_most.max(1) as usize;
        let is_last = names.len() <= at_most;
        names.truncate(at_most);
        let next = names.last().filter(|_| !is_last).cloned();
        let mut tenants: Vec<_> =
            names.iter().map(|name| Tenant::stored(name).without_scope()).collect();
        tenants.retain(|tenant| !tenant.as_str().is_empty());
        // `-` is before `/`: another tenant may stand between a tenant and its scopes.
        tenants.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        tenants.dedup();
        Self { tenants, next }
    }
}

/// The state of a claim, without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimStatus {
    /// Granted, and the lease has not ended.
    Pending,
    /// The lease has ended; the owner may or may not have acted.
    Unknown,
    /// Settled with a value.
    Settled,
    /// Given back as failed.
    Failed,
}

/// One claim in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimSummary {
    /// The key of the claim.
    pub key: Key,
    /// The status of the claim.
    pub status: ClaimStatus,
    /// The fence of the last grant.
    pub fence: Fence,
    /// How many times the claim was granted.
    pub attempt: u32,
    /// How long ago the last grant was.
    pub granted_ago: Duration,
    /// How long the claim is still remembered.
    pub expires_in: Duration,
    /// The label of its last owner ([`Token::labelled`](crate::Token::labelled)).
    pub label: Option<Arc<str>>,
}

/// Whether `other` is this tenant or one of its scopes.
pub(crate) fn includes(tenant: &Tenant, other: &Tenant) -> bool {
    let rest = other.as_str().strip_prefix(tenant.as_str());
    rest.is_some_and(|scope| scope.is_empty() || scope.starts_with('/'))
}

impl ClaimQuery {
    /// Whether the claim matches tenant, kind, scope and status of this query.
    pub fn shows(&self, listed: &ClaimSummary) -> bool {
        self.includes_key(&listed.key) && self.status.is_none_or(|status| status == listed.status)
    }

    /// Whether the key matches tenant, kind and scope of this query.
    pub(crate) fn includes_key(&self, key: &Key) -> bool {
        key.kind() == self.kind
            && includes(&self.tenant, key.tenant())
            && self.scope.as_deref().is_none_or(|scope| scope == key.scope())
    }
}
