//! `/v1/operator`: what is decided about commands in their owner's place.
//!
//! Every action runs to its end and is written down, also where the operator's client goes away in
//! the middle.

pub(super) mod audit;
mod cursor;
mod ruling;
mod shapes;

use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use hapax::command::Ruling;
use hapax::{Kind, List, Standing, Tenant};
use hyper::StatusCode;
use tokio::time::Instant;

use audit::Audit;
use shapes::{CommandList, ListedCommand, SettleCommand, Sweep, Swept, word};

use super::answer::{Answer, json};
use super::app::App;
use super::call::{Call, number};
use super::commands::shapes::{CommandShown, Completed};
use super::commands::{missing, response, shown};
use super::problem::{INTERNAL, Problem, ProblemDocument};

/// How many commands are on a page where the call does not say.
const PAGE: u64 = 100;
/// How many claims and records one call sweeps where it does not say.
const SWEEP: u64 = 10_000;

/// List commands of the tenant and its scopes.
#[utoipa::path(
    get, path = "/v1/operator/commands", operation_id = "list_commands", tag = "operator",
    params(
        ("state" = Option<String>, Query, description = "Only those that stand like this: `pending`, `unknown`, `completed` or `failed`"),
        ("after" = Option<String>, Query, description = "The `next` of the page before"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "About how many are on the page; 100 where it is not said"),
    ),
    responses((status = 200, body = CommandList, description = "A page; it may be short, and even empty, while there is a `next`")),
)]
pub(crate) async fn list(State(app): State<App>, call: Call) -> Answer {
    let audit = Audit::new("list", &call);
    to_its_end(async move {
        let page = async {
            let list = which(&app, &call)?;
            app.ask(Duration::ZERO, page(&app, list)).await
        };
        audit.told(page.await).map(|page| json(StatusCode::OK, &page))
    })
    .await
}

fn which(app: &App, call: &Call) -> Result<List, Problem> {
    let [state, after, limit] = call.parameters(["state", "after", "limit"])?;
    let all = [Standing::Pending, Standing::Unknown, Standing::Settled, Standing::Failed];
    let standing = match state {
        None => None,
        Some(state) => match all.into_iter().find(|standing| word(*standing) == state) {
            None => {
                let text = "query parameter `state` takes pending, unknown, completed or failed";
                return Err(Problem::invalid(text));
            }
            found => found,
        },
    };
    let limit = limit.map_or(Ok(PAGE), |text| number("limit", text, 1..=1000))?;
    let (store, tenant) = (app.store.name(), call.tenant.clone());
    let after = after.map(|after| cursor::unwrapped(store, &tenant, after)).transpose()?;
    let at_most = u32::try_from(limit).expect("at most 1000");
    Ok(List { tenant, kind: Kind::Command, standing, after, at_most })
}

/// Goes on until the page is full, or there is no more, or it has taken long enough.
async fn page(app: &App, mut list: List) -> Result<CommandList, Problem> {
    let (since, limit) = (Instant::now(), list.at_most as usize);
    let enough = enough(app);
    let mut commands = Vec::new();
    loop {
        list.at_most = u32::try_from(limit - commands.len()).expect("at most 1000");
        let page = app.store.list(&list).await?;
        commands.extend(page.claims.iter().map(|one| ListedCommand::new(one, &list.tenant)));
        let full = commands.len() >= limit || since.elapsed() >= enough;
        match page.next {
            Some(next) if !full => list.after = Some(next),
            next => {
                let wrapped = |next: &str| cursor::wrapped(app.store.name(), &list.tenant, next);
                return Ok(CommandList { commands, next: next.as_deref().map(wrapped) });
            }
        }
    }
}

/// Look at a command, also at one of a caller behind the proxy.
#[utoipa::path(
    get, path = "/v1/operator/commands/{operation}/{key}", operation_id = "show_command", tag = "operator",
    params(
        ("operation" = String, Path, min_length = 1, max_length = 255), ("key" = String, Path, min_length = 1, max_length = 255),
        ("scope" = Option<String>, Query, min_length = 1, max_length = 64, description = "The `scope` of the list"),
    ),
    responses(
        (status = 200, body = CommandShown, description = "How it stands; never the token"),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`command-missing`"),
    ),
)]
pub(crate) async fn show(State(app): State<App>, call: Call) -> Answer {
    let mut audit = Audit::new("show", &call);
    to_its_end(async move {
        let looked = async {
            let commands = app.commands(whose(&call)?);
            let looked = commands.look(call.segment(1), call.segment(2));
            app.ask(Duration::ZERO, looked).await?.ok_or_else(missing)
        };
        let view = looked.await;
        audit.fence = view.as_ref().ok().and_then(|view| view.fence);
        audit.told(view).map(|view| json(StatusCode::OK, &shown(view)))
    })
    .await
}

