//! The ledger of booked entries, in the bot's own database.
//!
//! A message is **settled** in one transaction: hapax's inbox confirms that the message is new, the
//! decision is stored, and the message's entries are booked. Every later delivery and retry finds
//! that decision, so nothing is decided, asked or booked a second time. [`Ledger::conclude`] then
//! stores the result.

mod postgres;
mod sqlite;

use async_trait::async_trait;
use hapax::Timestamp;
use serde::{Deserialize, Serialize};

use crate::entry::BookkeepingEntry;
use crate::last::Draft;

/// The name of this consumer in the inbox.
const CONSUMER: &str = "bookkeeping-bot";

/// Opens `sqlite:FILE` or `postgres://…`, and creates the tables.
///
/// # Errors
/// If the URL is neither of them, or the database cannot be used.
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

/// A ledger of booked entries.
#[async_trait]
pub trait Ledger: Send + Sync + 'static {
    /// The stored decision about a message; `None` if the message is not settled.
    async fn settled(&self, id: &str) -> Result<Option<Settled>, LedgerError>;

    /// Stores the decision about a message and books its entries, in one transaction. If the
    /// message is already settled, returns the earlier decision.
    async fn settle(&self, message: &Message, decision: &Decision) -> Result<Settled, LedgerError>;

    /// Stores the answer and, if an edit or a deletion succeeded, updates the row concerned. Only
    /// the first call has an effect.
    async fn conclude(
        &self,
        settled: &Settled,
        answer: &[String],
        done: bool,
    ) -> Result<(), LedgerError>;

    /// Whether this booking's last entry is still the one to edit: no booking, and no edit or
    /// deletion of that entry, was settled later.
    async fn is_last(&self, settled: &Settled) -> Result<bool, LedgerError>;

    /// The latest booking of a user, if its record could not be stored and it was settled at
    /// `since` or later.
    async fn unrecorded(
        &self,
        user: &str,
        since: Timestamp,
    ) -> Result<Option<Settled>, LedgerError>;

    /// All rows, in booking order.
    async fn rows(&self) -> Result<Vec<Row>, LedgerError>;

    /// Checks that the database answers.
    async fn ping(&self) -> Result<(), LedgerError>;
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

    fn entries(&self) -> &[BookkeepingEntry] {
        if let Self::Book { entries } = self { entries } else { &[] }
    }

    /// The JSON in the column `decision`; without a booking's entries, which have rows of their
    /// own.
    fn json(&self) -> Result<String, LedgerError> {
        let decision = match self {
            Self::Book { .. } => &Self::Book { entries: Vec::new() },
            other => other,
        };
        serde_json::to_string(decision).map_err(|_| LedgerError::Damaged)
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

/// Why a call to the ledger failed. Contains no driver message, because that may be personal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The database is unreachable, did not answer, or refused. A write may have happened; the
    /// message's next attempt finds out.
    #[error("the ledger gives no answer")]
    Unavailable,
    /// Another attempt at the same message has an open transaction.
    #[error("another turn of the message is at it")]
    Busy,
    /// A stored row cannot be read.
    #[error("a row of the ledger cannot be read")]
    Damaged,
}

/// The columns of a settled message, as read by either driver.
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
