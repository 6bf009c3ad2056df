use std::collections::HashSet;

use async_trait::async_trait;

use super::MemoryStore;
use crate::primitives::oversight::includes;
use crate::{
    ClaimPage, ClaimQuery, Key, KeyKind, OpenClaims, Oversight, StoreResult, Tenant, claim_rules,
};

#[async_trait]
impl Oversight for MemoryStore {
    async fn list(&self, list: &ClaimQuery) -> StoreResult<ClaimPage> {
        let tables = self.tables();
        let now = self.clock.now();
        // Filter before paging: `next` must not reveal a key that the query does not match.
        let mut claims: Vec<_> = tables
            .claims
            .iter()
            .filter_map(|(key, row)| claim_rules::listed(key.clone(), row, now))
            .filter(|listed| list.shows(listed))
            .map(|listed| (listed.key.canonical(), listed))
            .filter(|(name, _)| list.after.as_ref().is_none_or(|after| name > after))
            .collect();
        claims.sort_by(|a, b| a.0.cmp(&b.0));
        let more = claims.len() > list.max_claims as usize;
        claims.truncate(list.max_claims as usize);
        let next = claims.last().filter(|_| more).map(|(name, _)| name.clone());
        let claims = claims.into_iter().map(|(_, listed)| listed).collect();
        Ok(ClaimPage { claims, next })
    }

    async fn tenants(&self, at_most: u32) -> StoreResult<Vec<Tenant>> {
        let tables = self.tables();
        let jobs = tables.jobs.keys().filter(|job| !job.is_operators_job());
        let keys = tables.claims.keys().chain(tables.records.keys()).chain(jobs);
        let keys = keys.filter(|key| !key.tenant().as_str().is_empty());
        let names: HashSet<_> = keys.map(|key| key.tenant().without_scope()).collect();
        let mut tenants: Vec<_> = names.into_iter().collect();
        tenants.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        tenants.truncate(at_most as usize);
        Ok(tenants)
    }

    async fn count_open(
        &self,
        whose: Option<&Tenant>,
        kind: KeyKind,
    ) -> StoreResult<Option<OpenClaims>> {
        let (tables, now) = (self.tables(), self.clock.now());
        let mut open = OpenClaims::default();
        let counts = |key: &Key| {
            key.kind() == kind && whose.is_none_or(|tenant| includes(tenant, key.tenant()))
        };
        for (key, row) in tables.claims.iter().filter(|(key, _)| counts(key)) {
            if let Some(listed) = claim_rules::listed(key.clone(), row, now) {
                open.add(listed.status, 1);
            }
        }
        Ok(Some(open))
    }

    async fn count_claims(&self, tenant: &Tenant, at_most: u64) -> StoreResult<Option<u64>> {
        let tables = self.tables();
        let claims = tables.claims.keys().filter(|key| includes(tenant, key.tenant())).count();
        Ok(Some(at_most.min(claims as u64)))
    }
}
