//! The functions leave behind just what the store and the HTTP API see, and the other way round.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_conformance::{StoreUnderTest, StoreWrapper, WrappedStore, check};
use hapax_core::command::{Begun, CommandConfig, Commands, StoredResponse};
use hapax_core::{
    ClaimRequest, ClaimStep, Claimed, Expect, Fingerprint, Key, Operation, Put, Step, Store,
    StoreError, StoreResult, Tenant, Token,
};
use hapax_postgres::{HapaxTransaction, PostgresStore};
use tokio::sync::Mutex;
use tokio_postgres::{Client, IsolationLevel};

use super::{LEVELS, PATIENT, begin, error_code, is_true, lease_runs_out, start};
use crate::{SERVER, application, client, open};

const NAMES: [&str; 6] = ["k", "%3A", "a:b", "{}", "~%7B:}", "0123456789012345678901234567890"];

#[tokio::test]
async fn sql_digest_is_that_of_the_key() {
    let (_, own) = application("sql_digest").await;
    for name in NAMES {
        for operation in ["POST /a:b", "x", "%"] {
            let key = Key::command(&Tenant::default(), Operation(operation), name).unwrap();
            let sql = "SELECT hapax_digest('default', 'command', $1, $2)";
            let digest: i64 = own.query_one(sql, &[&operation, &name]).await.unwrap().get(0);
            assert_eq!(digest.cast_unsigned(), key.digest(), "{operation} {name}");
        }
    }
}

#[tokio::test]
async fn sql_completion_is_replayed_by_the_store() {
    let (url, own) = application("sql_to_store").await;
    let begun = begin(&own, "'CreateOrder', 'k', 'f'").await;
    assert_eq!((begun.attempt, begun.token().len()), (Some(1), 32));
    let complete = |status: u16| {
        format!(
            "hapax_complete('CreateOrder', 'k', '{}', {status}, \
             '{{\"x\": [\"1\", \"2\"], \"location\": \"/orders/17\"}}', '\\x00ff80')",
            begun.token()
        )
    };
    assert!(is_true(&own, &complete(201)).await);
    assert!(is_true(&own, &complete(201)).await, "the same completion again");
    assert!(!is_true(&own, &complete(202)).await, "another completion");

    let commands = Commands::new(Arc::new(open(&url)));
    let config = CommandConfig::default().fingerprint(Fingerprint::new("f"));
    let answer = commands.begin(Operation("CreateOrder"), "k", &config).await.unwrap();
    let Begun::Completed { response, .. } = answer else { panic!("{answer:?}") };
    let header = |name: &str, value: &'static str| (name.to_owned(), Bytes::from(value));
    let headers = vec![header("location", "/orders/17"), header("x", "1"), header("x", "2")];
    let body = Bytes::from_static(b"\x00\xff\x80");
    assert_eq!(response, StoredResponse { status: 201, headers, body });
    let other = CommandConfig::default().fingerprint(Fingerprint::new("g"));
    let reused = commands.begin(Operation("CreateOrder"), "k", &other).await.unwrap();
    assert!(matches!(reused, Begun::KeyReused), "{reused:?}");
}

#[tokio::test]
async fn store_completion_is_replayed_by_sql() {
    let (url, own) = application("store_to_sql").await;
    let commands = Commands::new(Arc::new(open(&url)));
    let operation = Operation("POST /orders");
    let config = CommandConfig::default();
    let begun = commands.begin(operation, "k", &config).await.unwrap();
    let Begun::Granted { ticket, .. } = begun else { panic!("{begun:?}") };
    let busy = begin(&own, "'POST /orders', 'k'").await;
    assert_eq!(busy.state, "in-progress");
    assert!((1..=30_000).contains(&busy.retry_after_ms.unwrap()), "{busy:?}");
    let response = StoredResponse {
        status: 200,
        headers: vec![
            ("set".into(), "a".into()),
            ("set".into(), "b".into()),
            ("set".into(), "c".into()),
            ("raw".into(), Bytes::from_static(b"\xe9")),
        ],
        body: Bytes::from_static(b"\x00answer"),
    };
    commands.complete(operation, "k", &ticket.token, &response).await.unwrap();
    let replayed = begin(&own, "'POST /orders', 'k'").await;
    assert_eq!(replayed.state, "completed");
    assert_eq!((replayed.status, replayed.token), (Some(200), None));
    let headers: serde_json::Value = serde_json::from_str(&replayed.headers.unwrap()).unwrap();
    assert_eq!(headers, serde_json::json!({"set": ["a", "b", "c"], "raw": "\\351"}));
    assert_eq!(replayed.body.unwrap(), b"\x00answer");
    assert_eq!(begin(&own, "'POST /orders', 'k', fingerprint => 'f'").await.state, "reused");
}

