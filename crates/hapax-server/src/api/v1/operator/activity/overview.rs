//! `/v1/operator/overview`: the last hour, the store, the nodes, and what needs a person.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hapax::activity::{EdgeActivity, LatencyHistogram, NodeReport, by_minute};
use hapax::worker::paused;
use hapax::{Finding, KeyKind, Severity, StoreResult, Tenant};
use tokio::time::Instant;

use super::{HOUR, MINUTE, activity_since, now, reader};
use crate::api::v1::audit::audited;
use crate::api::v1::operator::claim_counter::ClaimCount;
use crate::api::v1::prelude::*;

/// The state of the installation.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct Overview {
    /// The minutes of the last hour that had activity, oldest first.
    pub(crate) minutes: Vec<OverviewMinute>,
    /// The store.
    pub(crate) store: StoreHealth,
    /// The processes that share the store.
    pub(crate) nodes: Vec<ListedNode>,
    /// What needs a person, most urgent first.
    pub(crate) attention: Vec<Attention>,
    /// Whether unknown outcomes are being counted in the background (Redis): ask again in some seconds.
    pub(crate) counting: bool,
}

/// One minute of activity.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct OverviewMinute {
    /// When it began, in milliseconds since 1970.
    pub(crate) at: u64,
    /// The activity of each kind of node: `api`, `proxy`, `relay`, `line`, `layer`; `sse` are requests for event streams, whose
    /// latency ends when the first events are ready to be sent.
    pub(crate) edges: BTreeMap<String, EdgeMinute>,
}

/// The activity of the nodes of one kind in a minute.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct EdgeMinute {
    /// Requests; of relays and gateways, claims and items.
    pub(crate) requests: u64,
    /// Requests that ran.
    pub(crate) first_runs: u64,
    /// Duplicates that got the first one's answer.
    pub(crate) replays: u64,
    /// Duplicates that waited for the first one's answer.
    pub(crate) waits: u64,
    /// Requests that were refused.
    pub(crate) refusals: u64,
    /// Requests that failed.
    pub(crate) errors: u64,
    /// The latency that half of the requests did not exceed.
    #[schema(required)]
    pub(crate) p50_ms: Option<f64>,
    /// The latency that 95 % of the requests did not exceed.
    #[schema(required)]
    pub(crate) p95_ms: Option<f64>,
    /// The latency that 99 % of the requests did not exceed.
    #[schema(required)]
    pub(crate) p99_ms: Option<f64>,
}

impl EdgeMinute {
    fn new(EdgeActivity { counts, latency }: &EdgeActivity) -> Self {
        let percentile = |percent| percentile_ms(latency, percent);
        Self {
            requests: counts.requests,
            first_runs: counts.first_runs,
            replays: counts.replays,
            waits: counts.waits,
            refusals: counts.refusals,
            errors: counts.errors,
            p50_ms: percentile(50.0),
            p95_ms: percentile(95.0),
            p99_ms: percentile(99.0),
        }
    }
}

fn percentile_ms(latency: &LatencyHistogram, percent: f64) -> Option<f64> {
    latency.percentile(percent).map(|took| took.as_micros() as f64 / 1000.0)
}

/// The store, as this node sees it.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct StoreHealth {
    /// `sqlite`, `redis`, `postgres` or `memory`.
    pub(crate) name: String,
    /// Whether calls can be answered.
    pub(crate) ready: bool,
    /// Why not.
    #[schema(required)]
    pub(crate) reason: Option<String>,
    /// How long it took to answer just now; null if it did not.
    #[schema(required)]
    pub(crate) latency_ms: Option<f64>,
    /// What the doctor found; nothing that is fine.
    pub(crate) findings: Vec<StoreFinding>,
}

/// One finding of the doctor.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct StoreFinding {
    /// The name of the check.
    pub(crate) check: String,
    /// `warn` or `refuse`.
    pub(crate) severity: String,
    /// What was found.
    pub(crate) text: String,
    /// How to fix it.
    pub(crate) fix: String,
}

