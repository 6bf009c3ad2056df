//! The ledger of booked entries, in the bot's own database.
//!
//! A message is **settled** in one transaction: hapax's inbox confirms that the message is new, the
//! decision is stored, and the message's entries are booked. Every later delivery and retry finds
//! that decision, so nothing is decided, asked or booked a second time. [`Ledger::conclude`] then
//! stores the result.

use std::time::Duration;

use example_common::database::{
    Database, DatabaseError, DatabaseRow, DatabaseTransaction, DatabaseValue, JsonText,
};
use hapax::Timestamp;
use hapax::inbox::MessageStatus;
use serde::{Deserialize, Serialize};

use crate::die_at;
use crate::entry::BookkeepingEntry;
use crate::last::Draft;

/// The name of this consumer in the inbox.
const CONSUMER: &str = "bookkeeping-bot";

/// Timeout of one call: the user waits for the answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An arbitrary number: serializes table creation by two bots that start at once.
const TABLES_LOCK: i64 = 7_225_190_846_381;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS ledger_messages (
        seq {id},
        id text NOT NULL UNIQUE,
        user_id text NOT NULL,
        kind text NOT NULL,
        transaction_id text NOT NULL,
        decision text NOT NULL,
        settled_at bigint NOT NULL,
        answer text);
    CREATE INDEX IF NOT EXISTS ledger_messages_of_user ON ledger_messages (user_id, seq);
    CREATE TABLE IF NOT EXISTS ledger_entries (
        seq {id},
        message text NOT NULL REFERENCES ledger_messages (id),
        position integer NOT NULL,
        user_id text NOT NULL,
        transaction_id text NOT NULL,
        entry {json} NOT NULL,
        amended {json},
        withdrawn_by text REFERENCES ledger_messages (id),
        UNIQUE (message, position));
    CREATE INDEX IF NOT EXISTS ledger_entries_of_user ON ledger_entries (user_id, transaction_id);";

const ADD_MESSAGE: &str = "
    INSERT INTO ledger_messages (id, user_id, kind, transaction_id, decision, settled_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6) RETURNING seq";

const ADD_ENTRY: &str = "
    INSERT INTO ledger_entries (message, position, user_id, transaction_id, entry)
    VALUES (?1, ?2, ?3, ?4, ?5)";

const SET_ANSWER: &str =
    "UPDATE ledger_messages SET answer = ?1 WHERE id = ?2 AND answer IS NULL RETURNING seq";

/// The newest row of a user with this 交易ID that is not withdrawn and was booked before the message
/// was settled: two bookings in the same second have the same 交易ID.
const ROW_CONCERNED: &str = "seq = (SELECT max(seq) FROM ledger_entries
    WHERE user_id = ?1 AND transaction_id = ?2 AND withdrawn_by IS NULL
    AND message IN (SELECT id FROM ledger_messages WHERE seq < ?4))";

/// A ledger of booked entries.
#[derive(Clone)]
pub struct Ledger {
    pub(crate) database: Database,
}

