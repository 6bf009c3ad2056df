//! `Oversight` on PostgreSQL: pages of claims in key order.

use async_trait::async_trait;
use hapax_core::{
    ClaimPage, ClaimQuery, ClaimStatus, Key, KeyKind, OpenClaims, Oversight, StoreResult, Tenant,
    TenantPage, claim_rules,
};

use crate::connect::session::{Params, SqlSession};
use crate::error::SqlResult;
use crate::{PostgresStore, row};

#[async_trait]
impl Oversight for PostgresStore {
    async fn list(&self, list: &ClaimQuery) -> StoreResult<ClaimPage> {
        self.pool.run(list_claims(&mut self.pool.session(), list)).await
    }

    async fn tenants(&self, after: Option<&str>, at_most: u32) -> StoreResult<TenantPage> {
        self.pool.run(tenants(&mut self.pool.session(), after.unwrap_or_default(), at_most)).await
    }

    async fn count_open(
        &self,
        whose: Option<&Tenant>,
        kind: KeyKind,
    ) -> StoreResult<Option<OpenClaims>> {
        self.pool.run(count_open(&mut self.pool.session(), whose, kind)).await.map(Some)
    }

    async fn count_claims(&self, tenant: &Tenant, at_most: u64) -> StoreResult<Option<u64>> {
        self.pool.run(count_claims(&mut self.pool.session(), tenant, at_most)).await.map(Some)
    }
}

