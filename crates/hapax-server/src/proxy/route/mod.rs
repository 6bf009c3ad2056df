//! The routes of the proxy: which paths they match, and the upstream and policy of each.

pub(crate) mod path;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use hapax_http::{FingerprintOf, IdempotencyConfig, MemoryBudget, OverloadLimits, Verdicts};
use hyper::StatusCode;

use crate::settings::{
    MAX_LEASE, MIN_LEASE, ProxySettings, RouteSection, StatusVerdicts, UpstreamUrl,
};

/// The longest wait of the contract.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The paths that belong to a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathPattern {
    /// `/orders`: exactly this path.
    Exactly(String),
    /// `/orders/*`: everything beneath it.
    Beneath(String),
    /// Every path that no route of the file matches.
    Everything,
}

impl PathPattern {
    fn parse(path: &str) -> anyhow::Result<Self> {
        ensure!(path.starts_with('/'), "`path` starts with a slash, as in \"/orders\"");
        let (start, pattern) = match path.strip_suffix('*') {
            Some(start) if start.ends_with('/') => (start, Self::Beneath(start.to_owned())),
            _ => (path, Self::Exactly(path.to_owned())),
        };
        if start.contains(['*', '?', '#', '{', '}']) {
            bail!("`path` takes \"/orders\" for one path, or \"/orders/*\" for all beneath it");
        }
        ensure!(
            path::normalised(start).as_deref() == Some(start),
            "`path` is matched in its normal form: without //, . and .. segments, and with %XX only \
             where it is needed, in upper case"
        );
        Ok(pattern)
    }