impl Ledger {
    /// Opens `sqlite:FILE` or `postgres://…`, and creates the tables.
    ///
    /// # Errors
    /// If the URL is neither of them, or the database cannot be used.
    pub async fn open(url: &str) -> anyhow::Result<Self> {
        let database = Database::open(url, TIMEOUT)?;
        database.create_hapax_tables().await?;
        let create = async |tx: &mut DatabaseTransaction<'_>| {
            tx.lock(TABLES_LOCK).await?;
            tx.batch(TABLES).await
        };
        database.transaction::<_, DatabaseError>(create).await?;
        Ok(Self { database })
    }

    /// The stored decision about a message; `None` if the message is not settled.
    pub async fn settled(&self, id: &str) -> Result<Option<Settled>, LedgerError> {
        let id = id.to_owned();
        self.database.transaction(async move |tx| read(tx, "id = ?1", &[&id]).await).await
    }

    /// Stores the decision about a message and books its entries, in one transaction. If the
    /// message is already settled, returns the earlier decision.
    pub async fn settle(
        &self,
        message: &Message,
        decision: &Decision,
    ) -> Result<Settled, LedgerError> {
        let (Message { id, user, now }, decision) = (message.clone(), decision.clone());
        self.database
            .transaction(async move |tx| {
                match tx.receive(CONSUMER, &id).await? {
                    MessageStatus::First => {}
                    MessageStatus::Busy => return Err(LedgerError::Busy),
                    MessageStatus::Duplicate => {
                        return read(tx, "id = ?1", &[&id]).await?.ok_or(LedgerError::Damaged);
                    }
                }
                let (kind, about) = (decision.kind(), decision.transaction_id());
                let (json, now) = (decision.json()?, milliseconds(now));
                let rows = tx.query(ADD_MESSAGE, &[&id, &user, &kind, &about, &json, &now]).await?;
                let seq = rows.first().ok_or(LedgerError::Damaged)?.get(0)?;
                for (position, entry) in (0_i32..).zip(decision.entries()) {
                    let (about, json) = (&entry.transaction_id, JsonText(text(entry)?));
                    tx.query(ADD_ENTRY, &[&id, &position, &user, about, &json]).await?;
                }
                die_at("settling");
                Ok(Settled { seq, id, user, decision, answer: None, fresh: true })
            })
            .await
    }

    /// Stores the answer and, if an edit or a deletion succeeded, updates the row concerned. Only
    /// the first call has an effect.
    pub async fn conclude(
        &self,
        settled: &Settled,
        answer: &[String],
        done: bool,
    ) -> Result<(), LedgerError> {
        let (Settled { seq, id, user, decision, .. }, answer) = (settled.clone(), text(&answer)?);
        self.database
            .transaction(async move |tx| {
                if tx.query(SET_ANSWER, &[&answer, &id]).await?.is_empty() || !done {
                    return Ok(());
                }
                let (change, value): (_, &dyn DatabaseValue) = match &decision {
                    Decision::Edit { draft } => ("amended = ?3", &JsonText(text(&draft.after)?)),
                    Decision::Delete { .. } => ("withdrawn_by = ?3", &id),
                    Decision::Book { .. } | Decision::Say { .. } => return Ok(()),
                };
                let sql = format!("UPDATE ledger_entries SET {change} WHERE {ROW_CONCERNED}");
                tx.query(&sql, &[&user, &decision.transaction_id(), value, &seq]).await?;
                Ok(())
            })
            .await
    }

    /// Whether this booking's last entry is still the one to edit: no booking, and no edit or
    /// deletion of that entry, was settled later.
    pub async fn is_last(&self, settled: &Settled) -> Result<bool, LedgerError> {
        let sql = "SELECT 1 FROM ledger_messages
            WHERE user_id = ?1 AND seq > ?2 AND (kind = 'book' OR transaction_id = ?3)";
        let Settled { user, seq, decision, .. } = settled.clone();
        let later = async move |tx: &mut DatabaseTransaction<'_>| {
            tx.query(sql, &[&user, &seq, &decision.transaction_id()]).await
        };
        Ok(self.database.transaction::<_, DatabaseError>(later).await?.is_empty())
    }

    /// The latest booking of a user, if its record could not be stored and it was settled at
    /// `since` or later.
    pub async fn unrecorded(
        &self,
        user: &str,
        since: Timestamp,
    ) -> Result<Option<Settled>, LedgerError> {
        let condition =
            "seq = (SELECT max(seq) FROM ledger_messages WHERE user_id = ?1 AND kind = 'book')
            AND answer IS NULL AND settled_at >= ?2";
        let (user, since) = (user.to_owned(), milliseconds(since));
        self.database.transaction(async move |tx| read(tx, condition, &[&user, &since]).await).await
    }

    /// All rows, in booking order.
    pub async fn rows(&self) -> Result<Vec<Row>, LedgerError> {
        let sql = "SELECT message, position, CAST(entry AS text), CAST(amended AS text),
            withdrawn_by IS NOT NULL FROM ledger_entries ORDER BY seq";
        let found = self.database.transaction(async move |tx| tx.query(sql, &[]).await).await;
        found?.iter().map(Row::read).collect()
    }
}

/// Milliseconds since the epoch, as a column holds them.
fn milliseconds(time: Timestamp) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

async fn read(
    tx: &DatabaseTransaction<'_>,
    condition: &str,
    values: &[&dyn DatabaseValue],
) -> Result<Option<Settled>, LedgerError> {
    let columns = "seq, id, user_id, decision, answer";
    let sql = format!("SELECT {columns} FROM ledger_messages WHERE {condition}");
    let found = tx.query(&sql, values).await?;
    let Some(row) = found.first() else { return Ok(None) };
    let (id, answer): (String, Option<String>) = (row.get(1)?, row.get(4)?);
    let mut decision = json(&row.get::<String>(3)?)?;
    if let Decision::Book { entries } = &mut decision {
        let sql = "SELECT CAST(entry AS text) FROM ledger_entries WHERE message = ?1
            ORDER BY position";
        for row in tx.query(sql, &[&id]).await? {
            entries.push(json(&row.get::<String>(0)?)?);
        }
    }
    let answer = answer.as_deref().map(json).transpose()?;
    let (seq, user) = (row.get(0)?, row.get(2)?);
    Ok(Some(Settled { seq, id, user, decision, answer, fresh: false }))
}

