use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime,
};
use hapax::Timestamp;
use hapax::inbox::MessageStatus;
use hapax::postgres::{HapaxTransaction, migrate};
use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, NoTls};

use super::{CONSUMER, Columns, Decision, Ledger, LedgerError, Message, Row, Settled, json, text};
use crate::crash::die_at;

/// Limits for acquiring a connection, and for the whole call.
const CONNECT: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(5);

/// The advisory lock serializes table creation by two bots that start at once.
const TABLES: &str = "
    BEGIN;
    SELECT pg_advisory_xact_lock(7225190846381);
    CREATE TABLE IF NOT EXISTS ledger_messages (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id text NOT NULL UNIQUE,
        user_id text NOT NULL,
        kind text NOT NULL,
        transaction_id text NOT NULL,
        decision text NOT NULL,
        settled_at bigint NOT NULL,
        answer text);
    CREATE INDEX IF NOT EXISTS ledger_messages_of_user ON ledger_messages (user_id, seq);
    CREATE TABLE IF NOT EXISTS ledger_entries (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        message text NOT NULL REFERENCES ledger_messages (id),
        position integer NOT NULL,
        user_id text NOT NULL,
        transaction_id text NOT NULL,
        entry json NOT NULL,
        amended json,
        withdrawn_by text REFERENCES ledger_messages (id),
        UNIQUE (message, position));
    CREATE INDEX IF NOT EXISTS ledger_entries_of_user ON ledger_entries (user_id, transaction_id);
    COMMIT;";

const SETTLED: &str = "SELECT seq, id, user_id, decision, answer FROM ledger_messages";

/// The newest row of a user with this 交易ID that is not withdrawn and was booked before the message
/// was settled: two bookings in the same second have the same 交易ID.
const ABOUT: &str = "seq = (SELECT max(seq) FROM ledger_entries
    WHERE user_id = $1 AND transaction_id = $2 AND withdrawn_by IS NULL
    AND message IN (SELECT id FROM ledger_messages WHERE seq < $4))";

/// A ledger on a PostgreSQL server.
pub(super) struct PostgresLedger(Pool);

impl PostgresLedger {
    pub(super) async fn open(url: &str) -> anyhow::Result<Self> {
        // `Verified` checks a connection before it is reused, so that a hanging one is discarded.
        let config = ManagerConfig { recycling_method: RecyclingMethod::Verified };
        let limit = Some(CONNECT);
        let pool = Pool::builder(Manager::from_config(url.parse()?, NoTls, config))
            .runtime(Runtime::Tokio1)
            .wait_timeout(limit)
            .create_timeout(limit)
            .recycle_timeout(limit)
            .build()?;
        let mut database = pool.get().await?;
        migrate(&mut database).await?;
        database.batch_execute(TABLES).await?;
        Ok(Self(pool))
    }

    /// Runs `work` within the limit. A transaction that times out is rolled back; if the timeout
    /// hits its commit, the message's next attempt finds out whether it was committed.
    async fn with<T>(
        &self,
        work: impl AsyncFnOnce(Object) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        limited(async { work(self.0.get().await?).await }).await
    }
}

async fn limited<T>(work: impl Future<Output = Result<T, LedgerError>>) -> Result<T, LedgerError> {
    tokio::time::timeout(LIMIT, work).await.unwrap_or(Err(LedgerError::Unavailable))
}

impl From<tokio_postgres::Error> for LedgerError {
    fn from(error: tokio_postgres::Error) -> Self {
        let code = error.code().map(tokio_postgres::error::SqlState::code);
        tracing::warn!(code, "the ledger's database failed");
        Self::Unavailable
    }
}

impl From<PoolError> for LedgerError {
    fn from(_: PoolError) -> Self {
        Self::Unavailable
    }
}

