//! Commands that were done before the move to hapax are answered as before.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::command::{Begun, CommandConfig, CommandState, Commands, StoredResponse};
use hapax_core::{Fingerprint, OnUnknown, Operation, Tenant};
use hapax_postgres::{PostgresStore, migrate};
use hapax_testkit::find_binary;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::{SERVER, client, open};

const SCRIPT: &str = include_str!("../../migrate-from/bento_idempotency.sql");

/// Bento's own.
const TABLE: &str = "CREATE TABLE idempotency (
    idempotency_key VARCHAR(64) PRIMARY KEY,
    tenant_id VARCHAR(64) NOT NULL,
    operation VARCHAR(128) NOT NULL,
    request_hash VARCHAR(64),
    response JSON,
    status_code INTEGER DEFAULT 200,
    state VARCHAR(20) DEFAULT 'PENDING',
    created_at TIMESTAMP WITH TIME ZONE DEFAULT NOW(),
    expires_at TIMESTAMP WITH TIME ZONE
)";

const DAY: Duration = Duration::from_secs(86_400);

/// A database where both lived, and those who use it.
struct Moving {
    url: String,
    own: Client,
    store: PostgresStore,
}

impl Moving {
    async fn start(name: &str) -> Self {
        let url = SERVER.database(&format!("migrate_from_{name}"));
        let mut own = client(&url).await;
        migrate(&mut own).await.unwrap();
        own.batch_execute(TABLE).await.unwrap();
        let store = open(&url);
        Self { url, own, store }
    }

    async fn sql(&self, sql: &str) {
        self.own.batch_execute(sql).await.unwrap();
    }

    /// Adds a row that was made an hour ago and has a day in all.
    async fn row(&self, key: &str, columns: &str) {
        let (names, values) = columns.split_once(" = ").unwrap_or(("state", columns));
        self.sql(&format!(
            "INSERT INTO idempotency (idempotency_key, tenant_id, operation, request_hash,
                                      created_at, expires_at, {names})
             VALUES ('{key}', 'acme', 'CreateOrder', 'abc123',
                     now() - interval '1 hour', now() + interval '23 hours', {values})"
        ))
        .await;
    }

    /// Runs the script, and answers how many rows it says it has moved.
    async fn run(&self) -> Result<[String; 4], tokio_postgres::Error> {
        let messages = match self.own.simple_query(SCRIPT).await {
            Ok(messages) => messages,
            Err(error) => {
                self.sql("ROLLBACK").await;
                return Err(error);
            }
        };
        let row = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let row = row.expect("a summary");
        Ok([0, 1, 2, 3].map(|column| row.get(column).expect("a count").to_owned()))
    }

    fn commands(&self, tenant: &str) -> Commands {
        Commands::new(Arc::new(self.store.clone())).tenant(Tenant::new(tenant).unwrap())
    }

    async fn begin(&self, key: &str, fingerprint: Option<&str>) -> Begun {
        let fingerprint = fingerprint.map(|text| Fingerprint::new(text).unwrap());
        let begin = CommandConfig::default().fingerprint(fingerprint);
        self.commands("acme").begin(Operation("CreateOrder"), key, &begin).await.unwrap()
    }

    async fn look(&self, key: &str) -> Option<CommandState> {
        let view = self.commands("acme").look(Operation("CreateOrder"), key).await.unwrap();
        view.map(|view| view.state)
    }

    /// Everything that hapax has.
    async fn claims(&self) -> String {
        let sql = "SELECT COALESCE(string_agg(claim::text, ';' ORDER BY name), '') FROM hapax_claims claim";
        self.own.query_one(sql, &[]).await.unwrap().get(0)
    }
}

fn json(status: u16, body: &'static str) -> StoredResponse {
    let headers = vec![("content-type".to_owned(), "application/json".into())];
    StoredResponse { status, headers, body: body.into() }
}

