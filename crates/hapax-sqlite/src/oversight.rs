//! `Oversight` on SQLite: pages of claims in key order, read along the primary key, or along the index of
//! open claims where settled ones are not asked for.

use async_trait::async_trait;
use hapax_core::{
    ClaimPage, ClaimQuery, ClaimStatus, Key, KeyKind, OpenClaims, Oversight, StoreResult, Tenant,
    TenantPage, claim_rules,
};
use rusqlite::{ToSql, params};

use crate::SqliteStore;
use crate::claims::decode_row;
use crate::session::{Session, UnsignedColumns, to_i64};

/// How many tenants one page looks at: those without a claim of the kind cost time, too.
const MAX_TENANTS: usize = 1000;

/// The claims of one tenant, from this source and after this place. Values are left out, because they may be
/// large.
macro_rules! claims_of {
    ($from:literal, $after:literal) => {
        concat!(
            "SELECT phase, fence, attempt, token, fingerprint, granted_at, lease_end, retention, expires_at, \
                    x'', scope, name FROM ",
            $from,
            " tenant = ?1 AND kind = ?2 AND ",
            $after,
            " ORDER BY scope, name LIMIT ?5"
        )
    };
}

const CLAIMS: &str = claims_of!("hapax_claims WHERE", "(scope, name) > (?3, ?4)");

const CLAIMS_OF_SCOPE: &str = claims_of!("hapax_claims WHERE", "scope = ?3 AND name > ?4");

/// As [`CLAIMS`], without the settled ones.
const OPEN_CLAIMS: &str = claims_of!(
    "hapax_claims INDEXED BY hapax_claims_open WHERE phase <> 1 AND",
    "(scope, name) > (?3, ?4)"
);

/// As [`CLAIMS_OF_SCOPE`], without the settled ones.
const OPEN_CLAIMS_OF_SCOPE: &str = claims_of!(
    "hapax_claims INDEXED BY hapax_claims_open WHERE phase <> 1 AND",
    "scope = ?3 AND name > ?4"
);

/// The next tenant with any claim.
const NEXT_TENANT: &str =
    "SELECT tenant FROM hapax_claims WHERE tenant > ?1 AND tenant < ?2 ORDER BY tenant LIMIT 1";

/// The next tenant with an open claim of a kind.
const NEXT_OPEN_TENANT: &str = "SELECT tenant FROM hapax_claims INDEXED BY hapax_claims_open \
                                WHERE phase <> 1 AND kind = ?3 AND tenant > ?1 AND tenant < ?2 \
                                ORDER BY tenant LIMIT 1";

/// The open claims of a range of tenants.
const COUNT_OPEN: &str = "SELECT phase = 2, lease_end > ?2, count(*) \
                          FROM hapax_claims INDEXED BY hapax_claims_open \
                          WHERE phase <> 1 AND kind = ?1 AND tenant >= ?3 AND tenant < ?4 \
                            AND expires_at > ?2 GROUP BY 1, 2";

/// The claims of a range of tenants, counted in the primary key alone.
const COUNT_CLAIMS: &str = "SELECT count(*) FROM ( \
                                SELECT 1 FROM hapax_claims \
                                WHERE tenant >= ?1 AND tenant < ?2 LIMIT ?3)";

#[async_trait]
impl Oversight for SqliteStore {
    async fn list(&self, list: &ClaimQuery) -> StoreResult<ClaimPage> {
        let list = list.clone();
        self.read_as_operator(move |session| list_claims(session, &list)).await
    }

    async fn tenants(&self, after: Option<&str>, at_most: u32) -> StoreResult<TenantPage> {
        let after = after.unwrap_or_default().to_owned();
        self.read_as_operator(move |session| tenants(session, &after, at_most)).await
    }

    async fn count_open(
        &self,
        whose: Option<&Tenant>,
        kind: KeyKind,
    ) -> StoreResult<Option<OpenClaims>> {
        let whose = whose.cloned();
        let count = move |session: Session<'_>| count_open(session, whose.as_ref(), kind);
        self.read_as_operator(count).await.map(Some)
    }

