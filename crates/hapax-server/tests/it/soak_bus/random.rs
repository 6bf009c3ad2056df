//! Random choices that a seed repeats.

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        // xorshift64*: a dependency would be longer.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }

    pub(crate) fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    /// Moves things a few places: events come late, but not at any time.
    pub(crate) fn shuffle_nearly<T>(&mut self, things: &mut [T]) {
        for i in 0..things.len() {
            let other = (i + self.below(8)).min(things.len() - 1);
            things.swap(i, other);
        }
    }
}
