use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use hapax::Timestamp;
use hapax::inbox::{InboxError, MessageStatus};
use hapax::sqlite::rusqlite::{
    self, Connection, OptionalExtension, Row as Found, TransactionBehavior, params,
};
use hapax::sqlite::{HapaxTransaction, migrate};
use tokio::task::spawn_blocking;

use super::{CONSUMER, Columns, Decision, Ledger, LedgerError, Message, Row, Settled, json, text};
use crate::crash::die_at;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS ledger_messages (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        user_id TEXT NOT NULL,
        kind TEXT NOT NULL,
        transaction_id TEXT NOT NULL,
        decision TEXT NOT NULL,
        settled_at INTEGER NOT NULL,
        answer TEXT);
    CREATE INDEX IF NOT EXISTS ledger_messages_of_user ON ledger_messages (user_id, seq);
    CREATE TABLE IF NOT EXISTS ledger_entries (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        message TEXT NOT NULL REFERENCES ledger_messages (id),
        position INTEGER NOT NULL,
        user_id TEXT NOT NULL,
        transaction_id TEXT NOT NULL,
        entry TEXT NOT NULL,
        amended TEXT,
        withdrawn_by TEXT REFERENCES ledger_messages (id),
        UNIQUE (message, position));
    CREATE INDEX IF NOT EXISTS ledger_entries_of_user ON ledger_entries (user_id, transaction_id);";

const SETTLED: &str = "SELECT seq, id, user_id, decision, answer FROM ledger_messages";

/// The newest row of a user with this 交易ID that is not withdrawn and was booked before the message
/// was settled: two bookings in the same second have the same 交易ID.
const ABOUT: &str = "seq = (SELECT max(seq) FROM ledger_entries
    WHERE user_id = ?1 AND transaction_id = ?2 AND withdrawn_by IS NULL
    AND message IN (SELECT id FROM ledger_messages WHERE seq < ?4))";

/// A ledger in an SQLite file.
pub(super) struct SqliteLedger(Arc<Mutex<Connection>>);

impl SqliteLedger {
    pub(super) fn open(file: &str) -> anyhow::Result<Self> {
        let database = Connection::open(file)?;
        // Other connections write to the same file: a second bot, a backup, the sweep.
        database.busy_timeout(Duration::from_secs(2))?;
        // An entry must be on disk before the user is told that it is booked.
        database.pragma_update(None, "synchronous", "FULL")?;
        database.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        migrate(&database)?;
        database.execute_batch(TABLES)?;
        Ok(Self(Arc::new(Mutex::new(database))))
    }

    /// Runs `work` on the connection in a blocking thread, so that async threads are never blocked.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let database = self.0.clone();
        // A panic rolls back its transaction, so the connection of a poisoned mutex is still
        // usable.
        spawn_blocking(move || work(&mut database.lock().unwrap_or_else(PoisonError::into_inner)))
            .await
            .unwrap_or(Err(LedgerError::Unavailable))
    }
}

impl From<rusqlite::Error> for LedgerError {
    fn from(error: rusqlite::Error) -> Self {
        let code = error.sqlite_error_code().map(|code| format!("{code:?}"));
        tracing::warn!(code, "the ledger's database failed");
        Self::Unavailable
    }
}

impl From<InboxError> for LedgerError {
    fn from(_: InboxError) -> Self {
        Self::Unavailable
    }
}

fn columns(row: &Found<'_>) -> rusqlite::Result<Columns> {
    Ok(Columns {
        seq: row.get(0)?,
        id: row.get(1)?,
        user: row.get(2)?,
        decision: row.get(3)?,
        answer: row.get(4)?,
    })
}

fn read(
    database: &Connection,
    condition: &str,
    values: impl rusqlite::Params,
) -> Result<Option<Settled>, LedgerError> {
    let sql = format!("{SETTLED} WHERE {condition}");
    let Some(found) = database.query_row(&sql, values, columns).optional()? else {
        return Ok(None);
    };
    let sql = "SELECT entry FROM ledger_entries WHERE message = ?1 ORDER BY position";
    let mut entries = database.prepare_cached(sql)?;
    let entries =
        entries.query_map([&found.id], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
    found.settled(&entries).map(Some)
}

/// Settles the message in one transaction, which is rolled back if this function returns, or the
/// process dies, before the commit.
fn settle(
    database: &mut Connection,
    message: &Message,
    decision: Decision,
) -> Result<Settled, LedgerError> {
    let tx = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    match tx.hapax().receive(CONSUMER, &message.id)? {
        MessageStatus::First => {}
        MessageStatus::Busy => return Err(LedgerError::Busy),
        MessageStatus::Duplicate => {
            return read(&tx, "id = ?1", [&message.id])?.ok_or(LedgerError::Damaged);
        }
    }
    let (id, user, at) =
        (&message.id, &message.user, i64::try_from(message.now.0).unwrap_or(i64::MAX));
    tx.execute(
        "INSERT INTO ledger_messages (id, user_id, kind, transaction_id, decision, settled_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![id, user, decision.kind(), decision.transaction_id(), decision.json()?, at],
    )?;
    let seq = tx.last_insert_rowid();
    for (position, entry) in decision.entries().iter().enumerate() {
        tx.execute(
            "INSERT INTO ledger_entries (message, position, user_id, transaction_id, entry)
             VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                id,
                i64::try_from(position).unwrap_or(0),
                user,
                entry.transaction_id,
                text(entry)?
            ],
        )?;
    }
    die_at("settling");
    tx.commit()?;
    let (id, user) = (id.clone(), user.clone());
    Ok(Settled { seq, id, user, decision, answer: None, fresh: true })
}

