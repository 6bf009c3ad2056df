//! `/v1/session`: signing in to the console. A session stands for its token in calls under
//! `/v1/operator` and `/v1/queues`.

use axum::extract::Request;
use axum::http::request::Parts;
use axum::response::Response;
use hyper::header::SET_COOKIE;

use super::prelude::*;
use crate::api::request::admission::session_id;
use crate::api::request::auth::{AccessPolicy, Credentials, unauthorized};
use crate::api::request::check_content_type;
use crate::api::request::reveal::may_reveal;
use crate::api::request::session::WRONG_TOKEN_DELAY;
use crate::api::request::session::cookie::{SessionId, clear_cookie};
use crate::api::request::session::csrf::check_origin;
use crate::daemon::body;
use crate::daemon::logging::AUDIT;
use crate::settings::{TokenRule, TokenScope};

/// More than a token has.
const MAX_BODY: usize = 4096;

/// The request to sign in.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct SignIn {
    /// A token of this server with the scope `read` or `admin`.
    #[schema(min_length = 1, max_length = 255)]
    token: String,
}

/// Who is signed in.
#[derive(Serialize, ToSchema)]
#[schema(as = Session)]
pub(crate) struct ConsoleSessionBody {
    /// Whether calls under `/v1/operator` are answered: with a session, or without tokens on loopback.
    signed_in: bool,
    /// Whether signing in takes a token; false where the server has none.
    needs_token: bool,
    /// The name of the token.
    #[schema(required)]
    name: Option<String>,
    /// The tenant of the token.
    #[schema(required)]
    tenant: Option<String>,
    /// The scopes of the token.
    scopes: Vec<String>,
    /// The value of the header `Hapax-Csrf`, which requests that change something have to send beside
    /// the cookie; null where no cookie is used.
    #[schema(required)]
    csrf: Option<String>,
    /// Whether `reveal=true` is allowed.
    reveal: bool,
    /// The kind of the store.
    #[schema(value_type = String, example = "sqlite")]
    store: &'static str,
    /// The version of the server.
    #[schema(value_type = String)]
    version: &'static str,
}

/// Show who is signed in.
#[utoipa::path(
    get, path = "/v1/session", operation_id = "show_session", tag = "session",
    responses(
        (status = 200, body = ConsoleSessionBody, description = "Who is signed in; needs no token"),
        (status = 404, description = "`not-found`: the console is switched off"),
    ),
)]
pub(crate) async fn show(State(app): State<AppState>, request: Request) -> ApiResult {
    let (parts, _) = request.into_parts();
    Ok(json_response(StatusCode::OK, &state_of(&app, &parts).await?))
}

async fn state_of(app: &AppState, parts: &Parts) -> Result<ConsoleSessionBody, Problem> {
    if let Some(id) = session_id(app, &parts.headers)? {
        check_origin(&parts.uri, &parts.headers)?;
        return match app.sessions.find(app, &id).await {
            Ok(rule) => Ok(ConsoleSessionBody::of_token(app, rule, Some(&id))),
            Err(problem) if problem.kind() == ProblemKind::Unauthorized => {
                Ok(ConsoleSessionBody::signed_out(app))
            }
            Err(problem) => Err(problem),
        };
    }
    match &app.access {
        AccessPolicy::LocalOnly(_) => Ok(ConsoleSessionBody::of_loopback(app)),
        AccessPolicy::Tokens(_) => {
            let rule = app.access.find_bearer(&parts.headers)?;
            Ok(rule.map_or_else(
                || ConsoleSessionBody::signed_out(app),
                |rule| ConsoleSessionBody::of_token(app, rule, None),
            ))
        }
    }
}

