use std::collections::HashSet;

use async_trait::async_trait;

use super::MemoryStore;
use crate::primitives::oversight::includes;
use crate::{
    ClaimPage, ClaimQuery, Key, KeyKind, OpenClaims, Oversight, StoreResult, Tenant, TenantPage,
    claim_rules,
};

#[async_trait]
impl Oversight for MemoryStore {
    async fn list(&self, list: &ClaimQuery) -> StoreResult<ClaimPage> {
        let now = self.clock.now();
        let mut claims = Vec::new();
        for part in self.claims.each() {
            let listed =
                part.iter().filter_map(|(key, row)| claim_rules::listed(key.clone(), row, now));
            // Filter before paging: `next` must not reveal a key that the query does not match.
            claims.extend(
                listed
                    .filter(|listed| list.shows(listed))
                    .map(|listed| (listed.key.canonical(), listed))
                    .filter(|(name, _)| list.after.as_ref().is_none_or(|after| name > after)),
            );
        }
        claims.sort_by(|a, b| a.0.cmp(&b.0));
        let more = claims.len() > list.max_claims as usize;
        claims.truncate(list.max_claims as usize);
        let next = claims.last().filter(|_| more).map(|(name, _)| name.clone());
        let claims = claims.into_iter().map(|(_, listed)| listed).collect();
        Ok(ClaimPage { claims, next })
    }

    async fn tenants(&self, after: Option<&str>, at_most: u32) -> StoreResult<TenantPage> {
        let mut names = HashSet::new();
        let mut add = |key: &Key| {
            let tenant = key.tenant().without_scope();
            if after.is_none_or(|after| tenant.as_str() > after) {
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
            for (key, row) in part.iter().filter(|(key, _)| counts(key)) {
                if let Some(listed) = claim_rules::listed(key.clone(), row, now) {
                    open.add(listed.status, 1);
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
