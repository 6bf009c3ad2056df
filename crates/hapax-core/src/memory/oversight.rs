use std::collections::{BTreeMap, HashSet};

use async_trait::async_trait;

use super::MemoryStore;
use super::claims::ClaimParts;
use crate::primitives::oversight::includes;
use crate::{
    ClaimPage, ClaimQuery, Key, KeyKind, OpenClaims, Oversight, StoreResult, Tenant, TenantPage,
    claim_rules,
};

/// After so many claims a walk lets other tasks of the thread run.
const MAX_WITHOUT_PAUSE: usize = 4096;

/// The smallest of many names, each with a value: a page of a list is found in one pass, without sorting everything.
struct SmallestNames<T> {
    at_most: usize,
    names: BTreeMap<String, T>,
}

impl<T> SmallestNames<T> {
    fn new(at_most: usize) -> Self {
        Self { at_most, names: BTreeMap::new() }
    }

    /// Adds a name, unless there are enough smaller ones. The value is made only for a name that is added.
    fn add(&mut self, name: &str, value: impl FnOnce() -> T) {
        if self.names.len() >= self.at_most {
            if self.names.last_key_value().is_none_or(|(last, _)| name >= last.as_str()) {
                return;
            }
            self.names.pop_last();
        }
        self.names.insert(name.to_owned(), value());
    }
}

#[async_trait]
impl Oversight for MemoryStore {
    async fn list(&self, list: &ClaimQuery) -> StoreResult<ClaimPage> {
        let now = self.clock.now();
        let at_most = list.max_claims as usize;
        // One more than the page shows tells that there is a next page.
        let mut found = SmallestNames::new(at_most.saturating_add(1));
        let (mut name, mut examined) = (String::new(), 0);
        for part in 0..ClaimParts::COUNT {
            for (key, row) in self.claims.part(part).iter() {
                // Filter before paging: `next` must not reveal a key that the query does not match.
                let is_listed = list.includes_key(key)
                    && claim_rules::status(row, now)
                        .is_some_and(|status| list.status.is_none_or(|asked| asked == status));
                if !is_listed {
                    continue;
                }
                key.canonical_into(&mut name);
                if list.after.as_ref().is_none_or(|after| name > *after) {
                    found.add(&name, || claim_rules::listed(key.clone(), row, now));
                }
            }
            // A walk over many claims takes a while, and other tasks wait for this thread.
            examined += self.claims.part(part).len();
            if examined >= MAX_WITHOUT_PAUSE {
                examined = 0;
                tokio::task::yield_now().await;
            }
        }
        let more = found.names.len() > at_most;
        let mut claims = Vec::with_capacity(found.names.len());
        let mut next = None;
        for (name, listed) in found.names.into_iter().take(at_most) {
            claims.extend(listed);
            next = Some(name);
        }
        Ok(ClaimPage { claims, next: next.filter(|_| more) })
    }

    async fn tenants(&self, after: Option<&str>, at_most: u32) -> StoreResult<TenantPage> {
        let mut names = HashSet::new();
        let mut add = |key: &Key| {
            let tenant = key.tenant().without_scope();
            let is_new = !names.contains(tenant.as_str());
            if is_new && after.is_none_or(|after| tenant.as_str() > after) {
                names.insert(tenant.as_str().to_owned());
            }
        };
        self.claims.each().for_each(|part| part.keys().for_each(&mut add));
        let tables = self.tables();
        tables.records.keys().for_each(&mut add);
        tables.jobs.keys().filter(|job| !job.is_operators_job()).for_each(&mut add);
        Ok(TenantPage::of_names(names.into_iter().collect(), at_most))
    }

    async fn count_open(
        &self,
        whose: Option<&Tenant>,
        kind: KeyKind,
    ) -> StoreResult<Option<OpenClaims>> {
        let now = self.clock.now();
        let mut open = OpenClaims::default();
        let counts = |key: &Key| {
            key.kind() == kind && whose.is_none_or(|tenant| includes(tenant, key.tenant()))
        };
        for part in self.claims.each() {
            for (_, row) in part.iter().filter(|(key, _)| counts(key)) {
                if let Some(status) = claim_rules::status(row, now) {
                    open.add(status, 1);
                }
            }
        }
        Ok(Some(open))
    }

    async fn count_claims(&self, tenant: &Tenant, at_most: u64) -> StoreResult<Option<u64>> {
        let of_tenant = |key: &&Key| includes(tenant, key.tenant());
        let claims: usize =
            self.claims.each().map(|part| part.keys().filter(of_tenant).count()).sum();
        Ok(Some(at_most.min(claims as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page once cloned, named and sorted every claim of the store.
    #[test]
    fn smallest_names_makes_few_values_of_many_names() {
        let scattered = |n: u64| format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (mut made, mut found) = (0, SmallestNames::new(51));
        for n in 0..100_000 {
            found.add(&scattered(n), || made += 1);
            assert!(found.names.len() <= 51);
        }
        let mut all: Vec<_> = (0..100_000).map(scattered).collect();
        all.sort_unstable();
        assert!(found.names.into_keys().eq(all.into_iter().take(51)));
        assert!(made < 1000, "{made} values for a page of 51");
    }
}
