//! Clients that put the claim, their effect and its answer into one transaction of their own database, and try again whenever
//! they do not know how it ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hapax::sqlite::rusqlite::{self, Connection, TransactionBehavior};
use hapax::{OnceError, Operation};
use tokio_postgres::{Client, NoTls, Row};

use super::TortureClient;
use crate::history::{CallOutcome, Observation};
use crate::installation::Installation;
use crate::power_cut_disk::PowerCutDisk;
use crate::recorder::HistoryRecorder;

const KEYS: u64 = 8;
const SECONDS: u64 = 4;
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long the database may be away after the faults.
const READ_TIMEOUT: Duration = Duration::from_secs(120);
/// No unique key: a second effect must be seen.
const TABLE: &str = "CREATE TABLE torture_transactions (key TEXT NOT NULL, effect BIGINT NOT NULL)";

/// The clients' own database, which is also the store.
#[derive(Clone)]
pub(crate) enum TransactionDatabase {
    Sqlite(PathBuf, Option<Arc<PowerCutDisk>>),
    /// Through the connection that the faults break.
    Postgres(String),
}

impl TransactionDatabase {
    /// Makes the clients' table. `None` where the store has no transactions.
    pub(crate) async fn make(installation: &Installation) -> anyhow::Result<Option<Self>> {
        let url = installation.transaction_url();
        if let Some(file) = url.strip_prefix("sqlite:") {
            let file = PathBuf::from(file);
            Connection::open(&file)?.execute_batch(TABLE)?;
            return Ok(Some(Self::Sqlite(file, installation.disk.clone())));
        }
        if !url.starts_with("postgres") {
            return Ok(None);
        }
        connect(&url).await?.batch_execute(TABLE).await?;
        Ok(Some(Self::Postgres(url)))
    }

    /// Reads all effects, once the faults are over.
    async fn effects(&self) -> anyhow::Result<Vec<(String, u64)>> {
        let select = "SELECT key, effect FROM torture_transactions";
        match self {
            Self::Sqlite(file, _) => {
                let connection = Connection::open(file)?;
                connection.busy_timeout(TIMEOUT)?;
                let mut statement = connection.prepare(select)?;
                let rows =
                    statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))?;
                let rows = rows.collect::<Result<Vec<_>, _>>()?;
                Ok(rows.into_iter().map(|(key, effect)| (key, effect.cast_unsigned())).collect())
            }
            Self::Postgres(url) => {
                let rows = connect(url).await?.query(select, &[]).await?;
                let pair = |row: &Row| (row.get(0), row.get::<_, i64>(1).cast_unsigned());
                Ok(rows.iter().map(pair).collect())
            }
        }
    }

    /// Records every effect that the transactions left.
    pub(crate) async fn record_effects(&self, recorder: &HistoryRecorder) -> anyhow::Result<()> {
        let deadline = tokio::time::Instant::now() + READ_TIMEOUT;
        let effects = loop {
            match self.effects().await {
                Ok(effects) => break effects,
                Err(error) if tokio::time::Instant::now() > deadline => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        };
        for (key, effect) in effects {
            recorder.record_now(0, Observation::TransactionEffect { key, effect });
        }
        Ok(())
    }
}

/// What a client does with its transaction at the end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TransactionEnd {
    Commit,
    RollBack,
    /// The connection is dropped in the middle, as by a client that dies.
    Disappear,
}

pub(crate) async fn run(mut client: TortureClient, database: TransactionDatabase) {
    let mut connection = None;
    while !client.is_over() {
        let key = client.key("transaction", KEYS, SECONDS);
        // Again and again until it knows, as callers do.
        for _ in 0..8 {
            let end = match client.random.below(12) {
                0 => TransactionEnd::RollBack,
                1 => TransactionEnd::Disappear,
                _ => TransactionEnd::Commit,
            };
            let attempt = TransactionAttempt {
                key: key.clone(),
                effect: client.unique(),
                held_open: client.random.millis(0, 15),
                end,
            };
            let from = client.now();
            let (effect, outcome) = attempt.run(&database, &mut connection).await;
            let is_known = outcome.done().is_some();
            let key = key.clone();
            client.record(from, Observation::Transaction { key, effect, outcome });
            if is_known || client.is_over() {
                break;
            }
            client.pause(60).await;
        }
        client.pause(10).await;
    }
}

/// One try.
struct TransactionAttempt {
    key: String,
    effect: u64,
    held_open: Duration,
    end: TransactionEnd,
}

fn refused<T>(why: impl ToString) -> CallOutcome<T> {
    CallOutcome::Refused(why.to_string())
}

impl TransactionAttempt {
    fn answer(&self) -> String {
        format!("effect {}", self.effect)
    }

    /// The effect that was attempted, and the answer.
    async fn run(
        self,
        database: &TransactionDatabase,
        connection: &mut Option<Client>,
    ) -> (Option<u64>, CallOutcome<String>) {
        match database {
            TransactionDatabase::Sqlite(file, disk) => {
                let (file, disk) = (file.clone(), disk.clone());
                let effect = self.effect;
                let done = tokio::task::spawn_blocking(move || {
                    let _using = disk.as_ref().map(|disk| disk.use_files());
                    self.run_in_sqlite(&file)
                });
                let unknown =
                    |error: tokio::task::JoinError| CallOutcome::Unknown(error.to_string());
                done.await.unwrap_or_else(|error| (Some(effect), unknown(error)))
            }
            TransactionDatabase::Postgres(url) => {
                let (effect, outcome) = self.run_in_postgres(url, connection).await;
                if self.end == TransactionEnd::Disappear
                    || matches!(outcome, CallOutcome::Unknown(_))
                {
                    *connection = None;
                }
                (effect, outcome)
            }
        }
    }

