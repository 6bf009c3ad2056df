//! The whole conversation through the real program, with LINE's side simulated on loopback.

mod conversation;
mod crashes;
mod logging;
mod model;
mod support;
