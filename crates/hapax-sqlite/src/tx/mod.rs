//! The same operations inside a transaction that you own: your rows and hapax's claim are
//! committed together, or not at all.
//!
//! This is the one place where an effect happens **exactly once**: it is in the same transaction
//! as its claim. [`once`] is all that most people need.
//!
//! Call [`migrate`](crate::migrate) once on a connection of yours; the functions here then work on
//! any transaction of it (`&Transaction` derefs to `&Connection`). What belongs to a transaction
//! stands or falls with it: a grant that is rolled back never was, and its fence may be given out
//! again, so pass the fence on only after the commit.
//!
//! Waiters in other tasks and processes notice your commit within some tens of milliseconds.

mod claims;
mod lock;
mod once;
mod records;

pub use claims::{claim, extend, give_back, look, settle};
pub use once::{Once, OnceError, once};
pub use records::{delete, get, put};

pub(crate) use claims::glance;
