use std::time::Duration;

use async_trait::async_trait;

use crate::{Fence, Key, KeyKind, StoreError, Tenant};

/// What an operator sees of a store: which claims there are.
///
/// # Laws
///
/// 1. Going from page to page shows every claim that is there all the while at least once, and
///    nothing of another kind or of another tenant.
/// 2. A page may be shorter than asked for, and even empty, while there is a next one.
#[async_trait]
pub trait Oversight: Send + Sync {
    /// One page.
    async fn list(&self, list: &ClaimQuery) -> Result<ClaimPage, StoreError>;
}

/// Which claims to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimQuery {
    /// Of this tenant and its scopes.
    pub tenant: Tenant,
    /// Of this kind.
    pub kind: KeyKind,
    /// Only those that stand like this.
    pub status: Option<ClaimStatus>,
    /// Go on where the last page ended.
    pub after: Option<String>,
    /// How many to look at for this page.
    pub max_claims: u32,
}

/// Some claims, and where to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimPage {
    /// The claims.
    pub claims: Vec<ClaimSummary>,
    /// What to pass as [`ClaimQuery::after`]; `None` at the end.
    pub next: Option<String>,
}

/// Where a claim stands, without what it was settled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimStatus {
    /// Its owner is believed alive.
    Pending,
    /// The lease ran out; the owner may or may not have acted.
    Unknown,
    /// Done.
    Settled,
    /// Given back as failed.
    Failed,
}

/// One line of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimSummary {
    /// Whose, of what.
    pub key: Key,
    /// Where it stands.
    pub status: ClaimStatus,
    /// The fence of the last grant.
    pub fence: Fence,
    /// How many times it was granted.
    pub attempt: u32,
    /// How long ago the last grant was.
    pub granted_ago: Duration,
    /// How long it is remembered from now.
    pub expires_in: Duration,
}

impl ClaimQuery {
    /// Whether a claim belongs on the list.
    pub fn shows(&self, listed: &ClaimSummary) -> bool {
        let (mine, theirs) = (self.tenant.as_str(), listed.key.tenant().as_str());
        let same_tenant = theirs
            .strip_prefix(mine)
            .is_some_and(|scope| scope.is_empty() || scope.starts_with('/'));
        same_tenant
            && listed.key.kind() == self.kind
            && self.status.is_none_or(|status| status == listed.status)
    }
}
