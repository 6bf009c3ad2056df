//! The server, started for real and driven over HTTP.

pub(crate) mod access;
mod activity;
mod answers;
mod audit;
mod bad_input;
mod commands;
mod described;
mod events;
mod events_access;
pub(crate) mod events_client;
mod events_fanout;
mod events_http2;
mod events_stores;
mod events_stream;
mod hostile;
mod inbox;
mod limits;
mod locks;
mod observed;
mod operator;
mod queues;
mod records;
mod session;
mod sql;
mod start;
mod stop;
mod stores;
