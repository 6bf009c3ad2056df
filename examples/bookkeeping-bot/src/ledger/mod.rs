//! What was booked, in the bot's own database.
//!
//! A message is **settled** in one transaction: the inbox of hapax says that it was never seen before,
//! what is to be done is written down, and what it books is booked. From then on every delivery and
//! every rerun of it finds that decision, and nothing is decided, asked or booked a second time.
//! [`Ledger::conclude`] then says how it ended.

mod postgres;
mod sqlite;

use async_trait::async_trait;
use hapax::Timestamp;
use serde::{Deserialize, Serialize};

use crate::entry::BookkeepingEntry;
use crate::last::Draft;

/// The name of this consumer in the inbox.
const CONSUMER: &str = "bookkeeping-bot";

/// Opens `sqlite:FILE` or `postgres://…`, and makes the tables.
///
/// # Errors
/// Where it is neither, or cannot be used.
pub async fn open(url: &str) -> anyhow::Result<std::sync::Arc<dyn Ledger>> {
    if let Some(file) = url.strip_prefix("sqlite:") {
        let file = file.strip_prefix("//").unwrap_or(file);
        anyhow::ensure!(!file.is_empty(), "sqlite: needs a file, as in sqlite:ledger.db");
        return Ok(std::sync::Arc::new(sqlite::SqliteLedger::open(file)?));
    }
    let postgres = url.starts_with("postgres://") || url.starts_with("postgresql://");
    anyhow::ensure!(postgres, "a ledger's URL starts with sqlite: or postgres://");
    Ok(std::sync::Arc::new(postgres::PostgresLedger::open(url).await?))
}

/// A ledger.
#[async_trait]
pub trait Ledger: Send + Sync + 'static {
    /// What was decided about a message, if anything was.
    async fn settled(&self, id: &str) -> Result<Option<Settled>, LedgerError>;

    /// Writes down what is to be done about a message, and books its entries: one transaction. Where
    /// another was first, its decision counts.
    async fn settle(&self, message: &Message, decision: &Decision) -> Result<Settled, LedgerError>;

    /// Writes down how it ended: what is said, and, where an edit or a deletion was done, what that
    /// means for the row that it is about. The first word counts.
    async fn conclude(
        &self,
        settled: &Settled,
        answer: &[String],
        done: bool,
    ) -> Result<(), LedgerError>;

    /// Whether nothing was settled later that makes this booking's last entry not the one to edit:
    /// another booking, or an edit or deletion of the entry itself.
    async fn is_last(&self, settled: &Settled) -> Result<bool, LedgerError>;

    /// The latest booking of a user, where its record could not be stored, and it was settled at this
    /// time or later.
    async fn unrecorded(
        &self,
        user: &str,
        since: Timestamp,
    ) -> Result<Option<Settled>, LedgerError>;

    /// All rows, in the order of their booking.
    async fn rows(&self) -> Result<Vec<Row>, LedgerError>;

    /// Whether it answers.
    async fn ping(&self) -> Result<(), LedgerError>;
}

/// A message of a user.
#[derive(Clone)]
pub struct Message {
    /// The event's id: the same however often it is delivered.
    pub id: String,
    /// Who sent it.
    pub user: String,
    /// When it is settled.
    pub now: Timestamp,
}

/// What is to be done about a message. Stored, so that a rerun does the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Book these; the last one becomes the record.
    Book {
        /// In their order.
        entries: Vec<BookkeepingEntry>,
    },
    /// Write this draft.
    Edit {
        /// With the version that it replaces.
        draft: Draft,
    },
    /// Delete the record.
    Delete {
        /// The version that was read.
        version: String,
        /// What it said.
        entry: BookkeepingEntry,
    },
    /// Say this, and do nothing.
    Say {
        /// The text.
        text: String,
    },
}

impl Decision {
    /// A word for the column.
    fn kind(&self) -> &'static str {
        match self {
            Self::Book { .. } => "book",
            Self::Edit { .. } => "edit",
            Self::Delete { .. } => "delete",
            Self::Say { .. } => "say",
        }
    }

    /// 交易ID of the entry that the record is about; empty where it is about none.
    fn transaction_id(&self) -> &str {
        match self {
            Self::Book { entries } => entries.last().map_or("", |entry| &entry.transaction_id),
            Self::Edit { draft } => &draft.after.transaction_id,
            Self::Delete { entry, .. } => &entry.transaction_id,
            Self::Say { .. } => "",
        }
    }

    fn entries(&self) -> &[BookkeepingEntry] {
        if let Self::Book { entries } = self { entries } else { &[] }
    }

    /// What stands in the column: a booking's entries are rows of their own.
    fn json(&self) -> Result<String, LedgerError> {
        let decision = match self {
            Self::Book { .. } => &Self::Book { entries: Vec::new() },
            other => other,
        };
        serde_json::to_string(decision).map_err(|_| LedgerError::Damaged)
    }
}

/// A message that was settled.
#[derive(Clone, Debug)]
pub struct Settled {
    /// Which one it was, in the order of settling.
    pub seq: i64,
    /// The message.
    pub id: String,
    /// Whose it is.
    pub user: String,
    /// What is to be done.
    pub decision: Decision,
    /// What was said; `None` while it is not done.
    pub answer: Option<Vec<String>>,
    /// Whether it was settled by this very call, so that nobody can have begun to do it.
    pub fresh: bool,
}

/// A row of the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The message that booked it.
    pub message: String,
    /// Its place in that message, from 0.
    pub position: i32,
    /// As it was booked.
    pub entry: BookkeepingEntry,
    /// As it was edited, if it was.
    pub amended: Option<BookkeepingEntry>,
    /// Whether it was withdrawn.
    pub withdrawn: bool,
}

/// Why the ledger gave no answer. Says nothing of what a driver says: that may be personal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// It cannot be reached, did not answer, or refused. A write may or may not have happened; the
    /// message's next turn finds out.
    #[error("the ledger gives no answer")]
    Unavailable,
    /// Another turn of the same message has it in an open transaction.
    #[error("another turn of the message is at it")]
    Busy,
    /// What is stored cannot be read.
    #[error("a row of the ledger cannot be read")]
    Damaged,
}

/// The columns of a settled message, however a driver gives them.
struct Columns {
    seq: i64,
    id: String,
    user: String,
    decision: String,
    answer: Option<String>,
}

impl Columns {
    fn settled(self, entries: &[String]) -> Result<Settled, LedgerError> {
        let mut decision = json(&self.decision)?;
        if let Decision::Book { entries: booked } = &mut decision {
            *booked = entries.iter().map(|entry| json(entry)).collect::<Result<_, _>>()?;
        }
        let answer = self.answer.as_deref().map(json).transpose()?;
        let (seq, id, user) = (self.seq, self.id, self.user);
        Ok(Settled { seq, id, user, decision, answer, fresh: false })
    }
}

fn json<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, LedgerError> {
    serde_json::from_str(text).map_err(|_| LedgerError::Damaged)
}

fn text(value: &impl Serialize) -> Result<String, LedgerError> {
    serde_json::to_string(value).map_err(|_| LedgerError::Damaged)
}
