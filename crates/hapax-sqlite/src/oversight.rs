//! `Oversight` on SQLite: pages of claims in key order.

use async_trait::async_trait;
use hapax_core::{ClaimPage, ClaimQuery, Key, Oversight, StoreResult, claim_rules};
use rusqlite::params;

use crate::SqliteStore;
use crate::claims::decode_row;
use crate::session::Session;

#[async_trait]
impl Oversight for SqliteStore {
    async fn list(&self, list: &ClaimQuery) -> StoreResult<ClaimPage> {
        let list = list.clone();
        self.read(move |session| list_claims(session, &list)).await
    }
}

fn list_claims(session: Session<'_>, list: &ClaimQuery) -> StoreResult<ClaimPage> {
    let now = session.now()?;
    let after = list.after.as_deref().and_then(Key::from_canonical);
    let (tenant, scope, name) =
        after.as_ref().map_or(("", "", ""), |key| (key.tenant().as_str(), key.scope(), key.name()));
    let (mine, kind) = (list.tenant.as_str(), list.kind.as_str());
    let rows: Vec<_> = session.all(
        // Values are left out, because they may be large. `0` follows `/`, so the range covers the
        // tenant's own rows and those of its scopes.
        "SELECT phase, fence, attempt, token, fingerprint, granted_at, lease_end, retention, \
                expires_at, x'', tenant, kind, scope, name \
         FROM hapax_claims \
         WHERE (tenant = ?1 OR (tenant > ?1 || '/' AND tenant < ?1 || '0')) AND kind = ?2 \
           AND (tenant, kind, scope, name) > (?3, ?2, ?4, ?5) \
         ORDER BY tenant, kind, scope, name LIMIT ?6",
        params![mine, kind, tenant, scope, name, list.max_claims],
        |row| {
            let text = |column| row.get::<_, String>(column);
            let key = Key::stored(&text(10)?, &text(11)?, &text(12)?, &text(13)?);
            Ok((key, decode_row(row)?))
        },
    )?;
    let (mut page, mut seen) = (ClaimPage::default(), 0);
    for (key, claim) in &rows {
        let Some(key) = key else { continue };
        seen += 1;
        page.next = Some(key.canonical());
        let listed = claim_rules::listed(key.clone(), claim, now);
        page.claims.extend(listed.filter(|listed| list.shows(listed)));
    }
    page.next = page.next.filter(|_| seen == list.max_claims);
    Ok(page)
}
