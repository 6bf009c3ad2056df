//! `Oversight` on PostgreSQL: pages of claims in key order.

use async_trait::async_trait;
use hapax_core::{ClaimPage, ClaimQuery, Key, Oversight, StoreResult, claim_rules};

use crate::connect::session::SqlSession;
use crate::error::SqlResult;
use crate::{PostgresStore, row};

#[async_trait]
impl Oversight for PostgresStore {
    async fn list(&self, list: &ClaimQuery) -> StoreResult<ClaimPage> {
        self.pool.run(list_claims(&mut self.pool.session(), list)).await
    }
}

async fn list_claims<S: SqlSession>(session: &mut S, list: &ClaimQuery) -> SqlResult<ClaimPage> {
    let after = list.after.as_deref().and_then(Key::from_canonical);
    let (tenant, scope, name) =
        after.as_ref().map_or(("", "", ""), |key| (key.tenant().as_str(), key.scope(), key.name()));
    let (mine, kind) = (list.tenant.as_str(), list.kind.as_str());
    let at_most = i64::from(list.max_claims);
    let sql = include_str!("sql/list.sql");
    let rows = session.rows(sql, &[&mine, &kind, &tenant, &scope, &name, &at_most]).await?;
    let mut page = ClaimPage::default();
    let mut is_full = rows.len() as i64 == at_most;
    for found in &rows {
        let text = |column| found.try_get::<&str>(column);
        let key = Key::stored(text("tenant")?, text("kind")?, text("scope")?, text("name")?);
        let Some(key) = key else { continue };
        page.next = Some(key.canonical());
        let Some(claim) = row::claim(found)? else {
            // Only the place where the next page begins.
            is_full = true;
            continue;
        };
        let listed = claim_rules::listed(key, &claim, row::timestamp(found, "now")?);
        page.claims.extend(listed.filter(|listed| list.shows(listed)));
    }
    page.next = page.next.filter(|_| is_full);
    Ok(page)
}