/// The first `$2` tenants of a table after the name `$1`. Each is found by one step in the primary key: after a tenant the search
/// goes on at the next name, and after a scope behind all scopes of its tenant (`0` follows `/`).
macro_rules! tenants_of {
    ($table:literal, $condition:literal) => {
        concat!(
            "SELECT tenant FROM (WITH RECURSIVE names (tenant) AS ( \
                 SELECT $1::text COLLATE \"C\" UNION ALL \
                 SELECT (SELECT min(t.tenant) FROM ",
            $table,
            " t WHERE ",
            $condition,
            " AND t.tenant >= \
                     CASE strpos(names.tenant, '/') WHEN 0 THEN names.tenant || '!' \
                     ELSE split_part(names.tenant, '/', 1) || '0' END) \
                 FROM names WHERE names.tenant IS NOT NULL) \
             SELECT tenant FROM names WHERE tenant > $1 LIMIT $2) AS ",
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

async fn tenants<S: SqlSession>(
    session: &mut S,
    after: &str,
    at_most: u32,
) -> SqlResult<TenantPage> {
    let rows = session.rows(TENANTS, &[&after, &(i64::from(at_most) + 1)]).await?;
    let names: SqlResult<_> = rows.iter().map(|row| row.try_get("tenant")).collect();
    Ok(TenantPage::of_names(names?, at_most))
}

/// The clock is that of the transaction's start: a lease that is renewed after the snapshot has not run out.
const COUNT_OPEN: &str = "SELECT phase = 2 AS failed, lease_end > c.now AS alive, count(*) AS claims \
     FROM hapax_claims, (SELECT floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint AS now) c \
     WHERE phase <> 1 AND kind = $1 AND expires_at > c.now GROUP BY 1, 2";

/// As [`COUNT_OPEN`], of one tenant and its scopes (`0` follows `/`).
const COUNT_OPEN_OF: &str = "SELECT phase = 2 AS failed, lease_end > c.now AS alive, count(*) AS claims \
     FROM (SELECT phase, lease_end, expires_at FROM hapax_claims \
           WHERE phase <> 1 AND kind = $1 AND tenant = $2 \
           UNION ALL \
           SELECT phase, lease_end, expires_at FROM hapax_claims \
           WHERE phase <> 1 AND kind = $1 AND tenant > $2 || '/' AND tenant < $2 || '0') open, \
          (SELECT floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint AS now) c \
     WHERE expires_at > c.now GROUP BY 1, 2";

/// Counts entries of the primary key.
const COUNT_CLAIMS: &str = "SELECT count(*) AS claims FROM ( \
         (SELECT 1 FROM hapax_claims WHERE tenant = $1 LIMIT $2) \
         UNION ALL \
         (SELECT 1 FROM hapax_claims WHERE tenant > $1 || '/' AND tenant < $1 || '0' LIMIT $2) \
         LIMIT $2) claims";

async fn count_claims<S: SqlSession>(
    session: &mut S,
    tenant: &Tenant,
    at_most: u64,
) -> SqlResult<u64> {
    let rows = session.rows(COUNT_CLAIMS, &[&tenant.as_str(), &row::to_i64(at_most)]).await?;
    row::number(row::only(&rows)?, "claims")
}

async fn count_open<S: SqlSession>(
    session: &mut S,
    whose: Option<&Tenant>,
    kind: KeyKind,
) -> SqlResult<OpenClaims> {
    let rows = match whose {
        None => session.rows(COUNT_OPEN, &[&kind.as_str()]).await?,
        Some(tenant) => session.rows(COUNT_OPEN_OF, &[&kind.as_str(), &tenant.as_str()]).await?,
    };
    let mut open = OpenClaims::default();
    for row in &rows {
        let status = match (row.try_get("failed")?, row.try_get("alive")?) {
            (true, _) => ClaimStatus::Failed,
            (false, true) => ClaimStatus::Pending,
            (false, false) => ClaimStatus::Unknown,
        };
        open.add(status, row::number(row, "claims")?);
    }
    Ok(open)
}

/// One page of claims with a scope, of a tenant and its own scopes. As `hapax_list_claims` it goes from tenant to
/// tenant, and after 1000 of them it ends with a row without a phase. The join must be a nested loop, because its inner
/// side depends on the outer one: the rows come in the order of their keys, and no more are read than are returned.
macro_rules! claims_of_scope {
    ($rows:literal, $of_kind:literal) => {
        concat!(
            "WITH RECURSIVE tenants (tenant, nth) AS ( \
                 SELECT greatest($1 COLLATE \"C\", $3), 1 \
                 UNION ALL \
                 SELECT (SELECT c.tenant FROM hapax_claims c WHERE ",
            $rows,
            $of_kind,
            "  c.tenant > greatest(t.tenant, $1 || '/') AND c.tenant < $1 || '0' \
                         ORDER BY c.tenant LIMIT 1), t.nth + 1 \
                 FROM tenants t WHERE t.tenant IS NOT NULL AND t.nth <= 1000) \
             SELECT floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint AS now, c.fence, \
                    c.phase, c.attempt, c.granted_at, c.lease_end, c.retention, c.expires_at, c.token, \
                    c.fingerprint, ''::bytea AS value, t.tenant::text AS tenant, $2 AS kind, $4 AS scope, \
                    coalesce(c.name, '')::text AS name \
             FROM tenants t LEFT JOIN LATERAL ( \
                 SELECT * FROM hapax_claims c \
                 WHERE ",
            $rows,
            "  c.tenant = t.tenant AND c.kind = $2 AND c.scope = $4 \
                   AND c.name > CASE WHEN t.tenant = $3 THEN $5 ELSE '' END \
                   AND t.nth <= 1000 \
                 ORDER BY c.name LIMIT $6) c ON true \
             WHERE t.tenant IS NOT NULL AND (c.phase IS NOT NULL OR t.nth > 1000) LIMIT $6"
        )
    };
}

const CLAIMS_OF_SCOPE: &str = claims_of_scope!("", "");

const OPEN_CLAIMS_OF_SCOPE: &str = claims_of_scope!("c.phase <> 1 AND ", "c.kind = $2 AND ");

async fn list_claims<S: SqlSession>(session: &mut S, list: &ClaimQuery) -> SqlResult<ClaimPage> {
    let after = list.after.as_deref().and_then(Key::from_canonical);
    let (tenant, scope, name) =
        after.as_ref().map_or(("", "", ""), |key| (key.tenant().as_str(), key.scope(), key.name()));
    let (mine, kind) = (list.tenant.as_str(), list.kind.as_str());
    let at_most = i64::from(list.max_claims);
    let open_only = list.status.is_some_and(|status| status != ClaimStatus::Settled);
    let rows = match list.scope.as_deref() {
        None => {
            let params: Params<'_> = &[&mine, &kind, &tenant, &scope, &name, &at_most, &open_only];
            session.rows(include_str!("sql/list.sql"), params).await?
        }
        Some(wanted) => {
            let name = Some(name).filter(|_| scope == wanted).unwrap_or_default();
            let params: Params<'_> = &[&mine, &kind, &tenant, &wanted, &name, &at_most];
            session
                .rows(if open_only { OPEN_CLAIMS_OF_SCOPE } else { CLAIMS_OF_SCOPE }, params)
                .await?
        }
    };
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
