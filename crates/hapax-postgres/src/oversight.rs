//! `Oversight` on PostgreSQL: pages of claims in key order.

use async_trait::async_trait;
use hapax_core::{
    ClaimPage, ClaimQuery, ClaimStatus, Key, KeyKind, OpenClaims, Oversight, StoreResult, Tenant,
    claim_rules,
};

use crate::connect::session::{Params, SqlSession};
use crate::error::SqlResult;
use crate::{PostgresStore, row};

#[async_trait]
impl Oversight for PostgresStore {
    async fn list(&self, list: &ClaimQuery) -> StoreResult<ClaimPage> {
        self.pool.run(list_claims(&mut self.pool.session(), list)).await
    }

    async fn tenants(&self, at_most: u32) -> StoreResult<Vec<Tenant>> {
        self.pool.run(tenants(&mut self.pool.session(), at_most)).await
    }

    async fn count_open(&self, kind: KeyKind) -> StoreResult<Option<OpenClaims>> {
        self.pool.run(count_open(&mut self.pool.session(), kind)).await.map(Some)
    }
}

/// The tenants of a table. Each is found by one step in the primary key: after a tenant the search goes on at
/// the next name, and after a scope behind all scopes of its tenant (`0` follows `/`).
macro_rules! tenants_of {
    ($table:literal, $condition:literal) => {
        concat!(
            "SELECT tenant FROM (WITH RECURSIVE names (tenant) AS ( \
                 SELECT min(tenant) FROM ",
            $table,
            " WHERE ",
            $condition,
            " UNION ALL \
                 SELECT (SELECT min(t.tenant) FROM ",
            $table,
            " t WHERE ",
            $condition,
            " AND t.tenant >= \
                     CASE strpos(names.tenant, '/') WHEN 0 THEN names.tenant || '!' \
                     ELSE split_part(names.tenant, '/', 1) || '0' END) \
                 FROM names WHERE names.tenant IS NOT NULL) \
             SELECT tenant FROM names WHERE tenant IS NOT NULL) AS ",
            $table
        )
    };
}

const TENANTS: &str = concat!(
    tenants_of!("hapax_claims", "true"),
    " UNION ",
    tenants_of!("hapax_records", "true"),
    " UNION ",
    tenants_of!("hapax_jobs", "domain <> ''"),
);

async fn tenants<S: SqlSession>(session: &mut S, at_most: u32) -> SqlResult<Vec<Tenant>> {
    let rows = session.rows(TENANTS, &[]).await?;
    let mut tenants = Vec::with_capacity(rows.len());
    for row in &rows {
        tenants.push(Tenant::stored(row.try_get::<&str>("tenant")?).without_scope());
    }
    tenants.retain(|tenant| !tenant.as_str().is_empty());
    tenants.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    tenants.dedup();
    tenants.truncate(at_most as usize);
    Ok(tenants)
}

/// The clock is that of the transaction's start: a lease that is renewed after the snapshot has not run out.
const COUNT_OPEN: &str = "SELECT phase = 2 AS failed, lease_end > c.now AS alive, count(*) AS claims \
     FROM hapax_claims, (SELECT floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint AS now) c \
     WHERE phase <> 1 AND kind = $1 AND expires_at > c.now GROUP BY 1, 2";

async fn count_open<S: SqlSession>(session: &mut S, kind: KeyKind) -> SqlResult<OpenClaims> {
    let mut open = OpenClaims::default();
    for row in &session.rows(COUNT_OPEN, &[&kind.as_str()]).await? {
        let status = match (row.try_get("failed")?, row.try_get("alive")?) {
            (true, _) => ClaimStatus::Failed,
            (false, true) => ClaimStatus::Pending,
            (false, false) => ClaimStatus::Unknown,
        };
        open.add(status, row::number(row, "claims")?);
    }
    Ok(open)
}

async fn list_claims<S: SqlSession>(session: &mut S, list: &ClaimQuery) -> SqlResult<ClaimPage> {
    let after = list.after.as_deref().and_then(Key::from_canonical);
    let (tenant, scope, name) =
        after.as_ref().map_or(("", "", ""), |key| (key.tenant().as_str(), key.scope(), key.name()));
    let (mine, kind) = (list.tenant.as_str(), list.kind.as_str());
    let at_most = i64::from(list.max_claims);
    let open_only = list.status.is_some_and(|status| status != ClaimStatus::Settled);
    let sql = include_str!("sql/list.sql");
    let params: Params<'_> = &[&mine, &kind, &tenant, &scope, &name, &at_most, &open_only];
    let rows = session.rows(sql, params).await?;
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