    async fn count_claims(&self, tenant: &Tenant, at_most: u64) -> StoreResult<Option<u64>> {
        let tenant = tenant.clone();
        let count = move |session: Session<'_>| count_claims(session, &tenant, at_most);
        self.read_as_operator(count).await.map(Some)
    }
}

/// The first `?2` tenants of a table after the name `?1`. Each is found by one step in an index: after a tenant the search goes on
/// at the next name, and after a scope behind all scopes of its tenant (`0` follows `/`).
macro_rules! tenants_of {
    ($rows:literal) => {
        concat!(
            "SELECT tenant FROM (WITH RECURSIVE names (tenant) AS ( \
                 SELECT ?1 UNION ALL \
                 SELECT (SELECT min(tenant) FROM ",
            $rows,
            " AND tenant >= CASE instr(names.tenant, '/') WHEN 0 THEN names.tenant || '!' \
                     ELSE substr(names.tenant, 1, instr(names.tenant, '/') - 1) || '0' END) \
                 FROM names WHERE names.tenant IS NOT NULL LIMIT ?2 + 1) \
             SELECT tenant FROM names WHERE tenant > ?1)"
        )
    };
}

const TENANTS: &str = concat!(
    tenants_of!("hapax_claims WHERE true"),
    " UNION ",
    tenants_of!("hapax_records WHERE true"),
    " UNION ",
    tenants_of!("hapax_jobs WHERE live = 1 AND domain <> ''"),
);

fn tenants(session: Session<'_>, after: &str, at_most: u32) -> StoreResult<TenantPage> {
    let names = session.all(TENANTS, params![after, i64::from(at_most) + 1], |row| row.get(0))?;
    Ok(TenantPage::of_names(names, at_most))
}

/// The ranges of names that are a tenant and its scopes: a scope is the name, `/` and more, and `0` follows `/`. A
/// space is less than any character of a name.
fn tenant_ranges(tenant: &Tenant) -> [[String; 2]; 2] {
    let name = tenant.as_str();
    [[name.to_owned(), format!("{name} ")], [format!("{name}/"), format!("{name}0")]]
}

fn count_open(
    session: Session<'_>,
    tenant: Option<&Tenant>,
    kind: KeyKind,
) -> StoreResult<OpenClaims> {
    let now = to_i64(session.now()?.0);
    // Names are printable ASCII.
    let all = || vec![[String::new(), "\u{7f}".to_owned()]];
    let mut open = OpenClaims::default();
    for [from, to] in tenant.map_or_else(all, |tenant| tenant_ranges(tenant).into()) {
        let counts: Vec<(bool, bool, u64)> =
            session.all(COUNT_OPEN, params![kind.as_str(), now, from, to], |row| {
                Ok((row.get(0)?, row.get(1)?, row.unsigned(2)?))
            })?;
        for (failed, alive, count) in counts {
            open.add(open_status(failed, alive), count);
        }
    }
    Ok(open)
}

fn count_claims(session: Session<'_>, tenant: &Tenant, at_most: u64) -> StoreResult<u64> {
    let mut claims = 0;
    for [from, to] in tenant_ranges(tenant) {
        let left = to_i64(at_most - claims);
        claims += session.one(COUNT_CLAIMS, params![from, to, left], |row| row.unsigned(0))?;
    }
    Ok(claims)
}

fn open_status(failed: bool, alive: bool) -> ClaimStatus {
    match (failed, alive) {
        (true, _) => ClaimStatus::Failed,
        (false, true) => ClaimStatus::Pending,
        (false, false) => ClaimStatus::Unknown,
    }
}

