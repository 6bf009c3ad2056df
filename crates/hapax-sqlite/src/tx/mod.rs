//! The same operations inside a transaction that you own: your rows and hapax's claim are
//! committed together, or not at all.
//!
//! This is the one place where an effect happens **exactly once**: it is in the same transaction
//! as its claim. [`once`] is all that most people need; [`inbox`] is the same for messages, and
//! [`outbox`] sends some.
//!
//! Call [`migrate`](crate::migrate) once on a connection of yours; the functions here then work on
//! any transaction of it (`&Transaction` derefs to `&Connection`). What belongs to a transaction
//! stands or falls with it: a grant that is rolled back never was, and its fence may be given out
//! again, so pass the fence on only after the commit.
//!
//! A consumer of the event bus keeps its position as a record: [`put`] with the version that it has
//! read, in the transaction of the effect, refuses whoever was overtaken.
//!
//! Waiters in other tasks and processes notice your commit within some tens of milliseconds.

pub mod inbox;
pub(crate) mod lock;
mod once;
pub mod outbox;
pub(crate) mod savepoint;

pub use crate::claims::{claim, extend, give_back, look, settle};
pub use crate::records::{delete, get, put};
pub use once::{Once, OnceError, once};
