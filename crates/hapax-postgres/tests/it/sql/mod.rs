//! The SQL interface: `hapax_begin` and the other functions, as callers in any language use them.

mod concurrent;
mod guide;
mod kills;
mod messages;
mod roles;
mod same_truth;
mod upgrade;

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, GenericClient, IsolationLevel, Transaction};

/// Longer than a busy machine needs for a statement.
const PATIENT: Duration = Duration::from_secs(60);

const LEVELS: [IsolationLevel; 3] =
    [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

/// The row of `hapax_begin`.
#[derive(Debug)]
struct BegunRow {
    state: String,
    token: Option<String>,
    fence: Option<i64>,
    attempt: Option<i32>,
    status: Option<i32>,
    headers: Option<String>,
    body: Option<Vec<u8>>,
    retry_after_ms: Option<i64>,
}

impl BegunRow {
    fn token(&self) -> &str {
        assert_eq!(self.state, "granted", "{self:?}");
        self.token.as_deref().unwrap()
    }
}

/// Calls `hapax_begin` with these arguments, as SQL.
async fn try_begin(
    client: &impl GenericClient,
    arguments: &str,
) -> Result<BegunRow, tokio_postgres::Error> {
    let sql = format!(
        "SELECT state, token, fence, attempt, status, headers::text, body, \
         (extract(epoch FROM retry_after) * 1000)::bigint FROM hapax_begin({arguments})"
    );
    let row = timeout(PATIENT, client.query_one(&sql, &[])).await.expect("an answer")?;
    Ok(BegunRow {
        state: row.get(0),
        token: row.get(1),
        fence: row.get(2),
        attempt: row.get(3),
        status: row.get(4),
        headers: row.get(5),
        body: row.get(6),
        retry_after_ms: row.get(7),
    })
}

async fn begin(client: &impl GenericClient, arguments: &str) -> BegunRow {
    try_begin(client, arguments).await.unwrap()
}

/// The boolean that this SQL returns.
async fn is_true(client: &impl GenericClient, sql: &str) -> bool {
    let row = timeout(PATIENT, client.query_one(&format!("SELECT {sql}"), &[])).await;
    row.expect("an answer").unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

/// Waits until the server's clock, by which leases are judged, is past a lease of one millisecond.
async fn lease_runs_out(client: &impl GenericClient) {
    let row = client.query_one("SELECT (clock_timestamp() + interval '2 ms')::text", &[]).await;
    let end: String = row.unwrap().get(0);
    while !is_true(client, &format!("clock_timestamp() > '{end}'::timestamptz")).await {}
}

/// The SQLSTATE of the error that this SQL ends with.
async fn error_code(client: &impl GenericClient, sql: &str) -> String {
    let answer = timeout(PATIENT, client.batch_execute(sql)).await.expect("an answer");
    code_of(&answer.expect_err(sql))
}

fn code_of(error: &tokio_postgres::Error) -> String {
    error.code().map(SqlState::code).unwrap_or_default().to_owned()
}

async fn start(client: &mut Client, level: IsolationLevel) -> Transaction<'_> {
    client.build_transaction().isolation_level(level).start().await.unwrap()
}

/// Waits until a session waits for an advisory lock.
async fn someone_waits(observer: &Client) {
    let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let waiting = async {
        while observer.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENT, waiting).await.expect("a session waits for the lock");
}
