//! Every setting: one declaration gives its flag, environment variable, file key and help.
//!
//! Flags win over the environment, the environment over the file, the file over a seed's variable,
//! and that over the default.

mod declare;
mod events;
mod file;
mod serve;
pub(crate) mod shared;
pub(crate) mod sources;
#[cfg(test)]
mod tests;
mod tokens;
mod value;

pub(crate) use declare::{Section, Setting, settings};
pub(crate) use events::{ClosingEvent, Origins, Secret};
pub(crate) use serve::{Args, LONGEST_LEASE, Settings, Sources};
pub(crate) use tokens::{Scope, TokenRule};
pub(crate) use value::{
    Level, Listen, LogFormat, OrZero, Patterns, Size, StoreUrl, Text, Value, choice,
};

/// The settings of every command that reads the file.
static TABLES: [&[Setting]; 4] =
    [serve::TABLE, crate::proxy::TABLE, crate::relay::TABLE, crate::line::TABLE];
