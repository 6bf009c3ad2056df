//! Faults that were observed in other libraries and proxies: a test for each.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{
    HandlerGate, Runs, app, claim_elsewhere, counting_app, gated_app, memory, post, post_to, send,
    sending, without_wait,
};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::routing::post as on_post;
use axum::{Router, extract::OriginalUri};
use futures_util::future::join_all;
use hapax_core::{Claims, OnUnknown, Step};
use hapax_http::{IdempotencyConfig, IdempotencyLayer, capture};
use hapax_redis::{RedisConfig, RedisStore};
use hapax_testkit::Redis;
use tokio::sync::Semaphore;

/// axum-idempotent, express-idempotency: 50 executions.
#[tokio::test(flavor = "multi_thread")]
async fn hole_20_fifty_concurrent_requests_are_not_fifty_executions() {
    let runs = Runs::default();
    let counted = runs.clone();
    // Long enough for a slow machine.
    let config = IdempotencyConfig::new().with_wait(Duration::from_secs(3600));
    let asked = Arc::new(Semaphore::new(0));
    let seen = asked.clone();
    let app = app(memory().0, config, || async move {
        let _ = seen.acquire_many(50).await;
        format!("order {}", counted.add())
    });
    let answers = join_all((0..50).map(async |_| {
        asked.add_permits(1);
        send(&app, post("k", "tea")).await
    }));
    let answers = answers.await;
    assert!(answers.iter().all(|a| a.status == 200 && a.body == "order 1"));
    assert_eq!(answers.iter().filter(|a| a.is_replay()).count(), 49);
    assert_eq!(runs.count(), 1);
}

/// idempotent-proxy on Redis: 1 execution and 50 × 502, because the waiters held the pool.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_hold_no_store_connection() {
    let redis = Redis::start();
    let config =
        RedisConfig::new(&redis.url()).unwrap().max_in_flight(1).timeout(Duration::from_secs(20));
    let store = Arc::new(RedisStore::open(config).unwrap());
    // A blocked request waits for ever; a slow machine reaches no timeout.
    let minutes = Duration::from_secs(120);
    let config =
        IdempotencyConfig::new().with_wait(minutes).with_lease(minutes).with_store_timeout(minutes);
    let (app, gate, _) = gated_app(store, config, StatusCode::OK);
    let first = sending(&app, "k", "");
    gate.reached().await;
    let waiters = join_all((0..49).map(|_| send(&app, post("k", ""))));
    let let_in = async {
        // All of them have asked for the claim once; after that they wait.
        let claims = || commands_run(&redis, "evalsha");
        while claims() < 50 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        gate.release_one();
    };
    let (waiters, ()) = tokio::join!(waiters, let_in);
    assert_eq!(first.await.unwrap().body, "1");
    assert!(waiters.iter().all(|a| a.status == 200 && a.body == "1" && a.is_replay()));
}

/// How often the server ran a command.
fn commands_run(redis: &Redis, command: &str) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]);
    let line = format!("cmdstat_{command}:calls=");
    let calls = stats.lines().find_map(|stat| stat.strip_prefix(&line)?.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// The same inside the service: a waiter must not occupy a concurrency slot.
#[tokio::test]
async fn waiters_hold_no_place_in_the_service() {
    use axum::response::IntoResponse;
    use tower::{Layer, Service, ServiceBuilder, ServiceExt};
    let (store, _) = memory();
    let config = IdempotencyConfig::new().with_wait(Duration::from_secs(3600));
    let (key, ticket) = claim_elsewhere(&*store, &config, "elsewhere").await;
    let layer = IdempotencyLayer::new(store.clone()).with_config(config);
    let mut service =
        layer.layer(ServiceBuilder::new().concurrency_limit(1).service_fn(|_: Request<_>| async {
            Ok::<_, std::convert::Infallible>("ran".into_response())
        }));
    let waiter = tokio::spawn(service.ready().await.unwrap().call(post("elsewhere", "")));
    let other = service.ready().await.unwrap().call(post("other", "")).await.unwrap();
    assert_eq!(other.status(), 200);
    let stored = capture(&axum::http::Response::new(()).into_parts().0, "theirs".into());
    let _ = store.settle(&key, &ticket.token, stored.encode()).await.unwrap();
    let waited = waiter.await.unwrap().unwrap();
    assert_eq!(waited.headers()["idempotent-replayed"], "true");
}

/// asgi-idempotency-header, node-idempotency, Powertools: 409 for an hour, a day or for ever.
#[tokio::test]
async fn hole_21_a_key_is_not_409_for_ever_after_a_crash() {
    let config = without_wait().with_on_unknown(OnUnknown::TakeOver);
    let (store, clock) = memory();
    claim_elsewhere(&*store, &config, "k").await;
    let app = app(store, config.clone(), |headers: HeaderMap| async move {
        headers["hapax-attempt"].to_str().unwrap().to_owned()
    });
    assert_eq!(send(&app, post("k", "")).await.code(), "in-progress");
    clock.advance(*config.lease());
    let second = send(&app, post("k", "")).await;
    assert_eq!((second.status, &second.body[..]), (StatusCode::OK, &b"2"[..]));
    assert!(send(&app, post("k", "")).await.is_replay());
}

/// idempotent (crate): silently runs again after a minute.
#[tokio::test]
async fn crash_does_not_run_again_under_refuse() {
    let (store, clock) = memory();
    let config = without_wait();
    claim_elsewhere(&*store, &config, "k").await;
    let (app, runs) = counting_app(store, config.clone());
    clock.advance(*config.lease());
    for _ in 0..3 {
        let answer = send(&app, post("k", "")).await;
        answer.assert_problem(409, "outcome-unknown");
        assert_eq!(answer.problem()["retryable"], false);
        clock.advance(Duration::from_secs(60));
    }
    assert_eq!(runs.count(), 0);
}

/// Restate, DBOS, asgi, axum-idempotent, idempotent-proxy: the old response, silently.
#[tokio::test]
async fn key_with_another_body_gets_no_replay() {
    let app = app(memory().0, IdempotencyConfig::new(), |body: String| async { body });
    assert_eq!(send(&app, post("k", "tea")).await.body, "tea");
    let other = send(&app, post("k", "coffee")).await;
    other.assert_problem(422, "key-reused");
    assert_eq!(send(&app, post("k", "tea")).await.body, "tea");
}

/// node-idempotency: the handler runs again.
#[tokio::test]
async fn replay_of_204_does_not_run_the_handler() {
    let runs = Runs::default();
    let counted = runs.clone();
    let app = app(memory().0, IdempotencyConfig::new(), || async move {
        counted.add();
        StatusCode::NO_CONTENT
    });
    assert_eq!(send(&app, post("k", "")).await.status, 204);
    let again = send(&app, post("k", "")).await;
    assert_eq!((again.status.as_u16(), again.is_replay(), &again.body[..]), (204, true, &b""[..]));
    assert_eq!(runs.count(), 1);
}

/// idempotent-proxy: the first route's response.
#[tokio::test]
async fn key_on_another_route_gets_no_replay() {
    let app = app(memory().0, IdempotencyConfig::new(), |uri: OriginalUri| async move {
        uri.path().to_owned()
    });
    for path in ["/orders", "/refunds", "/orders/", "/orders/1"] {
        assert_eq!(send(&app, post_to(path)).await.body, path);
    }
}

/// The same with nested routers, whose prefix the layers inside do not see.
#[tokio::test]
async fn key_in_another_nested_router_gets_no_replay() {
    let (store, _) = memory();
    let original = |parts: &axum::http::request::Parts| match parts.extensions.get::<OriginalUri>()
    {
        Some(uri) => uri.path().to_owned(),
        None => parts.uri.path().to_owned(),
    };
    let config = IdempotencyConfig::new().with_path(original);
    let version = |answer: &'static str| {
        let layer = IdempotencyLayer::new(store.clone()).with_config(config.clone());
        Router::new().route("/orders", on_post(move || async move { answer })).layer(layer)
    };
    let app = Router::new().nest("/v1", version("one")).nest("/v2", version("two"));
    for (path, answer) in [("/v1/orders", "one"), ("/v2/orders", "two"), ("/v1/orders", "one")] {
        assert_eq!(send(&app, post_to(path)).await.body, answer);
    }
}