/// A process that shares the store.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct ListedNode {
    /// The name of the node.
    pub(crate) node: String,
    /// The kind of the node.
    pub(crate) edge: String,
    /// The version of hapax.
    pub(crate) version: String,
    /// When it started, in milliseconds since 1970.
    pub(crate) started_at: u64,
    /// How long ago it was last heard of.
    pub(crate) seen_ago_ms: u64,
    /// Whether it ended in order.
    pub(crate) stopped: bool,
    /// How long the store took to answer this node.
    #[schema(required)]
    pub(crate) store_latency_ms: Option<u64>,
    /// What the node sends to, if it does: a sink, a bot.
    #[schema(required)]
    pub(crate) target: Option<ListedTarget>,
}

/// What a node sends to.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct ListedTarget {
    /// The name of the node.
    pub(crate) node: String,
    /// The kind of the target.
    pub(crate) name: String,
    /// The queue that is sent.
    #[schema(required)]
    pub(crate) queue: Option<String>,
    /// Whether it takes anything.
    pub(crate) up: bool,
    /// Why it was last away.
    #[schema(required)]
    pub(crate) last_error: Option<String>,
}

impl ListedTarget {
    pub(super) fn of(report: &NodeReport) -> Option<Self> {
        let target = report.target.as_ref()?;
        Some(Self {
            node: report.node.clone(),
            name: target.name.clone(),
            queue: target.queue.clone(),
            up: target.up,
            last_error: target.last_error.clone(),
        })
    }
}

impl ListedNode {
    fn new(report: &NodeReport, now: u64) -> Self {
        Self {
            node: report.node.clone(),
            edge: report.edge.clone(),
            version: report.version.clone(),
            started_at: report.started_at,
            seen_ago_ms: now.saturating_sub(report.at),
            stopped: report.stopped,
            store_latency_ms: report.store_latency_ms,
            target: ListedTarget::of(report),
        }
    }
}

/// Something that needs a person.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct Attention {
    /// `store`, `unknown`, `dead`, `paused`, `target_away` or `finding`.
    pub(crate) what: String,
    /// How many there are, if they are counted.
    #[schema(required)]
    pub(crate) count: Option<u64>,
    /// Whether there may be more than that: not all keys were examined (Redis).
    #[serde(default)]
    pub(crate) more: bool,
    /// When they were counted, in milliseconds since 1970; null if that was just now.
    #[serde(default)]
    #[schema(required)]
    pub(crate) as_of: Option<u64>,
    /// The queue, if it is about one.
    #[schema(required)]
    pub(crate) queue: Option<String>,
    /// What is the matter, for people.
    pub(crate) text: String,
}

impl Attention {
    fn new(what: &str, text: impl Into<String>) -> Self {
        let (what, text) = (what.to_owned(), text.into());
        Self { what, count: None, more: false, as_of: None, queue: None, text }
    }

    fn count(mut self, count: u64) -> Self {
        self.count = Some(count);
        self
    }

    fn queue(mut self, queue: &str) -> Self {
        self.queue = Some(queue.to_owned());
        self
    }
}

/// The findings of the doctor, which are looked for again after a minute: most of them are settings of the server.
#[derive(Default)]
pub(crate) struct StoreFindings(Mutex<Option<(Instant, Vec<StoreFinding>)>>);

const FINDINGS_AGE: Duration = Duration::from_secs(60);

impl StoreFindings {
    async fn read(&self, app: &AppState) -> StoreResult<Vec<StoreFinding>> {
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read_at, findings)) = &*kept()
            && read_at.elapsed() < FINDINGS_AGE
        {
            return Ok(findings.clone());
        }
        let examined = hapax::with_timeout(app.settings.store_timeout, app.store.examine()).await?;
        let shown = |finding: Finding| {
            let severity = match finding.severity {
                Severity::Fine => return None,
                Severity::Warn => "warn",
                Severity::Refuse => "refuse",
            };
            let (check, severity) = (finding.check.to_owned(), severity.to_owned());
            Some(StoreFinding { check, severity, text: finding.detail, fix: finding.fix })
        };
        let findings: Vec<_> = examined.into_iter().filter_map(shown).collect();
        *kept() = Some((Instant::now(), findings.clone()));
        Ok(findings)
    }
}

