//! Keys that lie evenly in the whole key space, as callers' random ids do.

use hapax_core::{Key, Operation, Tenant};
use hapax_workload::{BenchError, TENANT};

/// Names begin with a number of 48 bits in hexadecimal: exact in Lua's numbers, too.
const SPACE: u64 = 1 << 48;

/// Keys that were filled together: `count` of them, at even distances, in ascending order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyStage {
    pub(crate) number: usize,
    pub(crate) count: u64,
}

impl KeyStage {
    /// The distance between two keys.
    pub(super) fn step(self) -> u64 {
        SPACE / self.count.max(1)
    }

    pub(super) fn name(self, nth: u64) -> String {
        format!("{:012x}-{}", nth * self.step(), self.number)
    }

    pub(super) fn key(self, nth: u64) -> Result<Key, BenchError> {
        command_key(&self.name(nth))
    }
}

pub(super) fn command_key(name: &str) -> Result<Key, BenchError> {
    Key::command(&tenant(), Operation("bench"), name).map_err(invalid)
}

pub(super) fn lock_key(name: &str) -> Result<Key, BenchError> {
    Key::lock(&tenant(), name).map_err(invalid)
}

pub(super) fn tenant() -> Tenant {
    Tenant::new(TENANT).expect("it is printable and short")
}

fn invalid(error: hapax_core::InvalidKey) -> BenchError {
    BenchError::Engine(error.to_string())
}

/// A number without a pattern, the same for the same task and turn (splitmix64).
pub(super) fn scattered(task: usize, turn: u64) -> u64 {
    let seed = (task as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(turn);
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A name anywhere in the key space that no other run has.
pub(super) fn scattered_name(run_id: &str, task: usize, turn: u64) -> String {
    format!("{:012x}-{run_id}-{task}-{turn}", scattered(task, turn) % SPACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_stage_names_are_ascending_and_spread() {
        let stage = KeyStage { number: 1, count: 1000 };
        let names: Vec<_> = (0..1000).map(|nth| stage.name(nth)).collect();
        assert!(names.is_sorted() && names[999].starts_with("ff"), "{}", names[999]);
        let other = KeyStage { number: 2, ..stage };
        assert!(!names.contains(&other.name(7)));
    }
}
