use std::collections::BTreeSet;

use async_trait::async_trait;

use super::MemoryStore;
use super::claims::{ClaimParts, ClaimTable};
use crate::claim_rules::{self, ClaimRow};
use crate::primitives::oversight::includes;
use crate::{
    ClaimPage, ClaimQuery, ClaimSummary, Key, KeyKind, OpenClaims, Oversight, StoreResult, Tenant,
    TenantPage, Timestamp,
};

/// After so many claims a page ends, whatever it has found, and beyond so many nothing is counted.
const MAX_EXAMINED: usize = 20_000;

/// Where a list goes on: in a part of the store, after a name. Pages are in the order of the parts, because an order of all
/// names would cost every claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PagePosition {
    part: usize,
    after: String,
}

impl PagePosition {
    fn encode(&self) -> String {
        format!("{:03x}{}", self.part, self.after)
    }

    /// A text that is no encoded position is the beginning.
    fn decode(text: &str) -> Self {
        let split = text.split_at_checked(3);
        let decoded = split.and_then(|(part, after)| {
            Some(Self { part: usize::from_str_radix(part, 16).ok()?, after: after.to_owned() })
        });
        decoded.unwrap_or_default()
    }
}

/// The first claims of a part that a list shows, with their names, in order.
fn listed(
    part: &ClaimTable,
    list: &ClaimQuery,
    after: &str,
    at_most: usize,
    now: Timestamp,
) -> Vec<(String, ClaimSummary)> {
    let matches = |key: &Key, row: &ClaimRow| {
        // Filter before paging: `next` must not reveal a key that the query does not match.
        let status = claim_rules::status(row, now).filter(|_| list.includes_key(key));
        status.is_some_and(|status| list.status.is_none_or(|asked| asked == status))
    };
    let mut found: Vec<(String, &Key, &ClaimRow)> = part
        .iter()
        .filter(|(key, row)| matches(key, row))
        .map(|(key, row)| (key.canonical(), key, row))
        .filter(|(name, ..)| name.as_str() > after)
        .collect();
    if found.len() > at_most {
        found.select_nth_unstable_by(at_most, |a, b| a.0.cmp(&b.0));
        found.truncate(at_most);
    }
    found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let summary = |(name, key, row): (String, &Key, &ClaimRow)| {
        Some((name, claim_rules::listed(key.clone(), row, now)?))
    };
    found.into_iter().filter_map(summary).collect()
}

impl MemoryStore {
    /// Counts something of each claim; `None` where there are too many.
    fn count(&self, mut count: impl FnMut(&Key, &ClaimRow)) -> Option<()> {
        let claims: usize = self.claims.each().map(|part| part.len()).sum();
        let all = || self.claims.each().for_each(|part| part.iter().for_each(|(k, r)| count(k, r)));
        (claims <= MAX_EXAMINED).then(all)
    }

    /// The tenants of a part of the claims, and how many keys were looked at. Behind the last part are records and jobs.
    fn tenants_of(&self, part: usize) -> (BTreeSet<String>, usize) {
        let (mut names, mut keys) = (BTreeSet::new(), 0);
        let mut add = |key: &Key| {
            keys += 1;
            let tenant = key.tenant().without_scope();
            if !names.contains(tenant.as_str()) {
                names.insert(tenant.as_str().to_owned());
            }
        };
        if part < ClaimParts::COUNT {
            self.claims.part(part).keys().for_each(&mut add);
        } else {
            let tables = self.tables();
            tables.records.keys().for_each(&mut add);
            tables.jobs.keys().filter(|job| !job.is_operators_job()).for_each(&mut add);
        }
        (names, keys)
    }
}

fn tenant_page(names: BTreeSet<String>) -> TenantPage {
    TenantPage::of_names(names.into_iter().collect(), u32::MAX)
}

#[async_trait]
impl Oversight for MemoryStore {
    async fn list(&self, list: &ClaimQuery) -> StoreResult<ClaimPage> {
        let now = self.clock.now();
        let at_most = list.max_claims.max(1) as usize;
        let mut position = list.after.as_deref().map(PagePosition::decode).unwrap_or_default();
        let (mut page, mut examined) = (ClaimPage::default(), 0);
        while position.part < ClaimParts::COUNT {
            let room = at_most - page.claims.len();
            let found = {
                let part = self.claims.part(position.part);
                examined += part.len();
                // One more than the page has room for tells that the next page begins in this part.
                listed(&part, list, &position.after, room + 1, now)
            };
            let is_cut = found.len() > room;
            for (name, claim) in found.into_iter().take(room) {
                page.claims.push(claim);
                position.after = name;
            }
            if is_cut {
                page.next = Some(position.encode());
                return Ok(page);
            }
            position = PagePosition { part: position.part + 1, after: String::new() };
            if examined >= MAX_EXAMINED {
                page.next = (position.part < ClaimParts::COUNT).then(|| position.encode());
                return Ok(page);
            }
        }
        Ok(page)
    }