fn conclude(
    database: &mut Connection,
    settled: &Settled,
    answer: &[String],
    done: bool,
) -> Result<(), LedgerError> {
    let tx = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let sql = "UPDATE ledger_messages SET answer = ?1 WHERE id = ?2 AND answer IS NULL";
    if tx.execute(sql, params![text(&answer)?, settled.id])? == 0 {
        return Ok(());
    }
    let (user, about) = (&settled.user, settled.decision.transaction_id());
    match &settled.decision {
        Decision::Edit { draft } if done => {
            let sql = format!("UPDATE ledger_entries SET amended = ?3 WHERE {ABOUT}");
            tx.execute(&sql, params![user, about, text(&draft.after)?, settled.seq])?;
        }
        Decision::Delete { .. } if done => {
            let sql = format!("UPDATE ledger_entries SET withdrawn_by = ?3 WHERE {ABOUT}");
            tx.execute(&sql, params![user, about, settled.id, settled.seq])?;
        }
        _ => {}
    }
    Ok(tx.commit()?)
}

#[async_trait]
impl Ledger for SqliteLedger {
    async fn settled(&self, id: &str) -> Result<Option<Settled>, LedgerError> {
        let id = id.to_owned();
        self.with(move |database| read(database, "id = ?1", [id])).await
    }

    async fn settle(&self, message: &Message, decision: &Decision) -> Result<Settled, LedgerError> {
        let (message, decision) = (message.clone(), decision.clone());
        self.with(move |database| settle(database, &message, decision)).await
    }

    async fn conclude(
        &self,
        settled: &Settled,
        answer: &[String],
        done: bool,
    ) -> Result<(), LedgerError> {
        let (settled, answer) = (settled.clone(), answer.to_owned());
        self.with(move |database| conclude(database, &settled, &answer, done)).await
    }

    async fn is_last(&self, settled: &Settled) -> Result<bool, LedgerError> {
        let sql = "SELECT NOT EXISTS (SELECT 1 FROM ledger_messages
            WHERE user_id = ?1 AND seq > ?2 AND (kind = 'book' OR transaction_id = ?3))";
        let (user, seq) = (settled.user.clone(), settled.seq);
        let about = settled.decision.transaction_id().to_owned();
        self.with(move |database| {
            Ok(database.query_row(sql, params![user, seq, about], |row| row.get(0))?)
        })
        .await
    }

    async fn unrecorded(
        &self,
        user: &str,
        since: Timestamp,
    ) -> Result<Option<Settled>, LedgerError> {
        let condition =
            "seq = (SELECT max(seq) FROM ledger_messages WHERE user_id = ?1 AND kind = 'book')
            AND answer IS NULL AND settled_at >= ?2";
        let (user, since) = (user.to_owned(), i64::try_from(since.0).unwrap_or(i64::MAX));
        self.with(move |database| read(database, condition, params![user, since])).await
    }

    async fn rows(&self) -> Result<Vec<Row>, LedgerError> {
        let sql = "SELECT message, position, entry, amended, withdrawn_by IS NOT NULL
            FROM ledger_entries ORDER BY seq";
        self.with(move |database| {
            let mut query = database.prepare_cached(sql)?;
            let mut found = query.query([])?;
            let mut rows = Vec::new();
            while let Some(row) = found.next()? {
                let amended: Option<String> = row.get(3)?;
                rows.push(Row {
                    message: row.get(0)?,
                    position: row.get(1)?,
                    entry: json(&row.get::<_, String>(2)?)?,
                    amended: amended.as_deref().map(json).transpose()?,
                    withdrawn: row.get(4)?,
                });
            }
            Ok(rows)
        })
        .await
    }

    async fn ping(&self) -> Result<(), LedgerError> {
        self.with(|database| Ok(database.query_row("SELECT 1", [], |_| Ok(()))?)).await
    }
}