#[tokio::test]
async fn migrate_from_keeps_completed_answers() {
    let moving = Moving::start("completed").await;
    let order = r#"{"id": 7, "item": "th\u00e9", "cups": [1, 2.50]}"#;
    moving.row("k1", &format!("response, status_code, state = '{order}', 201, 'COMPLETED'")).await;
    moving.row("k2", "response, status_code, state = '\"茶 ☕\"', NULL, 'COMPLETED'").await;
    moving.row("k3", "status_code, state = 204, 'COMPLETED'").await;
    moving.row("k4", "status_code, state = 202, 'COMPLETED'").await;
    assert_eq!(moving.run().await.unwrap(), ["4", "0", "0", "0"]);

    let empty = StoredResponse { status: 204, headers: vec![], body: "".into() };
    let all = [
        ("k1", json(201, r#"{"id": 7, "item": "th\u00e9", "cups": [1, 2.50]}"#)),
        ("k2", json(200, "\"茶 ☕\"")),
        ("k3", empty),
        ("k4", json(202, "null")),
    ];
    for (key, expected) in all {
        let Begun::Completed { response, expires_in } = moving.begin(key, Some("abc123")).await
        else {
            panic!("{key} was completed");
        };
        assert_eq!(response, expected);
        let hours = Duration::from_secs(23 * 3600);
        assert!(expires_in <= hours && expires_in > hours - Duration::from_secs(300));
        let Some(CommandState::Completed { response, .. }) = moving.look(key).await else {
            panic!("{key} was completed");
        };
        assert_eq!(response, expected);
    }
}

#[tokio::test]
async fn migrate_from_keeps_fingerprint_and_tenant() {
    let moving = Moving::start("identity").await;
    moving.row("k1", "response, state = '1', 'COMPLETED'").await;
    moving.row("k2", "response, state = '2', 'COMPLETED'").await;
    moving.sql("UPDATE idempotency SET request_hash = NULL WHERE idempotency_key = 'k2'").await;
    moving.run().await.unwrap();
    assert_eq!(moving.begin("k1", Some("xyz789")).await, Begun::KeyReused);
    assert!(matches!(moving.begin("k2", None).await, Begun::Completed { .. }));
    assert_eq!(moving.begin("k2", Some("abc123")).await, Begun::KeyReused);
    for (tenant, operation) in [("other", "CreateOrder"), ("acme", "CancelOrder")] {
        let (commands, config) = (moving.commands(tenant), CommandConfig::default());
        let begun = commands.begin(Operation(operation), "k1", &config).await.unwrap();
        assert!(matches!(begun, Begun::Granted { attempt: 1, .. }), "{begun:?}");
    }
}

#[tokio::test]
async fn migrate_from_maps_failed_and_pending_commands() {
    let moving = Moving::start("unfinished").await;
    moving.row("failed", "'FAILED'").await;
    moving.row("pending", "'PENDING'").await;
    moving.row("default", "NULL").await;
    assert_eq!(moving.run().await.unwrap(), ["0", "1", "2", "0"]);

    assert!(matches!(moving.look("failed").await, Some(CommandState::Failed { .. })));
    assert_eq!(moving.begin("failed", Some("xyz789")).await, Begun::KeyReused);
    let retried = moving.begin("failed", Some("abc123")).await;
    assert!(matches!(retried, Begun::Granted { attempt: 2, .. }), "{retried:?}");

    for key in ["pending", "default"] {
        let unknown = moving.begin(key, Some("abc123")).await;
        assert!(matches!(unknown, Begun::OutcomeUnknown { .. }), "{unknown:?}");
    }
    let fingerprint = Fingerprint::new("abc123");
    let rerun = CommandConfig::default().fingerprint(fingerprint).on_unknown(OnUnknown::TakeOver);
    let rerun =
        moving.commands("acme").begin(Operation("CreateOrder"), "pending", &rerun).await.unwrap();
    assert!(matches!(rerun, Begun::Granted { attempt: 2, .. }), "{rerun:?}");
}

#[tokio::test]
async fn migrate_from_keeps_expiry() {
    let moving = Moving::start("expiry").await;
    let expiries = [
        ("gone", "now() - interval '1 second'"),
        ("never", "NULL"),
        ("infinite", "'infinity'"),
        ("long", "now() + interval '10 years'"),
    ];
    for (key, expiry) in expiries {
        moving.row(key, "response, state = '1', 'COMPLETED'").await;
        let set = format!("UPDATE idempotency SET expires_at = {expiry}");
        moving.sql(&format!("{set} WHERE idempotency_key = '{key}'")).await;
    }
    moving.sql("UPDATE idempotency SET created_at = NULL WHERE idempotency_key = 'never'").await;
    assert_eq!(moving.run().await.unwrap(), ["3", "0", "0", "1"]);
    assert_eq!(moving.look("gone").await, None);
    for (key, days) in [("never", 366), ("infinite", 366), ("long", 3652)] {
        let Begun::Completed { expires_in, .. } = moving.begin(key, Some("abc123")).await else {
            panic!("{key} was completed");
        };
        assert!(expires_in.abs_diff(days * DAY) < 2 * DAY, "{key}: {expires_in:?}");
    }
}

#[tokio::test]
async fn migrate_from_may_run_repeatedly() {
    let moving = Moving::start("again").await;
    assert_eq!(moving.run().await.unwrap(), ["0", "0", "0", "0"]);
    for key in ["done", "failed", "pending", "rerun", "retried"] {
        moving.row(key, "'PENDING'").await;
    }
    let finish = |key, state| {
        format!(
            "UPDATE idempotency SET state = '{state}', response = '\"{key}\"' \
             WHERE idempotency_key = '{key}'"
        )
    };
    moving.sql(&finish("done", "COMPLETED")).await;
    moving.sql(&finish("retried", "FAILED")).await;
    moving.run().await.unwrap();
    let before = moving.claims().await;
    assert_eq!(moving.run().await.unwrap(), ["1", "1", "3", "0"]);
    assert_eq!(moving.claims().await, before);

    // hapax is at work on two of them; the old service finishes what it had begun.
    let fingerprint = Fingerprint::new("abc123");
    let on_unknown = OnUnknown::TakeOver;
    let rerun = CommandConfig::default().fingerprint(fingerprint).on_unknown(on_unknown).lease(DAY);
    for key in ["rerun", "retried"] {
        let begun =
            moving.commands("acme").begin(Operation("CreateOrder"), key, &rerun).await.unwrap();
        assert!(matches!(begun, Begun::Granted { attempt: 2, .. }), "{begun:?}");
        moving.sql(&finish(key, "COMPLETED")).await;
    }
    moving.sql(&finish("pending", "COMPLETED")).await;
    moving.sql(&finish("failed", "FAILED")).await;
    assert_eq!(moving.run().await.unwrap(), ["4", "1", "0", "0"]);

    let Begun::Completed { response, .. } = moving.begin("pending", Some("abc123")).await else {
        panic!("it is completed by now");
    };
    assert_eq!(response, json(200, "\"pending\""));
    assert!(matches!(moving.look("failed").await, Some(CommandState::Failed { .. })));
    for key in ["rerun", "retried"] {
        assert!(matches!(moving.look(key).await, Some(CommandState::Pending { .. })), "{key}");
    }
}

#[tokio::test]
async fn migrate_from_refuses_rows_it_cannot_represent() {
    let moving = Moving::start("unfit").await;
    moving.row("good", "response, state = '1', 'COMPLETED'").await;
    let bad = [
        "tenant_id = 'a/b'",
        "tenant_id = 'caf\u{e9}'",
        "tenant_id = ''",
        "operation = E'Create\\nOrder'",
        "status_code = 70000",
        "status_code = 100",
        "state = 'RUNNING'",
        "idempotency_key = 'a b'",
    ];
    for change in bad {
        moving.row("bad", "response, state = '1', 'COMPLETED'").await;
        let change = format!("UPDATE idempotency SET {change} WHERE idempotency_key = 'bad'");
        moving.sql(&change).await;
        let refused = moving.run().await.expect_err(&change);
        let message = refused.as_db_error().expect("the script's own").message();
        assert!(message.starts_with("1 row(s)"), "{message}");
        assert_eq!(moving.claims().await, "");
        moving.sql("DELETE FROM idempotency WHERE idempotency_key <> 'good'").await;
    }
    // An expired row does not stop the migration.
    moving.row("bad", "state, status_code = 'RUNNING', 70000").await;
    let expired = "UPDATE idempotency SET expires_at = now() WHERE idempotency_key = 'bad'";
    moving.sql(expired).await;
    assert_eq!(moving.run().await.unwrap(), ["1", "0", "0", "1"]);
}

#[tokio::test]
async fn migrate_from_runs_in_psql() {
    let moving = Moving::start("by_psql").await;
    moving.row("k1", "response, state = '1', 'COMPLETED'").await;
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/migrate-from/bento_idempotency.sql");
    let psql = || {
        Command::new(find_binary("psql").unwrap())
            .args(["--no-psqlrc", "--no-align", "--tuples-only", "--quiet"])
            .args(["--set", "ON_ERROR_STOP=1", "--file", file, &moving.url])
            .output()
            .unwrap()
    };
    for _ in 0..2 {
        let output = psql();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "1|0|0|0", "{errors}");
    }
    assert!(matches!(moving.begin("k1", Some("abc123")).await, Begun::Completed { .. }));

    moving.row("a b", "'PENDING'").await;
    let refused = psql();
    assert!(!refused.status.success());
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(errors.contains("1 row(s)") && errors.contains("HINT"), "{errors}");
    assert!(!errors.contains("a b"), "keys stay out of messages: {errors}");
}