/// A message of a user.
#[derive(Clone)]
pub struct Message {
    /// The event's id, which is the same for every delivery.
    pub id: String,
    /// The user who sent the message.
    pub user: String,
    /// The time of settling.
    pub now: Timestamp,
}

/// How a message is handled. Stored, so that a retry does the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Book these entries; the last one becomes the record.
    Book {
        /// The entries, in their order.
        entries: Vec<BookkeepingEntry>,
    },
    /// Store this draft.
    Edit {
        /// The draft, with the version that it replaces.
        draft: Draft,
    },
    /// Delete the record.
    Delete {
        /// The version of the record that was read.
        version: String,
        /// The entry in that record.
        entry: BookkeepingEntry,
    },
    /// Answer with this text, and change nothing.
    Say {
        /// The text.
        text: String,
    },
}

impl Decision {
    /// The name in the column `kind`.
    fn kind(&self) -> &'static str {
        match self {
            Self::Book { .. } => "book",
            Self::Edit { .. } => "edit",
            Self::Delete { .. } => "delete",
            Self::Say { .. } => "say",
        }
    }

    /// 交易ID of the entry that the decision concerns; empty if there is none.
    fn transaction_id(&self) -> &str {
        match self {
            Self::Book { entries } => entries.last().map_or("", |entry| &entry.transaction_id),
            Self::Edit { draft } => &draft.after.transaction_id,
            Self::Delete { entry, .. } => &entry.transaction_id,
            Self::Say { .. } => "",
        }
    }

    pub(crate) fn entries(&self) -> &[BookkeepingEntry] {
        if let Self::Book { entries } = self { entries } else { &[] }
    }

    /// The JSON in the column `decision`; without a booking's entries, which have rows of their
    /// own.
    fn json(&self) -> Result<String, LedgerError> {
        match self {
            Self::Book { .. } => text(&Self::Book { entries: Vec::new() }),
            other => text(other),
        }
    }
}

/// A settled message.
#[derive(Clone, Debug)]
pub struct Settled {
    /// Position in the order of settling.
    pub seq: i64,
    /// The id of the message.
    pub id: String,
    /// The user who sent the message.
    pub user: String,
    /// The stored decision.
    pub decision: Decision,
    /// The stored answer; `None` until the message is concluded.
    pub answer: Option<Vec<String>>,
    /// Whether this very call settled the message, so that no earlier attempt can have begun to
    /// carry it out.
    pub fresh: bool,
}

/// A row of the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The id of the message that booked the entry.
    pub message: String,
    /// Position within that message, from 0.
    pub position: i32,
    /// The entry as booked.
    pub entry: BookkeepingEntry,
    /// The entry as last edited, if it was edited.
    pub amended: Option<BookkeepingEntry>,
    /// Whether the entry was withdrawn.
    pub withdrawn: bool,
}

impl Row {
    fn read(row: &DatabaseRow) -> Result<Self, LedgerError> {
        let amended: Option<String> = row.get(3)?;
        Ok(Self {
            message: row.get(0)?,
            position: row.get(1)?,
            entry: json(&row.get::<String>(2)?)?,
            amended: amended.as_deref().map(json).transpose()?,
            withdrawn: row.get(4)?,
        })
    }
}

/// Why a call to the ledger failed. Contains no driver message, because that may be personal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The database is unreachable, did not answer, or refused. A write may have happened; the
    /// message's next attempt finds out.
    #[error("the ledger gives no answer")]
    Unavailable,
    /// Another attempt at the same message has an open transaction.
    #[error("another attempt at the message is running")]
    Busy,
    /// A stored row cannot be read.
    #[error("a row of the ledger cannot be read")]
    Damaged,
}

/// Logs only the code of the error: the driver's message may be personal.
impl From<DatabaseError> for LedgerError {
    fn from(error: DatabaseError) -> Self {
        tracing::warn!(reason = error.reason, code = error.code, "the ledger's database failed");
        Self::Unavailable
    }
}

fn json<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, LedgerError> {
    serde_json::from_str(text).map_err(|_| LedgerError::Damaged)
}

fn text(value: &impl Serialize) -> Result<String, LedgerError> {
    serde_json::to_string(value).map_err(|_| LedgerError::Damaged)
}