#[tokio::test]
async fn sql_failed_command_is_retried_as_the_next_attempt() {
    let (url, own) = application("sql_fail").await;
    let first = begin(&own, "'o', 'k', 'f'").await;
    let fail = format!("hapax_fail('o', 'k', '{}')", first.token());
    assert!(is_true(&own, &fail).await);
    assert!(is_true(&own, &fail).await, "the same failure again");
    assert_eq!(begin(&own, "'o', 'k', 'g'").await.state, "reused");
    let second = begin(&own, "'o', 'k', 'f'").await;
    assert_eq!(second.attempt, Some(2));
    assert!(second.fence > first.fence);
    assert!(!is_true(&own, &fail).await);
    let complete = format!("hapax_complete('o', 'k', '{}', 200)", first.token());
    assert!(!is_true(&own, &complete).await, "the token of the failed attempt");
    // The store takes the token that SQL was given.
    let commands = Commands::new(Arc::new(open(&url)));
    let token = Token::presented(second.token());
    commands.fail(Operation("o"), "k", &token).await.unwrap();
    assert_eq!(begin(&own, "'o', 'k', 'f'").await.attempt, Some(3));
}

#[tokio::test]
async fn sql_begin_without_complete_becomes_unknown() {
    let (_, mut own) = application("sql_unknown").await;
    let tx = start(&mut own, IsolationLevel::ReadCommitted).await;
    let first = begin(&tx, "'o', 'k', lease => '1 ms'").await;
    tx.commit().await.unwrap();
    lease_runs_out(&own).await;
    let refused = begin(&own, "'o', 'k'").await;
    assert_eq!((&*refused.state, &refused.token), ("unknown", &None));
    let second = begin(&own, "'o', 'k', on_unknown => 'rerun'").await;
    assert_eq!(second.attempt, Some(2));
    assert!(second.fence > first.fence);
    assert!(!is_true(&own, &format!("hapax_complete('o', 'k', '{}', 200)", first.token())).await);
    assert!(is_true(&own, &format!("hapax_complete('o', 'k', '{}', 200)", second.token())).await);
}

#[tokio::test]
async fn sql_late_completion_counts_if_nobody_took_over() {
    let (_, own) = application("sql_late").await;
    let begun = begin(&own, "'o', 'k', lease => '1 ms'").await;
    lease_runs_out(&own).await;
    assert!(is_true(&own, &format!("hapax_complete('o', 'k', '{}', 200)", begun.token())).await);
    assert_eq!(begin(&own, "'o', 'k'").await.state, "completed");
}