    fn run_in_sqlite(&self, file: &Path) -> (Option<u64>, CallOutcome<String>) {
        use hapax::sqlite::HapaxTransaction;
        let opened = Connection::open(file).and_then(|connection| {
            connection.busy_timeout(TIMEOUT)?;
            Ok(connection)
        });
        let mut connection = match opened {
            Ok(connection) => connection,
            Err(error) => return (None, refused(error)),
        };
        let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = match begun {
            Ok(transaction) => transaction,
            Err(error) => return (None, refused(error)),
        };
        let once = transaction.hapax().once(Operation("torture"), &self.key, "same", |rows| {
            let insert = "INSERT INTO torture_transactions VALUES (?1, ?2)";
            rows.execute(insert, (&self.key, self.effect.cast_signed()))?;
            Ok::<_, rusqlite::Error>(self.answer())
        });
        let once = match once {
            Ok(once) => once,
            Err(OnceError::InProgress { .. }) => return (None, refused("in-progress")),
            Err(OnceError::OutcomeUnknown { .. }) => return (None, refused("unknown")),
            Err(error) => return (Some(self.effect), refused(error)),
        };
        if once.replayed {
            return (None, CallOutcome::Done(once.value));
        }
        if self.end != TransactionEnd::Commit {
            return (Some(self.effect), refused("on purpose"));
        }
        let outcome = match transaction.commit() {
            Ok(()) => CallOutcome::Done(once.value),
            Err(error) => CallOutcome::Unknown(error.to_string()),
        };
        (Some(self.effect), outcome)
    }

    async fn run_in_postgres(
        &self,
        url: &str,
        connection: &mut Option<Client>,
    ) -> (Option<u64>, CallOutcome<String>) {
        let work = tokio::time::timeout(TIMEOUT, self.work_in_postgres(url, connection)).await;
        let work = work.unwrap_or_else(|_| Err(anyhow::anyhow!("timeout")));
        let (client, answer) = match work {
            Ok((_, TransactionWork::Refused(state))) => return (None, refused(state)),
            Ok((_, TransactionWork::Replayed(answer))) => return (None, CallOutcome::Done(answer)),
            Ok((client, TransactionWork::Done(answer))) => (client, answer),
            Err(error) => {
                // The transaction is open or broken: only a new connection is sure to have none.
                *connection = None;
                return (Some(self.effect), refused(error));
            }
        };
        if self.end == TransactionEnd::Disappear {
            return (Some(self.effect), refused("on purpose"));
        }
        let is_kept = self.end == TransactionEnd::Commit;
        let end = if is_kept { "COMMIT" } else { "ROLLBACK" };
        let ended = tokio::time::timeout(TIMEOUT, client.batch_execute(end)).await;
        let outcome = match ended {
            _ if !is_kept => {
                if !matches!(ended, Ok(Ok(()))) {
                    *connection = None;
                }
                refused("on purpose")
            }
            Ok(Ok(())) => CallOutcome::Done(answer),
            Ok(Err(error)) => CallOutcome::Unknown(error.to_string()),
            Err(_) => CallOutcome::Unknown("timeout".to_owned()),
        };
        (Some(self.effect), outcome)
    }

    /// Begins, has the effect and stores the answer; the transaction is still open, except after a refusal or a replay.
    async fn work_in_postgres<'a>(
        &self,
        url: &str,
        connection: &'a mut Option<Client>,
    ) -> anyhow::Result<(&'a Client, TransactionWork)> {
        if connection.as_ref().is_none_or(Client::is_closed) {
            *connection = Some(connect(url).await?);
        }
        let client: &Client = connection.as_ref().context("a connection")?;
        client.batch_execute("BEGIN").await?;
        let begin = "SELECT state, token, convert_from(body, 'UTF8') FROM hapax_begin('torture', $1, 'same')";
        let row = client.query_one(begin, &[&self.key]).await?;
        match row.get::<_, String>(0).as_str() {
            "granted" => {}
            "completed" => {
                client.batch_execute("ROLLBACK").await?;
                return Ok((client, TransactionWork::Replayed(row.get(2))));
            }
            state => {
                client.batch_execute("ROLLBACK").await?;
                return Ok((client, TransactionWork::Refused(state.to_owned())));
            }
        }
        let token: String = row.get(1);
        let insert = "INSERT INTO torture_transactions VALUES ($1, $2)";
        client.execute(insert, &[&self.key, &self.effect.cast_signed()]).await?;
        tokio::time::sleep(self.held_open).await;
        let complete =
            "SELECT hapax_complete('torture', $1, $2, 201, body => convert_to($3, 'UTF8'))";
        let answer = self.answer();
        let stored = client.query_one(complete, &[&self.key, &token, &answer]).await?;
        anyhow::ensure!(stored.get::<_, bool>(0), "the claim was lost");
        Ok((client, TransactionWork::Done(answer)))
    }
}

enum TransactionWork {
    Done(String),
    Replayed(String),
    Refused(String),
}

async fn connect(url: &str) -> anyhow::Result<Client> {
    let connect = tokio_postgres::connect(url, NoTls);
    let (client, connection) =
        tokio::time::timeout(TIMEOUT, connect).await.context("timeout")??;
    tokio::spawn(connection);
    Ok(client)
}
