//! The gateway in one process, on a store that fails as planned.

mod answers;
mod channels;
mod failures;
mod intake;
mod locks;
mod order;
mod outages;
mod pause;
mod service;
mod setup;