/// Show the last hour, the store, the nodes, and what needs a person.
#[utoipa::path(
    get, path = "/v1/operator/overview", operation_id = "overview", tag = "operator",
    responses((status = 200, body = Overview, description = "Requests of this tenant in the last hour, and the state of the installation")),
)]
pub(crate) async fn overview(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "overview", request, |request, _| async move {
        request.expect_no_query()?;
        let now = now();
        let since = (now.saturating_sub(HOUR) / MINUTE + 1) * MINUTE;
        let store = store_health(&app).await;
        let reading = async {
            let entries = activity_since(&app, &request.tenant, since).await?;
            let nodes = reader(&app).nodes().await?;
            let attention = attention(&app, &request.tenant, &store, &nodes).await?;
            Ok::<_, hapax::StoreError>((entries, nodes, attention))
        };
        let (entries, nodes, (attention, counting)) = app.call_store(reading).await?;
        let edges = |edges: &BTreeMap<String, EdgeActivity>| {
            edges.iter().map(|(name, edge)| (name.clone(), EdgeMinute::new(edge))).collect()
        };
        let minutes = by_minute(&entries)
            .iter()
            .map(|minute| OverviewMinute { at: minute.at, edges: edges(&minute.edges) })
            .collect();
        let nodes = nodes.iter().map(|node| ListedNode::new(node, now)).collect();
        Ok(json_response(StatusCode::OK, &Overview { minutes, store, nodes, attention, counting }))
    })
    .await
}

/// Looks at the store; never an error, because that is what the page is to show.
async fn store_health(app: &AppState) -> StoreHealth {
    let asked = Instant::now();
    let answered = hapax::with_timeout(app.settings.store_timeout, app.store.ping()).await;
    let latency_ms = answered.is_ok().then(|| asked.elapsed().as_micros() as f64 / 1000.0);
    let findings = app.findings.read(app).await.unwrap_or_default();
    let failure = app.readiness.failure();
    StoreHealth {
        name: app.store.name().to_owned(),
        ready: failure.is_none(),
        reason: failure.map(|(component, reason)| format!("{component}: {reason}")),
        latency_ms,
        findings,
    }
}

async fn attention(
    app: &AppState,
    tenant: &Tenant,
    store: &StoreHealth,
    nodes: &[NodeReport],
) -> StoreResult<(Vec<Attention>, bool)> {
    let mut found = Vec::new();
    found.extend(store.reason.as_deref().map(|reason| Attention::new("store", reason)));
    let (unknown, counting) = unknown_outcomes(app, tenant).await?;
    found.extend(unknown);
    for queue in app.store.queues().await? {
        let name = queue.as_str();
        let dead = app.store.depth(&queue, Some(tenant)).await?.dead;
        if dead > 0 {
            let text = "dead letters: requeue or discard them";
            found.push(Attention::new("dead", text).count(dead).queue(name));
        }
        if let Some(paused) = paused(&*app.store, &queue).await? {
            let text = format!("paused by {}", paused.by);
            found.push(Attention::new("paused", text).queue(name));
        }
    }
    for target in nodes.iter().filter(|node| !node.stopped).filter_map(ListedTarget::of) {
        if !target.up {
            let reason = target.last_error.unwrap_or_else(|| "it was not checked yet".to_owned());
            let text = format!("{} of {} takes nothing: {reason}", target.name, target.node);
            let away = Attention::new("target_away", text);
            found.push(match &target.queue {
                Some(queue) => away.queue(queue),
                None => away,
            });
        }
    }
    let finding = |finding: &StoreFinding| Attention::new("finding", finding.text.clone());
    found.extend(store.findings.iter().map(finding));
    Ok((found, counting))
}

/// Commands whose outcome is unknown, if there are any, and whether they are being counted in the background.
async fn unknown_outcomes(
    app: &AppState,
    tenant: &Tenant,
) -> StoreResult<(Option<Attention>, bool)> {
    let text = "commands whose outcome is unknown: settle or release them";
    if let Some(open) = app.store.count_open(Some(tenant), KeyKind::Command).await? {
        let unknown = Attention::new("unknown", text).count(open.unknown);
        return Ok(((open.unknown > 0).then_some(unknown), false));
    }
    let ClaimCount { found, is_counting } = app.claim_counter.read(app, tenant).await;
    let unknown = match found {
        Some(found) if found.commands.unknown > 0 => Some(Attention {
            more: found.is_partial,
            as_of: Some(found.as_of),
            ..Attention::new("unknown", text).count(found.commands.unknown)
        }),
        None if !is_counting => {
            let text = "commands whose outcome is unknown could not be counted: list them";
            Some(Attention::new("unknown", text))
        }
        _ => None,
    };
    Ok((unknown, is_counting))
}