#[tokio::test]
async fn sql_locks_and_records_are_those_of_the_store() {
    let (url, own) = application("sql_locks").await;
    let store = open(&url);
    let taken =
        own.query_one("SELECT state, token FROM hapax_lock('l', '1 hour')", &[]).await.unwrap();
    let token: String = taken.get("token");
    assert_eq!(taken.get::<_, &str>("state"), "granted");
    let held = "(SELECT state = 'held' AND token IS NULL AND retry_after > '59 minutes' FROM hapax_lock('l'))";
    assert!(is_true(&own, held).await);
    let key = Key::lock(&Tenant::default(), "l").unwrap();
    let ask = ClaimRequest::new(Duration::from_secs(60));
    let claimed = hapax_core::Claims::claim(&store, &key, &ask).await.unwrap();
    assert!(matches!(claimed, Claimed::Busy { .. }), "{claimed:?}");
    assert!(!is_true(&own, "hapax_unlock('l', 'another')").await);
    assert!(is_true(&own, &format!("hapax_unlock('l', '{token}')")).await);
    assert!(!is_true(&own, &format!("hapax_unlock('l', '{token}')")).await);
    crate::granted(&store, &key, &ask).await;

    let version = |sql: &str| {
        let sql = format!("SELECT {sql}");
        let own = &own;
        async move { own.query_one(&sql, &[]).await.unwrap().get::<_, Option<i64>>(0) }
    };
    let first = version("hapax_record_put('r', '{\"n\": 1}', 0)").await.unwrap();
    assert_eq!(version("hapax_record_put('r', '2', 0)").await, None);
    assert_eq!(version(&format!("hapax_record_put('r', '2', {})", first + 1000)).await, None);
    let second = version(&format!("hapax_record_put('r', '{{\"n\": 2}}', {first})")).await.unwrap();
    assert!(second > first);
    let record = Key::record(&Tenant::default(), "r").unwrap();
    let stored = hapax_core::Records::get(&store, &record).await.unwrap().unwrap();
    assert_eq!(
        (&stored.value[..], stored.version.as_str()),
        (&b"{\"n\": 2}"[..], &*second.to_string())
    );
    assert!(
        is_true(
            &own,
            &format!(
                "(SELECT value->>'n' = '2' AND version = {second} FROM hapax_record_get('r'))"
            )
        )
        .await
    );
    assert!(is_true(&own, "NOT EXISTS (SELECT FROM hapax_record_get('other'))").await);
}

#[tokio::test]
async fn sql_arguments_have_the_limits_of_the_api() {
    let (_, own) = application("sql_limits").await;
    let long = "x".repeat(256);
    for wrong in [
        "hapax_begin('', 'k')".to_owned(),
        "hapax_begin('o', '')".to_owned(),
        "hapax_begin(NULL, 'k')".to_owned(),
        "hapax_begin('o', 'a b')".to_owned(),
        "hapax_begin('o', 'caf\u{e9}')".to_owned(),
        format!("hapax_begin('o', '{long}')"),
        format!("hapax_begin('{long}', 'k')"),
        format!("hapax_begin('o', 'k', fingerprint => '{long}')"),
        format!("hapax_begin('o', 'k', tenant => '{}')", &long[..65]),
        "hapax_begin('o', 'k', tenant => 'a/b')".to_owned(),
        "hapax_begin('o', 'k', lease => '0')".to_owned(),
        "hapax_begin('o', 'k', lease => '-1 s')".to_owned(),
        "hapax_begin('o', 'k', lease => '1 hour 1 ms')".to_owned(),
        "hapax_begin('o', 'k', lease => NULL)".to_owned(),
        "hapax_begin('o', 'k', retention => '367 days')".to_owned(),
        "hapax_begin('o', 'k', on_unknown => 'guess')".to_owned(),
        "hapax_complete('o', 'k', NULL, 200)".to_owned(),
        "hapax_complete('o', 'k', 't', 99)".to_owned(),
        "hapax_complete('o', 'k', 't', 600)".to_owned(),
        "hapax_complete('o', 'k', 't', NULL)".to_owned(),
        "hapax_complete('o', 'k', 't', 200, '[]')".to_owned(),
        "hapax_complete('o', 'k', 't', 200, '{\"a b\": \"x\"}')".to_owned(),
        "hapax_complete('o', 'k', 't', 200, '{\"a\": 1}')".to_owned(),
        "hapax_complete('o', 'k', 't', 200, '{\"a\": [\"x\", null]}')".to_owned(),
        "hapax_complete('o', 'k', 't', 200, '{\"a\": \"x\", \"A\": \"y\"}')".to_owned(),
        "hapax_complete('o', 'k', 't', 200, '{\"a\": \"x\\n\"}')".to_owned(),
        "hapax_complete('o', 'k', 't', 200, body => decode(repeat('00', 1048577), 'hex'))"
            .to_owned(),
        "hapax_receive('', 'm')".to_owned(),
        "hapax_receive('c', NULL)".to_owned(),
        "hapax_receive('c', 'm', retention => '0')".to_owned(),
        "hapax_enqueue('', 'k', 'x')".to_owned(),
        "hapax_enqueue('t', 'k', NULL)".to_owned(),
        "hapax_enqueue('t', 'k', 'x', queue => '')".to_owned(),
        "hapax_enqueue('t', 'k', 'x', headers => '[]')".to_owned(),
        "hapax_lock('', '1 s')".to_owned(),
        "hapax_lock('l', '2 hours')".to_owned(),
        "hapax_record_put('r', NULL)".to_owned(),
        "hapax_record_put('r', '1', -1)".to_owned(),
    ] {
        assert_eq!(error_code(&own, &format!("SELECT * FROM {wrong}")).await, "22023", "{wrong}");
    }
    for table in ["hapax_claims", "hapax_outbox", "hapax_records"] {
        assert!(is_true(&own, &format!("NOT EXISTS (SELECT FROM {table})")).await);
    }
    let longest = &long[..255];
    assert_eq!(
        begin(&own, &format!("'{longest}', '{longest}', '{longest}'")).await.state,
        "granted"
    );
}

