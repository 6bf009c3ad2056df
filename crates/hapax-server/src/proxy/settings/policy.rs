//! What holds for which path.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use hapax_http::{FingerprintOf, Verdicts};
use hyper::StatusCode;

use super::super::target::Target;
use super::Options;
use super::file::{RouteSection, Statuses};
use crate::settings::LONGEST_LEASE;

/// The ceilings of the contract.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A third of a lease must still be time enough for a renewal.
const SHORTEST_LEASE: Duration = Duration::from_millis(300);

/// Which requests belong to a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// `/orders`: this very path.
    Exactly(String),
    /// `/orders/*`: everything beneath it.
    Beneath(String),
    /// Whatever no route of the file takes.
    Everything,
}

impl Place {
    fn parse(path: &str) -> anyhow::Result<Self> {
        ensure!(path.starts_with('/'), "`path` starts with a slash, as in \"/orders\"");
        let (start, place) = match path.strip_suffix('*') {
            Some(start) if start.ends_with('/') => (start, Self::Beneath(start.to_owned())),
            _ => (path, Self::Exactly(path.to_owned())),
        };
        if start.contains(['*', '?', '#', '{', '}']) {
            bail!("`path` takes \"/orders\" for one path, or \"/orders/*\" for all beneath it");
        }
        Ok(place)
    }

    pub(crate) fn takes(&self, path: &str) -> bool {
        match self {
            Self::Exactly(exact) => exact == path,
            Self::Beneath(start) => path.starts_with(start),
            Self::Everything => true,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(path) => f.write_str(path),
            Self::Beneath(start) => write!(f, "{start}*"),
            Self::Everything => f.write_str("*"),
        }
    }
}

/// What holds for the requests of one place.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) place: Place,
    pub(crate) target: Target,
    pub(crate) upstream_timeout: Duration,
    pub(crate) policy: hapax_http::Settings,
}

/// The routes of the file in their order, then the one for everything else, if it has an upstream.
pub(super) fn routes(options: &Options) -> anyhow::Result<Vec<Route>> {
    let general = general(options)?;
    let mut routes = Vec::new();
    for (i, route) in options.section.route.iter().enumerate() {
        let route = special(options, &general, route)
            .with_context(|| format!("[[proxy.route]] number {}, `{}`", i + 1, route.path))?;
        ensure!(
            routes.iter().all(|other: &Route| other.place != route.place),
            "[[proxy.route]] `{}` is there twice",
            route.place
        );
        routes.push(route);
    }
    if let Some(target) = &options.upstream {
        let (target, upstream_timeout) = (target.clone(), options.upstream_timeout);
        let place = Place::Everything;
        routes.push(Route { place, target, upstream_timeout, policy: general });
    }
    ensure!(
        !routes.is_empty(),
        "--upstream says where requests go; for example: hapax proxy --upstream http://127.0.0.1:3000"
    );
    Ok(routes)
}

fn general(options: &Options) -> anyhow::Result<hapax_http::Settings> {
    let section = &options.section;
    let fingerprint = section.fingerprint.as_ref().map(|section| section.read()).transpose()?;
    let policy = hapax_http::Settings {
        scope: options.scope.clone(),
        methods: options.methods.0.clone(),
        require_key: options.require_key,
        wait: options.wait.0,
        lease: options.lease,
        retention: options.retention,
        on_unknown: options.on_unknown,
        on_store_error: options.on_store_error,
        store_limit: options.store_timeout * 2 + Duration::from_millis(500),
        limit: options.limit.0,
        fingerprint: fingerprint.unwrap_or(FingerprintOf::Bytes),
        verdicts: verdicts(Verdicts::default(), &section.statuses)?,
        ..hapax_http::Settings::default()
    };
    check(policy)
}

fn special(
    options: &Options,
    general: &hapax_http::Settings,
    route: &RouteSection,
) -> anyhow::Result<Route> {
    let place = Place::parse(&route.path)?;
    let target = route.upstream.as_ref().map(|target| target.0.clone());
    let target = target.or_else(|| options.upstream.clone());
    let target = target.context("`upstream` is missing, and there is no --upstream either")?;
    let mut policy = general.clone();
    set(&mut policy.methods, route.methods()?.map(|methods| methods.0));
    set(&mut policy.scope, route.scope.clone().map(|text| text.0));
    set(&mut policy.wait, route.wait.map(|text| text.0.0));
    set(&mut policy.lease, route.lease.map(|text| text.0));
    set(&mut policy.retention, route.retention.map(|text| text.0));
    set(&mut policy.require_key, route.require_key);
    set(&mut policy.on_unknown, route.on_unknown.map(|text| text.0));
    set(&mut policy.on_store_error, route.on_store_error.map(|text| text.0));
    set(&mut policy.limit, route.limit.map(|text| text.0.0));
    let fingerprint = route.fingerprint.as_ref().map(|section| section.read()).transpose()?;
    set(&mut policy.fingerprint, fingerprint);
    policy.verdicts = verdicts(policy.verdicts, &route.statuses)?;
    let mut upstream_timeout = options.upstream_timeout;
    set(&mut upstream_timeout, route.upstream_timeout.map(|text| text.0));
    Ok(Route { place, target, upstream_timeout, policy: check(policy)? })
}

fn set<T>(value: &mut T, said: Option<T>) {
    if let Some(said) = said {
        *value = said;
    }
}

fn verdicts(general: Verdicts, statuses: &Statuses) -> anyhow::Result<Verdicts> {
    statuses.iter().try_fold(general, |verdicts, (status, verdict)| {
        let number = status.parse().ok().and_then(|number| StatusCode::from_u16(number).ok());
        let number = number.filter(|status| (200..600).contains(&status.as_u16()));
        let number = number.context("`statuses` has a key that is no status from 200 to 599")?;
        Ok(verdicts.with(number, verdict.0))
    })
}

fn check(policy: hapax_http::Settings) -> anyhow::Result<hapax_http::Settings> {
    ensure!(policy.wait <= LONGEST_WAIT, "`wait` is at most 60s");
    ensure!(policy.lease <= LONGEST_LEASE, "`lease` is at most 1h");
    ensure!(policy.lease >= SHORTEST_LEASE, "`lease` is at least 300ms");
    Ok(policy)
}