/// Fault of most of them.
#[tokio::test]
async fn key_of_another_caller_gets_no_replay() {
    let app = app(memory().0, IdempotencyConfig::new(), |headers: HeaderMap| async move {
        headers.get("authorization").map_or("nobody".into(), |v| v.to_str().unwrap().to_owned())
    });
    for who in ["Bearer alice", "Bearer bob", "Basic alice"] {
        let mut request = post("k", "");
        request.headers_mut().insert("authorization", who.parse().unwrap());
        assert_eq!(send(&app, request).await.body, who);
    }
    assert_eq!(send(&app, post("k", "")).await.body, "nobody");
}

/// Also a fault of most of them.
#[tokio::test]
async fn replay_never_has_set_cookie() {
    let app = app(memory().0, IdempotencyConfig::new(), || async {
        ([("set-cookie", "session=secret"), ("location", "/orders/1")], "done")
    });
    let first = send(&app, post("k", "")).await;
    assert_eq!(first.header("set-cookie"), Some("session=secret"));
    let again = send(&app, post("k", "")).await;
    assert_eq!((again.header("set-cookie"), again.header("location")), (None, Some("/orders/1")));
}

/// Diom: accepted.
#[tokio::test]
async fn stale_owner_cannot_complete() {
    let (store, clock) = memory();
    let config = without_wait().with_on_unknown(OnUnknown::TakeOver);
    let (gate, runs) = (HandlerGate::default(), Runs::default());
    let (inside, counted) = (gate.clone(), runs.clone());
    let app = app(store.clone(), config.clone(), || async move {
        let run = counted.add();
        if run == 1 {
            inside.pass().await;
        }
        format!("run {run}")
    });
    let late = sending(&app, "k", "");
    gate.reached().await;
    // The renewals of the first owner fail, and another attempt takes over.
    clock.advance(*config.lease());
    let winner = send(&app, post("k", "")).await;
    assert_eq!((&winner.body[..], winner.is_replay()), (&b"run 2"[..], false));
    gate.release_one();
    // The client of the late owner gets the winner's response.
    let late = late.await.unwrap();
    assert_eq!((&late.body[..], late.is_replay()), (&b"run 2"[..], true));
    assert_eq!(send(&app, post("k", "")).await.body, "run 2");
    assert_eq!(runs.count(), 2);
}

/// The same directly on the store.
#[tokio::test]
async fn stale_ticket_changes_nothing() {
    let (store, clock) = memory();
    let config = without_wait().with_on_unknown(OnUnknown::TakeOver);
    let (key, ticket) = claim_elsewhere(&*store, &config, "k").await;
    clock.advance(*config.lease());
    let app = app(store.clone(), config, || async { "winner" });
    assert_eq!(send(&app, post("k", "")).await.body, "winner");
    let step = store.settle(&key, &ticket.token, "stale".into()).await.unwrap();
    assert_eq!(step, Step::Lost);
    assert_eq!(send(&app, post("k", "")).await.body, "winner");
}