/// Claims, steps and puts in a transaction of their own, through the functions.
struct ThroughFunctions {
    store: PostgresStore,
    url: String,
    level: IsolationLevel,
    idle: Mutex<Vec<Client>>,
}

impl ThroughFunctions {
    async fn connection(&self) -> Client {
        let idle = self.idle.lock().await.pop();
        match idle {
            Some(own) => own,
            None => client(&self.url).await,
        }
    }
}

/// Runs a call of hapax in a transaction of its own, again where it lost a race.
macro_rules! in_transaction {
    ($through:ident, $hapax:ident => $call:expr) => {{
        let mut own = $through.connection().await;
        let answer = loop {
            let mut tx = start(&mut own, $through.level).await;
            let mut $hapax = tx.hapax().timeout(PATIENT);
            match $call {
                Ok(answer) => match tx.commit().await {
                    Ok(()) => break Ok(answer),
                    Err(_) => continue,
                },
                Err(StoreError::Locked { .. }) => {}
                Err(error) => break Err(error),
            }
        };
        $through.idle.lock().await.push(own);
        answer
    }};
}

#[async_trait]
impl StoreWrapper for ThroughFunctions {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
        in_transaction!(self, hapax => hapax.claim(key, ask).await)
    }

    async fn step(&self, key: &Key, token: &Token, step: ClaimStep) -> StoreResult<Step> {
        let answer = in_transaction!(self, hapax => match step.clone() {
            ClaimStep::Extend(lease) => hapax.extend(key, token, lease).await,
            ClaimStep::Settle(value) => hapax.settle(key, token, value).await,
            ClaimStep::GiveBack(how) => hapax.give_back(key, token, how).await,
        });
        self.store.wake_claim(key);
        answer
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> StoreResult<Put> {
        in_transaction!(self, hapax => hapax.put(key, value.clone(), expect, ttl).await)
    }
}

struct OnFunctions(&'static str, IsolationLevel);

#[async_trait]
impl StoreUnderTest for OnFunctions {
    async fn open(&self) -> Arc<dyn Store> {
        let url = SERVER.url().replace("/postgres", &format!("/{}", self.0));
        let url = url.replacen(&format!("//{}", self.0), "//postgres", 1);
        let store = open(&url);
        // The first call makes the tables and the functions.
        store.ping().await.unwrap();
        let (level, idle) = (self.1, Mutex::default());
        Arc::new(WrappedStore(ThroughFunctions { store, url, level, idle }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_functions_keep_every_law() {
    SERVER.database("sql_laws");
    check(|| async { Arc::new(OnFunctions("sql_laws", LEVELS[0])) as Arc<dyn StoreUnderTest> })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_functions_keep_every_law_when_serializable() {
    SERVER.database("sql_laws_serializable");
    check(|| async {
        Arc::new(OnFunctions("sql_laws_serializable", LEVELS[2])) as Arc<dyn StoreUnderTest>
    })
    .await;
}
