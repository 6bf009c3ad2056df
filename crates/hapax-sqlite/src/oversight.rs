//! `Oversight` on SQLite: pages of claims in key order.

use async_trait::async_trait;
use hapax_core::{ClaimPage, ClaimQuery, Clock, Key, Oversight, StoreError, claim_rules};
use rusqlite::{Connection, params};

use crate::SqliteStore;
use crate::claims::decode_row;
use crate::error::{column_error, store_error};

#[async_trait]
impl Oversight for SqliteStore {
    async fn list(&self, list: &ClaimQuery) -> Result<ClaimPage, StoreError> {
        let (clock, list) = (self.clock(), list.clone());
        self.read(move |c| list_claims(c, &*clock, &list)).await
    }
}

fn list_claims(
    connection: &Connection,
    clock: &dyn Clock,
    list: &ClaimQuery,
) -> Result<ClaimPage, StoreError> {
    let now = clock.now();
    let after = list.after.as_deref().and_then(Key::from_canonical);
    let (tenant, scope, name) =
        after.as_ref().map_or(("", "", ""), |key| (key.tenant().as_str(), key.scope(), key.name()));
    let mut query = connection
        .prepare_cached(
            // Values are left out, because they may be large. `0` follows `/`, so the range covers the
            // tenant's own rows and those of its scopes.
            "SELECT phase, fence, attempt, token, fingerprint, granted_at, lease_end, retention, \
                    expires_at, x'', tenant, kind, scope, name \
             FROM hapax_claims \
             WHERE (tenant = ?1 OR (tenant > ?1 || '/' AND tenant < ?1 || '0')) AND kind = ?2 \
               AND (tenant, kind, scope, name) > (?3, ?2, ?4, ?5) \
             ORDER BY tenant, kind, scope, name LIMIT ?6",
        )
        .map_err(store_error)?;
    let (mine, kind) = (list.tenant.as_str(), list.kind.as_str());
    let mut rows = query
        .query(params![mine, kind, tenant, scope, name, list.max_claims])
        .map_err(store_error)?;
    let (mut page, mut seen) = (ClaimPage::default(), 0);
    while let Some(raw) = rows.next().map_err(store_error)? {
        let text = |column| -> Result<String, StoreError> { raw.get(column).map_err(column_error) };
        let key = Key::stored(&text(10)?, &text(11)?, &text(12)?, &text(13)?);
        let Some(key) = key else { continue };
        seen += 1;
        page.next = Some(key.canonical());
        let listed = claim_rules::listed(key, &decode_row(raw)?, now);
        page.claims.extend(listed.filter(|listed| list.shows(listed)));
    }
    page.next = page.next.filter(|_| seen == list.max_claims);
    Ok(page)
}
