//! The features, built on nothing but the laws of the primitives.

pub mod bus;
pub mod command;
pub mod document;
pub mod inbox;
pub mod lock;
pub mod worker;
