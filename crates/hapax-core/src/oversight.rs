use std::time::Duration;

use async_trait::async_trait;

use crate::{Fence, Key, Kind, StoreError, Tenant};

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
    async fn list(&self, list: &List) -> Result<Page, StoreError>;
}

/// Which claims to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// Of this tenant and its scopes.
    pub tenant: Tenant,
    /// Of this kind.
    pub kind: Kind,
    /// Only those that stand like this.
    pub standing: Option<Standing>,
    /// Go on where the last page ended.
    pub after: Option<String>,
    /// How many to look at for this page.
    pub at_most: u32,
}

/// Some claims, and where to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The claims.
    pub claims: Vec<Listed>,
    /// What to pass as [`List::after`]; `None` at the end.
    pub next: Option<String>,
}

/// Where a claim stands, without what it was settled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
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
pub struct Listed {
    /// Whose, of what.
    pub key: Key,
    /// Where it stands.
    pub standing: Standing,
    /// The fence of the last grant.
    pub fence: Fence,
    /// How many times it was granted.
    pub attempt: u32,
    /// How long ago the last grant was.
    pub granted_ago: Duration,
    /// How long it is remembered from now.
    pub expires_in: Duration,
}

impl List {
    /// Whether a claim belongs on the list.
    pub fn shows(&self, listed: &Listed) -> bool {
        let (mine, theirs) = (self.tenant.as_str(), listed.key.tenant().as_str());
        let same_tenant = theirs
            .strip_prefix(mine)
            .is_some_and(|scope| scope.is_empty() || scope.starts_with('/'));
        same_tenant
            && listed.key.kind() == self.kind
            && self.standing.is_none_or(|standing| standing == listed.standing)
    }
}