async fn read(
    database: &impl GenericClient,
    condition: &str,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Option<Settled>, LedgerError> {
    let sql = format!("{SETTLED} WHERE {condition}");
    let Some(row) = database.query_opt(&sql, values).await? else { return Ok(None) };
    let found = Columns {
        seq: row.try_get(0)?,
        id: row.try_get(1)?,
        user: row.try_get(2)?,
        decision: row.try_get(3)?,
        answer: row.try_get(4)?,
    };
    let sql = "SELECT entry::text FROM ledger_entries WHERE message = $1 ORDER BY position";
    let entries = database.query(sql, &[&found.id]).await?;
    let entries = entries.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, _>>()?;
    found.settled(&entries).map(Some)
}

/// Settles the message in one transaction, which is rolled back if this function returns, or the
/// process dies, before the commit.
async fn settle(
    mut database: Object,
    message: &Message,
    decision: &Decision,
) -> Result<Settled, LedgerError> {
    let mut tx = database.transaction().await?;
    let seen = tx.hapax().receive(CONSUMER, &message.id).await;
    match seen.map_err(|_| LedgerError::Unavailable)? {
        MessageStatus::First => {}
        MessageStatus::Busy => return Err(LedgerError::Busy),
        MessageStatus::Duplicate => {
            return read(&*tx, "id = $1", &[&message.id]).await?.ok_or(LedgerError::Damaged);
        }
    }
    let (id, user, at) =
        (&message.id, &message.user, i64::try_from(message.now.0).unwrap_or(i64::MAX));
    let row = tx
        .query_one(
            "INSERT INTO ledger_messages (id, user_id, kind, transaction_id, decision, settled_at)
             VALUES ($1, $2, $3, $4, $5, $6) RETURNING seq",
            &[id, user, &decision.kind(), &decision.transaction_id(), &decision.json()?, &at],
        )
        .await?;
    for (position, entry) in (0_i32..).zip(decision.entries()) {
        tx.execute(
            "INSERT INTO ledger_entries (message, position, user_id, transaction_id, entry)
             VALUES ($1, $2, $3, $4, $5::text::json)",
            &[id, &position, user, &entry.transaction_id, &text(entry)?],
        )
        .await?;
    }
    die_at("settling");
    tx.commit().await?;
    let (seq, id, user) = (row.try_get(0)?, id.clone(), user.clone());
    Ok(Settled { seq, id, user, decision: decision.clone(), answer: None, fresh: true })
}

async fn conclude(
    mut database: Object,
    settled: &Settled,
    answer: &[String],
    done: bool,
) -> Result<(), LedgerError> {
    let tx = database.transaction().await?;
    let sql = "UPDATE ledger_messages SET answer = $1 WHERE id = $2 AND answer IS NULL";
    if tx.execute(sql, &[&text(&answer)?, &settled.id]).await? == 0 {
        return Ok(());
    }
    let (user, about) = (&settled.user, settled.decision.transaction_id());
    match &settled.decision {
        Decision::Edit { draft } if done => {
            let sql = format!("UPDATE ledger_entries SET amended = $3::text::json WHERE {ABOUT}");
            tx.execute(&sql, &[user, &about, &text(&draft.after)?, &settled.seq]).await?;
        }
        Decision::Delete { .. } if done => {
            let sql = format!("UPDATE ledger_entries SET withdrawn_by = $3 WHERE {ABOUT}");
            tx.execute(&sql, &[user, &about, &settled.id, &settled.seq]).await?;
        }
        _ => {}
    }
    Ok(tx.commit().await?)
}

#[async_trait]
impl Ledger for PostgresLedger {
    async fn settled(&self, id: &str) -> Result<Option<Settled>, LedgerError> {
        self.with(async |database| read(&**database, "id = $1", &[&id]).await).await
    }

    async fn settle(&self, message: &Message, decision: &Decision) -> Result<Settled, LedgerError> {
        self.with(async |database| settle(database, message, decision).await).await
    }

    async fn conclude(
        &self,
        settled: &Settled,
        answer: &[String],
        done: bool,
    ) -> Result<(), LedgerError> {
        self.with(async |database| conclude(database, settled, answer, done).await).await
    }

    async fn is_last(&self, settled: &Settled) -> Result<bool, LedgerError> {
        let sql = "SELECT NOT EXISTS (SELECT 1 FROM ledger_messages
            WHERE user_id = $1 AND seq > $2 AND (kind = 'book' OR transaction_id = $3))";
        let (user, seq, about) = (&settled.user, &settled.seq, settled.decision.transaction_id());
        self.with(async |database| {
            Ok(database.query_one(sql, &[user, seq, &about]).await?.try_get(0)?)
        })
        .await
    }

    async fn unrecorded(
        &self,
        user: &str,
        since: Timestamp,
    ) -> Result<Option<Settled>, LedgerError> {
        let condition =
            "seq = (SELECT max(seq) FROM ledger_messages WHERE user_id = $1 AND kind = 'book')
            AND answer IS NULL AND settled_at >= $2";
        let since = i64::try_from(since.0).unwrap_or(i64::MAX);
        self.with(async |database| read(&**database, condition, &[&user, &since]).await).await
    }

    async fn rows(&self) -> Result<Vec<Row>, LedgerError> {
        let sql = "SELECT message, position, entry::text, amended::text, withdrawn_by IS NOT NULL
            FROM ledger_entries ORDER BY seq";
        let found = self.with(async |database| Ok(database.query(sql, &[]).await?)).await?;
        let row = |row: &tokio_postgres::Row| -> Result<Row, LedgerError> {
            let amended: Option<String> = row.try_get(3)?;
            Ok(Row {
                message: row.try_get(0)?,
                position: row.try_get(1)?,
                entry: json(&row.try_get::<_, String>(2)?)?,
                amended: amended.as_deref().map(json).transpose()?,
                withdrawn: row.try_get(4)?,
            })
        };
        found.iter().map(row).collect()
    }

    async fn ping(&self) -> Result<(), LedgerError> {
        self.with(async |database| Ok(database.simple_query("SELECT 1").await.map(drop)?)).await
    }
}
