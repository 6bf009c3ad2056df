//! Makes duplicates harmless.

mod open;

pub use hapax_core::*;
pub use open::{Options, open};
