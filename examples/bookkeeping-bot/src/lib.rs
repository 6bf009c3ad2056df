//! A LINE bot that keeps books.
//!
//! ```text
//!  message ─► Reader ─► Decision ─► Ledger::settle ─► executed ────► Ledger::conclude ─► reply
//!             intent                inbox + rows,     the record     the answer
//!                                   one transaction   in the store
//! ```
//!
//! * [`entry`]: an entry, and the rules for its fields.
//! * [`last`]: a user's last entry, which can be edited for an hour, by compare-and-put.
//! * [`reader`]: determines what a message asks for, by rules or by a language model.
//! * [`ledger`]: the booked entries, on SQLite or PostgreSQL, each message once.
//! * [`bot`]: combines them into a [`hapax_line::LineEventHandler`].

pub mod bot;
pub mod demo;
pub mod entry;
pub mod last;
pub mod ledger;
pub mod moment;
pub mod reader;
pub mod server;
pub mod settings;

/// Crash point for the tests, in debug builds: ends the process if `BOOKKEEPING_DIE_AT` names this
/// point.
fn die_at(point: &str) {
    if cfg!(debug_assertions) {
        example_common::abort_if("BOOKKEEPING_DIE_AT", point);
    }
}
