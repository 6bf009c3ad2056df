//! The server, started for real and driven over HTTP.

mod access;
mod bad_input;
mod client;
mod commands;
mod described;
mod hostile;
mod limits;
mod locks;
mod observed;
mod operator;
mod records;
mod server;
mod start;
mod stop;
mod stores;