    pub(crate) fn matches(&self, path: &str) -> bool {
        match self {
            Self::Exactly(exact) => exact == path,
            Self::Beneath(start) => path.starts_with(start),
            Self::Everything => true,
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(path) => f.write_str(path),
            Self::Beneath(start) => write!(f, "{start}*"),
            Self::Everything => f.write_str("*"),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ProxyRoute {
    pub(crate) pattern: PathPattern,
    pub(crate) target: UpstreamUrl,
    pub(crate) upstream_timeout: Duration,
    pub(crate) policy: IdempotencyConfig,
}

/// The routes of the file in their order, then the one for everything else, if it has an upstream.
pub(crate) fn routes(settings: &ProxySettings) -> anyhow::Result<Vec<ProxyRoute>> {
    let general = general(settings)?;
    let mut routes = Vec::new();
    for (i, route) in settings.section.route.iter().enumerate() {
        let route = specific(settings, &general, route)
            .with_context(|| format!("[[proxy.route]] number {}, `{}`", i + 1, route.path))?;
        ensure!(
            routes.iter().all(|other: &ProxyRoute| other.pattern != route.pattern),
            "[[proxy.route]] `{}` is there twice",
            route.pattern
        );
        routes.push(route);
    }
    if let Some(target) = &settings.upstream {
        let (target, upstream_timeout) = (target.clone(), settings.upstream_timeout);
        let pattern = PathPattern::Everything;
        routes.push(ProxyRoute { pattern, target, upstream_timeout, policy: general });
    }
    ensure!(
        !routes.is_empty(),
        "--upstream says where requests go; for example: hapax proxy --upstream http://127.0.0.1:3000"
    );
    Ok(routes)
}

fn general(settings: &ProxySettings) -> anyhow::Result<IdempotencyConfig> {
    let section = &settings.section;
    let fingerprint = section.fingerprint.as_ref().map(|section| section.read()).transpose()?;
    let policy = IdempotencyConfig::new()
        .with_scope(settings.scope.clone())
        .with_credential_headers(settings.credential_headers.0.clone())
        .with_methods(settings.methods.0.clone())
        .with_required_key(settings.require_key)
        .with_wait(settings.wait.0)
        .with_lease(settings.lease)
        .with_retention(settings.retention)
        .with_on_unknown(settings.on_unknown)
        .with_on_store_error(settings.on_store_error)
        .with_store_timeout(settings.store_timeout * 2 + Duration::from_millis(500))
        .with_max_body(settings.limit.0)
        .with_body_timeout(settings.body_timeout)
        .with_body_rate(settings.body_rate.0)
        .with_detached_timeout(settings.detached_timeout)
        .with_limits(limits(settings))
        .with_fingerprint(fingerprint.unwrap_or(FingerprintOf::Bytes))
        .with_verdicts(verdicts(Verdicts::default(), &section.statuses)?);
    check(policy)
}

/// The limits of all routes together.
fn limits(settings: &ProxySettings) -> OverloadLimits {
    OverloadLimits::default()
        .with_memory(MemoryBudget::new(settings.buffer_memory.0))
        .with_max_in_flight(settings.in_flight)
        .with_max_detached(settings.max_detached.unwrap_or(settings.max_connections))
}

fn specific(
    settings: &ProxySettings,
    general: &IdempotencyConfig,
    route: &RouteSection,
) -> anyhow::Result<ProxyRoute> {
    let pattern = PathPattern::parse(&route.path)?;
    let target = route.upstream.as_ref().map(|target| target.0.clone());
    let target = target.or_else(|| settings.upstream.clone());
    let target = target.context("`upstream` is missing, and there is no --upstream either")?;
    let fingerprint = route.fingerprint.as_ref().map(|section| section.read()).transpose()?;
    let verdicts = verdicts(general.verdicts().clone(), &route.statuses)?;
    let policy = general.clone().with_verdicts(verdicts);
    let methods = route.methods()?.map(|methods| methods.0);
    let policy = set(policy, methods, IdempotencyConfig::with_methods);
    let scope = route.scope.clone().map(|text| text.0);
    let policy = set(policy, scope, IdempotencyConfig::with_scope);
    let policy = set(policy, route.wait.map(|text| text.0.0), IdempotencyConfig::with_wait);
    let policy = set(policy, route.lease.map(|text| text.0), IdempotencyConfig::with_lease);
    let retention = route.retention.map(|text| text.0);
    let policy = set(policy, retention, IdempotencyConfig::with_retention);
    let policy = set(policy, route.require_key, IdempotencyConfig::with_required_key);
    let on_unknown = route.on_unknown.map(|text| text.0);
    let policy = set(policy, on_unknown, IdempotencyConfig::with_on_unknown);
    let on_store_error = route.on_store_error.map(|text| text.0);
    let policy = set(policy, on_store_error, IdempotencyConfig::with_on_store_error);
    let policy = set(policy, route.limit.map(|text| text.0.0), IdempotencyConfig::with_max_body);
    let policy = set(policy, fingerprint, IdempotencyConfig::with_fingerprint);
    let upstream_timeout = route.upstream_timeout.map_or(settings.upstream_timeout, |text| text.0);
    Ok(ProxyRoute { pattern, target, upstream_timeout, policy: check(policy)? })
}

fn set<T>(
    policy: IdempotencyConfig,
    value: Option<T>,
    with: impl FnOnce(IdempotencyConfig, T) -> IdempotencyConfig,
) -> IdempotencyConfig {
    match value {
        Some(value) => with(policy, value),
        None => policy,
    }
}

fn verdicts(general: Verdicts, statuses: &StatusVerdicts) -> anyhow::Result<Verdicts> {
    statuses.iter().try_fold(general, |verdicts, (status, verdict)| {
        let number = status.parse().ok().and_then(|number| StatusCode::from_u16(number).ok());
        let number = number.filter(|status| (200..600).contains(&status.as_u16()));
        let number = number.context("`statuses` has a key that is no status from 200 to 599")?;
        Ok(verdicts.with(number, verdict.0))
    })
}

fn check(policy: IdempotencyConfig) -> anyhow::Result<IdempotencyConfig> {
    ensure!(*policy.wait() <= MAX_WAIT, "`wait` is at most 60s");
    ensure!(*policy.lease() <= MAX_LEASE, "`lease` is at most 1h");
    ensure!(*policy.lease() >= MIN_LEASE, "`lease` is at least 300ms");
    Ok(policy)
}
