//! The one source of chance of a run.

use rand::{Rng, SeedableRng, rngs::SmallRng};

/// Draws everything that happens in a world from its seed.
pub struct Chance(SmallRng);

impl Chance {
    /// The same seed, the same world.
    pub fn new(seed: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed))
    }

    /// Uniform in `0..n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.0.random_range(0..n) }
    }

    /// Uniform in `from..=to`.
    pub fn range(&mut self, from: u64, to: u64) -> u64 {
        self.0.random_range(from..=to.max(from))
    }

    /// True `per_mille` times out of 1000.
    pub fn per_mille(&mut self, per_mille: u64) -> bool {
        self.0.random_range(0..1000) < per_mille
    }

    /// One index below `len`.
    pub fn index(&mut self, len: usize) -> usize {
        if len == 0 { 0 } else { self.0.random_range(0..len) }
    }

    /// One of `all`, if there is any.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        if all.is_empty() { None } else { Some(all[self.index(all.len())]) }
    }

    /// 64 bits, never 0.
    pub fn word(&mut self) -> u64 {
        self.0.random_range(1..u64::MAX)
    }
}
