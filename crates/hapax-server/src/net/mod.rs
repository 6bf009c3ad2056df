//! What every listener of ours has in common: connections up to a number, clients that may not take
//! for ever, and an end in order.

mod listener;
mod pace;
mod signals;

pub(crate) use listener::{Answers, BoxError, Limits, Peer, Server, bind};
pub(crate) use pace::{InFlight, Pace, Refusals};
pub(crate) use signals::Signals;