/// Sign in with a token, and get a cookie for twelve hours.
#[utoipa::path(
    post, path = "/v1/session", operation_id = "sign_in", tag = "session",
    request_body = SignIn,
    responses(
        (status = 200, body = ConsoleSessionBody, description = "Signed in; `Set-Cookie` has the session. Without tokens on the server there is no cookie"),
        (status = 404, description = "`not-found`: the console is switched off"),
    ),
)]
pub(crate) async fn sign_in(State(app): State<AppState>, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let within = app.settings.body_timeout;
    let (body, _memory) = body::read(body, MAX_BODY, within, &app.memory).await?;
    check_content_type(&parts.method, &parts.headers)?;
    check_origin(&parts.uri, &parts.headers)?;
    let mut fields = JsonFields::parse(&body)?;
    let token = fields.short_text("token", 1..=255)?;
    fields.finish()?;
    if let AccessPolicy::LocalOnly(_) = app.access {
        return Ok(json_response(StatusCode::OK, &ConsoleSessionBody::of_loopback(&app)));
    }
    let token = required("token", token)?;
    let _permit = app.sessions.begin_sign_in()?;
    let Some(rule) = app.access.find_token(&token) else {
        log("-", "-", "sign-in", "unauthorized");
        tokio::time::sleep(WRONG_TOKEN_DELAY).await;
        return Err(unauthorized(
            "field `token` is no token of this server; `hapax token new` makes one",
        ));
    };
    if !rule.scopes.iter().any(|scope| [TokenScope::Read, TokenScope::Admin].contains(scope)) {
        log(&rule.name, rule.tenant.as_str(), "sign-in", "forbidden");
        let text = "the token lacks the scope `read` or `admin`, so that it sees nothing here";
        return Err(Problem::new(ProblemKind::Forbidden, text));
    }
    let id = app.sessions.open(&app, rule).await?;
    log(&rule.name, rule.tenant.as_str(), "sign-in", "done");
    let state = ConsoleSessionBody::of_token(&app, rule, Some(&id));
    let mut response = json_response(StatusCode::OK, &state);
    response.headers_mut().extend(id.set_cookie(&parts.headers).map(|value| (SET_COOKIE, value)));
    Ok(response)
}

/// Sign out: the session ends, and its cookie is cleared.
#[utoipa::path(
    delete, path = "/v1/session", operation_id = "sign_out", tag = "session",
    params(("Hapax-Csrf" = Option<String>, Header, description = "The `csrf` of the session; needed if there is one")),
    responses(
        (status = 204, description = "Signed out, also if nobody was signed in. Other nodes accept the cookie for up to 30 s"),
        (status = 404, description = "`not-found`: the console is switched off"),
    ),
)]
pub(crate) async fn sign_out(State(app): State<AppState>, request: Request) -> ApiResult {
    let (parts, _) = request.into_parts();
    if let Some(id) = session_id(&app, &parts.headers)? {
        id.check_page(&parts.method, &parts.uri, &parts.headers)?;
        app.sessions.close(&app, &id).await?;
        log("-", "-", "sign-out", "done");
    }
    let mut response: Response = no_content();
    response.headers_mut().extend(clear_cookie(&parts.headers).map(|value| (SET_COOKIE, value)));
    Ok(response)
}

fn log(token: &str, tenant: &str, action: &'static str, result: &'static str) {
    tracing::info!(target: AUDIT, token, tenant, action, result, "console session");
}

impl ConsoleSessionBody {
    fn signed_out(app: &AppState) -> Self {
        Self {
            signed_in: false,
            needs_token: true,
            name: None,
            tenant: None,
            scopes: Vec::new(),
            csrf: None,
            reveal: false,
            store: app.store.name(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    fn of_loopback(app: &AppState) -> Self {
        let tenant = app.access.tenants().first().map(|tenant| tenant.as_str().to_owned());
        let scopes = [TokenScope::Data, TokenScope::Read, TokenScope::Admin, TokenScope::Metrics];
        Self {
            signed_in: true,
            needs_token: false,
            name: Some("-".to_owned()),
            tenant,
            scopes: scopes.map(|scope| scope.as_str().to_owned()).to_vec(),
            reveal: may_reveal(app, Credentials::Loopback),
            ..Self::signed_out(app)
        }
    }

    fn of_token(app: &AppState, rule: &TokenRule, id: Option<&SessionId>) -> Self {
        let is_admin = rule.scopes.contains(&TokenScope::Admin);
        let credentials =
            if id.is_some() { Credentials::ConsoleSession } else { Credentials::BearerToken };
        Self {
            signed_in: true,
            name: Some(rule.name.to_string()),
            tenant: Some(rule.tenant.as_str().to_owned()),
            scopes: rule.scopes.iter().map(|scope| scope.as_str().to_owned()).collect(),
            csrf: id.map(SessionId::csrf),
            reveal: is_admin && may_reveal(app, credentials),
            ..Self::signed_out(app)
        }
    }
}
