//! A LINE bot that keeps books.
//!
//! ```text
//!  message ─► Reader ─► Decision ─► Ledger::settle ─► carried out ─► Ledger::conclude ─► reply
//!             intent                inbox + rows,     the record        what is said
//!                                   one transaction   in the store
//! ```
//!
//! * [`entry`]: what an entry is, and every rule that it obeys.
//! * [`last`]: the last entry of a user, which may be edited for an hour, by compare-and-put.
//! * [`reader`]: what a message asks for, by rules or by a language model.
//! * [`ledger`]: what was booked, on SQLite or PostgreSQL, each message once.
//! * [`bot`]: the four of them as a [`hapax_line::LineEventHandler`].

pub mod bot;
mod crash;
pub mod demo;
pub mod entry;
pub mod last;
pub mod ledger;
mod logging;
pub mod moment;
pub mod reader;
pub mod server;
pub mod settings;
