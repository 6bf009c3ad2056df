//! Pages of claims for an operator: `SCAN`, master by master.

use async_trait::async_trait;
use futures_util::future::try_join_all;
use hapax_core::claims::ClaimState;
use hapax_core::{
    ClaimPage, ClaimQuery, ClaimStatus, ClaimSummary, ClaimView, Key, KeyKind, OpenClaims,
    Oversight, StoreError, StoreResult, Tenant, TenantPage, Token,
};
use redis::Cmd;

use crate::client::read;
use crate::store::RedisStore;

#[async_trait]
impl Oversight for RedisStore {
    /// Leaves locks with verbatim names out, because they may be a foreign program's.
    async fn list(&self, list: &ClaimQuery) -> StoreResult<ClaimPage> {
        let (tenant, kind) = (escape_pattern(list.tenant.as_str()), list.kind.as_str());
        let scope =
            list.scope.as_deref().map_or_else(String::new, |scope| escape_pattern(scope) + ":");
        let pattern = format!("{}:{{{tenant}*:{kind}:{scope}*}}", self.names.prefix);
        let (names, next) = self.scan(list.after.as_deref(), &pattern, list.max_claims).await?;
        let keys = names.iter().filter_map(|name| self.key_of(name));
        let looks = keys.map(|key| async {
            let view = self.look_without_value(&key).await?;
            Ok::<_, StoreError>(view.and_then(|view| listed(key, view)))
        });
        let found = try_join_all(looks).await?;
        let claims = found.into_iter().flatten().filter(|listed| list.shows(listed)).collect();
        Ok(ClaimPage { claims, next })
    }

    /// The tenants of the keys that one `SCAN` looks at, in no order from page to page.
    async fn tenants(&self, after: Option<&str>, _: u32) -> StoreResult<TenantPage> {
        let pattern = format!("{}:{{*:*", self.names.prefix);
        let (names, next) = self.scan(after, &pattern, SCAN_COUNT).await?;
        let keys = names.iter().filter_map(|name| self.key_of(name).or_else(|| self.job_of(name)));
        let keys = keys.filter(|key| !key.is_operators_job());
        let mut tenants: Vec<_> = keys.map(|key| key.tenant().without_scope()).collect();
        tenants.retain(|tenant| !tenant.as_str().is_empty());
        tenants.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        tenants.dedup();
        Ok(TenantPage { tenants, next })
    }

    async fn count_open(&self, _: Option<&Tenant>, _: KeyKind) -> StoreResult<Option<OpenClaims>> {
        Ok(None)
    }

    async fn count_claims(&self, _: &Tenant, _: u64) -> StoreResult<Option<u64>> {
        Ok(None)
    }
}

/// How many keys the `SCAN` for a page of tenants looks at: less than a millisecond of the server's time.
const SCAN_COUNT: u32 = 1000;

impl RedisStore {
    /// One step of a walk over all keys, master by master: those that match among about `count`, and where the next step
    /// goes on.
    async fn scan(
        &self,
        after: Option<&str>,
        pattern: &str,
        count: u32,
    ) -> StoreResult<(Vec<String>, Option<String>)> {
        let replies = self.client.send_to_masters(&redis::cmd("PING")).await?;
        let mut masters: Vec<_> = replies.into_iter().map(|(address, _)| address).collect();
        masters.sort();
        let (at, cursor) = after.map_or((0, "0"), |after| {
            let (at, cursor) = after.split_once(':').unwrap_or(("0", "0"));
            (at.parse().unwrap_or(0), cursor)
        });
        let Some(master) = masters.get(at) else { return Ok((Vec::new(), None)) };
        let mut scan = Cmd::new();
        scan.arg("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(count.max(1));
        let (cursor, names): (String, Vec<String>) =
            read(self.client.send_to(master, &scan).await?)?;
        let next = match (cursor.as_str(), at + 1) {
            ("0", next) if next >= masters.len() => None,
            ("0", next) => Some(format!("{next}:0")),
            (cursor, _) => Some(format!("{at}:{cursor}")),
        };
        Ok((names, next))
    }

    fn key_of(&self, name: &str) -> Option<Key> {
        let tagged = name.strip_prefix(&*self.names.prefix)?.strip_prefix(":{")?;
        Key::from_canonical(tagged.strip_suffix('}')?)
    }

    /// The job whose log has this name.
    fn job_of(&self, name: &str) -> Option<Key> {
        let (_, job) =
            name.strip_prefix(&*self.names.prefix)?.strip_prefix(":{p")?.split_once("}:")?;
        Key::from_canonical(job).filter(|key| key.kind() == KeyKind::Job)
    }
}

fn listed(key: Key, view: ClaimView) -> Option<ClaimSummary> {
    let (status, expires_in) = match view.state {
        ClaimState::Pending { lease_left } => (ClaimStatus::Pending, lease_left),
        ClaimState::Unknown { expires_in, .. } => (ClaimStatus::Unknown, expires_in),
        ClaimState::Settled { expires_in, .. } => (ClaimStatus::Settled, expires_in),
        ClaimState::Failed { expires_in } => (ClaimStatus::Failed, expires_in),
    };
    let (fence, attempt, granted_ago) = (view.fence?, view.attempt, view.granted_ago?);
    let label = view.token.as_ref().and_then(Token::label).map(Into::into);
    Some(ClaimSummary { key, status, fence, attempt, granted_ago, expires_in, label })
}

/// A tenant or a scope as it is written in keys, with the wildcards of a `MATCH` pattern escaped.
fn escape_pattern(field: &str) -> String {
    let mut pattern = String::new();
    for c in field.chars() {
        match c {
            '*' | '?' | '[' | ']' | '\\' | '^' => pattern.extend(['\\', c]),
            '%' => pattern.push_str("%25"),
            ':' => pattern.push_str("%3A"),
            '{' => pattern.push_str("%7B"),
            '}' => pattern.push_str("%7D"),
            c => pattern.push(c),
        }
    }
    pattern
}