    async fn tenants(&self, after: Option<&str>, at_most: u32) -> StoreResult<TenantPage> {
        let mut position = after.map(PagePosition::decode).unwrap_or_default();
        let (mut found, mut examined) = (BTreeSet::new(), 0);
        while position.part <= ClaimParts::COUNT && examined < MAX_EXAMINED {
            let (mut names, keys) = self.tenants_of(position.part);
            examined += keys;
            names.retain(|name| *name > position.after);
            for name in names {
                if found.len() >= at_most.max(1) as usize && !found.contains(&name) {
                    let next = Some(position.encode());
                    return Ok(TenantPage { next, ..tenant_page(found) });
                }
                found.insert(name.clone());
                position.after = name;
            }
            position = PagePosition { part: position.part + 1, after: String::new() };
        }
        let next = (position.part <= ClaimParts::COUNT).then(|| position.encode());
        Ok(TenantPage { next, ..tenant_page(found) })
    }

    async fn count_open(
        &self,
        whose: Option<&Tenant>,
        kind: KeyKind,
    ) -> StoreResult<Option<OpenClaims>> {
        let now = self.clock.now();
        let mut open = OpenClaims::default();
        let counted = self.count(|key, row| {
            let counts =
                key.kind() == kind && whose.is_none_or(|tenant| includes(tenant, key.tenant()));
            if let Some(status) = claim_rules::status(row, now).filter(|_| counts) {
                open.add(status, 1);
            }
        });
        Ok(counted.map(|()| open))
    }

    async fn count_claims(&self, tenant: &Tenant, at_most: u64) -> StoreResult<Option<u64>> {
        let mut claims = 0;
        let counted = self.count(|key, _| claims += u64::from(includes(tenant, key.tenant())));
        Ok(counted.map(|()| at_most.min(claims)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;
    use crate::claim_rules::ClaimPhase;
    use crate::{ClaimStatus, Expect, Fence, Operation, Put, Records, Token};

    fn command(n: usize) -> Key {
        Key::command(&Tenant::default(), Operation("pay"), &format!("order-{n}")).unwrap()
    }

    fn store_of(claims: usize) -> MemoryStore {
        let store = MemoryStore::default();
        let now = store.clock.now();
        let (lease_end, expires_at) = (now, now.plus(Duration::from_secs(3600)));
        let row = ClaimRow {
            phase: ClaimPhase::Settled,
            fence: Fence(1),
            attempt: 1,
            token: Token::random(),
            fingerprint: None,
            granted_at: now,
            lease_end,
            retention: Duration::from_secs(3600),
            expires_at,
            value: Default::default(),
        };
        for n in 0..claims {
            store.claims.insert(command(n), row.clone());
        }
        store
    }

    fn query(status: Option<ClaimStatus>, max_claims: u32) -> ClaimQuery {
        let (tenant, kind) = (Tenant::default(), KeyKind::Command);
        ClaimQuery { tenant, kind, status, scope: None, after: None, max_claims }
    }

    #[tokio::test]
    async fn pages_of_memory_store_show_every_claim_once() {
        let store = store_of(5000);
        let (mut list, mut shown, mut pages) = (query(None, 7), HashSet::new(), 0);
        loop {
            let page = store.list(&list).await.unwrap();
            assert!(page.claims.len() <= 7);
            for claim in page.claims {
                assert!(shown.insert(claim.key.name().to_owned()), "shown twice");
            }
            pages += 1;
            list.after = page.next;
            if list.after.is_none() {
                break;
            }
        }
        assert_eq!((shown.len(), pages), (5000, 5000_usize.div_ceil(7)));
    }

    #[tokio::test]
    async fn memory_store_counts_no_more_claims_than_a_page_looks_at() {
        let tenant = Tenant::default();
        for (claims, counted) in
            [(MAX_EXAMINED, Some(MAX_EXAMINED as u64)), (MAX_EXAMINED + 1, None)]
        {
            let store = store_of(claims);
            assert_eq!(store.count_claims(&tenant, u64::MAX).await.unwrap(), counted);
            let open = store.count_open(None, KeyKind::Command).await.unwrap();
            assert_eq!(open, counted.map(|_| OpenClaims::default()));
        }
    }

    #[tokio::test]
    async fn page_of_tenants_looks_at_a_limited_number_of_claims() {
        let store = store_of(3 * MAX_EXAMINED);
        let record = Key::record(&Tenant::new("of-a-record").unwrap(), "k").unwrap();
        let put = store.put(&record, "1".into(), &Expect::Any, None).await;
        assert!(matches!(put, Ok(Put::Stored { .. })));
        let (mut after, mut pages) = (None, Vec::new());
        loop {
            let page = store.tenants(after.as_deref(), 50).await.unwrap();
            pages.push(page.tenants.iter().map(|t| t.as_str().to_owned()).collect::<Vec<_>>());
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert!((3..=4).contains(&pages.len()), "{pages:?}");
        assert_eq!(pages[0], ["default"]);
        assert_eq!(pages.pop().unwrap(), ["default", "of-a-record"]);
    }

    /// A page once was a pass over all claims of the store.
    #[tokio::test]
    async fn page_that_finds_nothing_ends_before_all_claims_were_examined() {
        let store = store_of(3 * MAX_EXAMINED);
        let (mut list, mut pages) = (query(Some(ClaimStatus::Unknown), 50), 0);
        loop {
            let page = store.list(&list).await.unwrap();
            assert_eq!(page.claims, []);
            pages += 1;
            list.after = page.next;
            if list.after.is_none() {
                break;
            }
        }
        assert!((3..=4).contains(&pages), "{pages} pages");
    }
}
