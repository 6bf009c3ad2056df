//! The routes of `hapax check` behind the layer of the crate `axum-idempotent`, with its header mode. It keeps answers
//! in sessions and makes none itself, so a small layer gives each caller (its `Authorization`) a session.

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::sync::{Arc, Mutex};

use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use ruts::store::moka::MokaStore;
use ruts::{CookieOptions, Session, SessionLayer};
use tower_cookies::CookieManagerLayer;

type SessionOfCaller = Arc<Mutex<HashMap<Vec<u8>, HeaderValue>>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = IdempotentOptions::default()
        .use_idempotency_key_header(Some("Idempotency-Key"), false)
        .expire_after(3600);
    let app = example_check_target::routes()
        .layer(IdempotentLayer::<MokaStore>::new(options))
        .layer(from_fn(begin_session))
        .layer(
            SessionLayer::new(Arc::new(MokaStore::builder().build()))
                .with_cookie_options(CookieOptions::build().name("session").max_age(3600).path("/")),
        )
        .layer(CookieManagerLayer::new())
        .layer(from_fn_with_state(SessionOfCaller::default(), remember_session));
    let listener = tokio::net::TcpListener::bind(env::var("LISTEN")?).await?;
    Ok(axum::serve(listener, app).await?)
}

/// Starts the caller's session, as a login would.
async fn begin_session(session: Session<MokaStore>, request: Request, next: Next) -> Response {
    if session.id().is_none() {
        let ttl = ruts::store::Ttl::new(3600).expect("positive");
        let _ = session.set("caller", &true, ttl, None).await;
    }
    next.run(request).await
}

/// Sends the caller's session cookie with its requests, as a browser does, and keeps it out of the answers.
async fn remember_session(
    State(sessions): State<SessionOfCaller>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = request.headers().get("authorization").map_or(Vec::new(), |v| v.as_bytes().into());
    let known = sessions.lock().expect("the map").get(&caller).cloned();
    if let Some(cookie) = known {
        request.headers_mut().insert("cookie", cookie);
    }
    let mut answer = next.run(request).await;
    if let Some(cookie) = answer.headers_mut().remove("set-cookie") {
        let pair = cookie.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
        let pair = HeaderValue::from_str(pair).expect("part of a header");
        sessions.lock().expect("the map").entry(caller).or_insert(pair);
    }
    answer
}