fn list_claims(session: Session<'_>, list: &ClaimQuery) -> StoreResult<ClaimPage> {
    let now = session.now()?;
    let (mine, kind) = (list.tenant.as_str(), list.kind.as_str());
    let after = list.after.as_deref().and_then(Key::from_canonical);
    let scope = list.scope.as_deref().unwrap_or_default();
    let start = |tenant: &str| Key::stored(tenant, kind, scope, "");
    let Some(mut at) = after.or_else(|| start(mine)) else { return Ok(ClaimPage::default()) };
    let (mut page, mut left) = (ClaimPage::default(), list.max_claims);
    let open_only = list.status.is_some_and(|status| status != ClaimStatus::Settled);
    let claims = match (open_only, &list.scope) {
        (false, None) => CLAIMS,
        (false, Some(_)) => CLAIMS_OF_SCOPE,
        (true, None) => OPEN_CLAIMS,
        (true, Some(_)) => OPEN_CLAIMS_OF_SCOPE,
    };
    for _ in 0..MAX_TENANTS {
        let rows: Vec<_> = session.all(
            claims,
            params![at.tenant().as_str(), kind, at.scope(), at.name(), left],
            |row| {
                let text = |column| row.get::<_, String>(column);
                let key = Key::stored(at.tenant().as_str(), kind, &text(10)?, &text(11)?);
                Ok((key, decode_row(row)?))
            },
        )?;
        for (key, claim) in rows {
            let Some(key) = key else { continue };
            left -= 1;
            let listed = claim_rules::listed(key.clone(), &claim, now);
            page.claims.extend(listed.filter(|listed| list.shows(listed)));
            at = key;
        }
        if left == 0 {
            page.next = Some(at.canonical());
            return Ok(page);
        }
        // The scopes of a tenant are the tenants whose names begin with its name and `/`, and `0`
        // follows `/`.
        let scopes = format!("{mine}/");
        let last = at.tenant().as_str().max(&scopes);
        let end = format!("{mine}0");
        // The third parameter is in one of the two texts.
        let (next_tenant, params): (_, &[&dyn ToSql]) = match open_only {
            true => (NEXT_OPEN_TENANT, &[&last, &end, &kind]),
            false => (NEXT_TENANT, &[&last, &end]),
        };
        let next = session.first(next_tenant, params, |row| row.get::<_, String>(0))?;
        let Some(next) = next.and_then(|tenant| start(&tenant)) else { return Ok(page) };
        at = next;
    }
    page.next = Some(at.canonical());
    Ok(page)
}

#[cfg(test)]
mod tests {
    use rusqlite::{Connection, types::Null};

    use super::*;

    fn plan(sql: &str) -> Vec<String> {
        let connection = Connection::open_in_memory().unwrap();
        crate::migrate(&connection).unwrap();
        let mut query = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let nulls = vec![Null; query.parameter_count()];
        let plan = query.query_map(rusqlite::params_from_iter(nulls), |row| row.get(3));
        plan.unwrap().collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn fault_45_tenants_are_found_by_steps_in_indexes() {
        let plan = plan(TENANTS);
        let on_tables = || plan.iter().filter(|step| step.contains(" hapax_"));
        assert_eq!(on_tables().count(), 3, "{plan:?}");
        assert!(on_tables().all(|step| step.starts_with("SEARCH")), "{plan:?}");
    }

    #[test]
    fn fault_29_lists_read_along_the_primary_key() {
        for (sql, expected) in [
            (CLAIMS, "(tenant=? AND kind=? AND (scope,name)>(?,?))"),
            (CLAIMS_OF_SCOPE, "(tenant=? AND kind=? AND scope=? AND name>?)"),
            (NEXT_TENANT, "(tenant>? AND"),
            (
                OPEN_CLAIMS_OF_SCOPE,
                "hapax_claims_open (kind=? AND tenant=? AND scope=? AND name>?)",
            ),
            (OPEN_CLAIMS, "hapax_claims_open (kind=? AND tenant=? AND (scope,name)>(?,?))"),
            (NEXT_OPEN_TENANT, "hapax_claims_open (kind=? AND tenant>? AND"),
        ] {
            let plan = plan(sql);
            let [step] = plan.as_slice() else { panic!("{plan:?}") };
            assert!(step.starts_with("SEARCH") && step.contains(expected), "{plan:?}");
        }
    }
    #[test]
    fn counts_read_the_index_of_their_tenants_alone() {
        for (sql, expected) in [
            (COUNT_OPEN, "hapax_claims_open (kind=? AND tenant>? AND tenant<?)"),
            (
                COUNT_CLAIMS,
                "COVERING INDEX sqlite_autoindex_hapax_claims_1 (tenant>? AND tenant<?)",
            ),
        ] {
            let plan = plan(sql);
            let found = |step: &String| step.starts_with("SEARCH") && step.contains(expected);
            assert!(plan.iter().any(found), "{plan:?}");
        }
    }
}
