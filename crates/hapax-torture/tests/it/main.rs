//! Tests the checker: a small model of each feature produces histories of concurrent clients, right ones and ones with a
//! planted bug. Right histories are accepted, and every bug is found.

mod command_bugs;
mod delivery_bugs;
mod event_bugs;
mod failover_bugs;
mod files;
mod line_bugs;
mod lock_bugs;
mod record_bugs;
mod record_search;
mod simulation;
mod transaction_bugs;
