//! `/v1/operator`: what is decided about commands in their owner's place.
//!
//! Every action runs to its end and is written down, also where the operator's client goes away in
//! the middle.

mod cursor;
mod schema;

use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use hapax::command::{CommandState, CommandView, Commands, Overruled, Ruling};
use hapax::{Fence, Kind, List, Standing, Tenant};
use hyper::StatusCode;
use tokio::time::Instant;

use schema::{CommandList, ListedCommand, SettleCommand, Sweep, Swept, word};

use super::audit::{Audit, to_its_end};
use super::commands::schema::read_response;
use super::commands::schema::{CommandShown, Completed};
use super::commands::{missing, shown};
use crate::serve::app::App;
use crate::serve::problem::{Problem, ProblemDocument, ProblemKind};
use crate::serve::request::{Call, number};
use crate::serve::response::{Answer, json};

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
        let response = read_response(&mut fields, 200..=599)?;
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
            let ruled = apply(&commands, operation, key, &ruling, &mut audit.fence);
            app.ask(Duration::ZERO, ruled).await
        };
        let ruled = ruled.await;
        audit.told(ruled)
    })
    .await
}

/// Does what the operator decided. `fence` becomes that of the attempt which it was about.
async fn apply(
    commands: &Commands,
    operation: &str,
    key: &str,
    ruling: &Ruling,
    fence: &mut Option<Fence>,
) -> Result<(), Problem> {
    let before = commands.look(operation, key).await?.ok_or_else(missing)?;
    *fence = before.fence;
    match commands.overrule(operation, key, ruling).await? {
        Overruled::Done => Ok(()),
        Overruled::Missing => Err(missing()),
        Overruled::Pending => Err(in_progress(&before)),
        Overruled::Completed => {
            // An operator who did not hear the answer asks again, and is told the same.
            let after = commands.look(operation, key).await?;
            let said = after.is_some_and(|after| says(&after, ruling));
            if said { Ok(()) } else { Err(completed()) }
        }
    }
}

fn says(view: &CommandView, ruling: &Ruling) -> bool {
    match (&view.state, ruling) {
        (CommandState::Completed { response, .. }, Ruling::Settle(given)) => response == given,
        _ => false,
    }
}

fn in_progress(view: &CommandView) -> Problem {
    let text = "its owner is believed alive, and decides; nothing was changed";
    let problem = Problem::new(ProblemKind::InProgress, text);
    match view.state {
        CommandState::Pending { lease_left } => problem.retry_after(lease_left),
        _ => problem,
    }
}

fn completed() -> Problem {
    Problem::new(ProblemKind::AlreadyCompleted, "it stays as it is; nothing was changed")
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