/// Settle a command whose outcome is unknown, or that failed, with the answer that it had.
#[utoipa::path(
    put, path = "/v1/operator/commands/{operation}/{key}", operation_id = "settle_command", tag = "operator",
    params(
        ("operation" = String, Path, min_length = 1, max_length = 255), ("key" = String, Path, min_length = 1, max_length = 255),
        ("scope" = Option<String>, Query, min_length = 1, max_length = 64, description = "The `scope` of the list"),
    ),
    request_body = SettleCommand,
    responses(
        (status = 200, body = Completed, description = "Whoever asks gets this answer; also where the same answer comes again"),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`command-missing`"),
        (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "`in-progress`: its owner is believed alive; `already-completed`: it has another answer. Nothing was changed"),
    ),
)]
pub(crate) async fn settle(State(app): State<App>, call: Call) -> Answer {
    let read = || {
        let mut fields = call.fields()?;
        // Whoever asks through the proxy gets it as a whole answer, which a 1xx is none.
        let response = response::read(&mut fields, 200..=599)?;
        fields.finish()?;
        Ok(Ruling::Settle(response))
    };
    let ruling = read();
    rule(app, call, "settle", ruling).await?;
    Ok(json(StatusCode::OK, &Completed { state: "completed" }))
}

/// Release a command whose outcome is unknown, or that failed: whoever asks next is the first.
#[utoipa::path(
    delete, path = "/v1/operator/commands/{operation}/{key}", operation_id = "release_command", tag = "operator",
    params(
        ("operation" = String, Path, min_length = 1, max_length = 255), ("key" = String, Path, min_length = 1, max_length = 255),
        ("scope" = Option<String>, Query, min_length = 1, max_length = 64, description = "The `scope` of the list"),
    ),
    responses(
        (status = 204, description = "It is forgotten; only its fence goes on growing"),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`command-missing`"),
        (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "`in-progress`: its owner is believed alive; `already-completed`: it has its answer. Nothing was changed"),
    ),
)]
pub(crate) async fn release(State(app): State<App>, call: Call) -> Answer {
    rule(app, call, "release", Ok(Ruling::Release)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn rule(
    app: App,
    call: Call,
    action: &'static str,
    ruling: Result<Ruling, Problem>,
) -> Result<(), Problem> {
    let mut audit = Audit::new(action, &call);
    to_its_end(async move {
        let ruled = async {
            let ruling = ruling?;
            let commands = app.commands(whose(&call)?);
            let (operation, key) = (call.segment(1), call.segment(2));
            let ruled = ruling::apply(&commands, operation, key, &ruling, &mut audit.fence);
            app.ask(Duration::ZERO, ruled).await
        };
        let ruled = ruled.await;
        audit.told(ruled)
    })
    .await
}

/// The tenant, or the scope of it that the query names.
fn whose(call: &Call) -> Result<Tenant, Problem> {
    let [scope] = call.parameters(["scope"])?;
    scope.map_or(Ok(call.tenant.clone()), |scope| Ok(call.tenant.scoped(scope)?))
}

/// Delete claims and records that have expired, of every tenant. To every reader they are gone
/// already; this gives their room back, as the server does by itself now and then.
#[utoipa::path(
    post, path = "/v1/operator/sweep", operation_id = "sweep", tag = "operator",
    request_body(content = Option<Sweep>),
    responses((status = 200, body = Swept, description = "How many; ask again until it is 0")),
)]
pub(crate) async fn sweep(State(app): State<App>, call: Call) -> Answer {
    let audit = Audit::new("sweep", &call);
    to_its_end(async move {
        let swept = async {
            call.no_query()?;
            let mut fields = call.fields()?;
            let at_most = fields.number("at_most", 1..=1_000_000)?.unwrap_or(SWEEP);
            fields.finish()?;
            let swept = hapax::sweep(&*app.store, at_most, enough(&app));
            app.ask(Duration::ZERO, swept).await
        };
        audit.told(swept.await).map(|swept| json(StatusCode::OK, &Swept { swept }))
    })
    .await
}

/// How long steps may follow each other, so that the last of them ends within the call's limit.
fn enough(app: &App) -> Duration {
    app.settings.store_timeout.min(Duration::from_secs(1))
}

/// A client that hangs up would otherwise cut it between two steps.
pub(super) async fn to_its_end<T: Send + 'static>(
    action: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    let lost = |_| Problem::new(&INTERNAL, "this is a bug; the server's log has more");
    tokio::spawn(action).await.map_err(lost)?
}
