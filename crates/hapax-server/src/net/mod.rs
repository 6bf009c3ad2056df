//! What every listener of ours has in common: connections up to a number, clients that may not take
//! for ever, and an end in order.

mod drain;
mod files;
mod listener;
mod pace;
mod signals;
mod takeover;
mod talk;

pub(crate) use files::make_room;
pub(crate) use listener::{Answers, BoxError, Limits, Peer, Server, bind};
pub(crate) use pace::{InFlight, Pace, Refusals};
pub(crate) use signals::Signals;
pub(crate) use takeover::{Bare, Takeover};
