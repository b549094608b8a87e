//! A table of limiter states with a fixed size: the bounded form of governor's keyed map (design 9.3).
//!
//! governor's own keyed maps only grow until somebody sweeps all of them. Here a key has [`WAYS`] places, and a new one
//! takes the place whose state has recovered most: that is all the sweeping there is, at most [`WAYS`] entries at a time.
//! A state that has recovered fully says nothing, so forgetting it is exact; a key seen once at 50/s has recovered
//! after 20 ms.

use std::{
    cell::Cell,
    hash::{BuildHasher as _, Hash},
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use governor::{Quota, RateLimiter, clock::Clock, middleware::NoOpMiddleware, nanos::Nanos, state::StateStore};
use holdfast_core::time::Mono;

/// Places for one key. Each look reads this many entries (16 B each: two cache lines).
pub(super) const WAYS: usize = 8;
/// Bytes of one set: its entries and the lock.
#[cfg(test)]
pub(super) const SET_BYTES: usize = std::mem::size_of::<Mutex<[State; WAYS]>>();

/// One key's state. The key itself is not kept: 64 bits of a hash keyed at random stand for it, which nobody outside can
/// aim at and which two of a million keys share by chance once in ten million tables.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    /// 0 = free.
    key: u64,
    /// Theoretical arrival time (GCRA) since the process's clock began, ns.
    tat: u64,
}

/// How often something may happen: so many per period, so many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    /// Between two of a steady stream.
    pub each: Duration,
    /// At once after a pause.
    pub burst: NonZeroU32,
}

impl Rate {
    /// `n` per `period`, `burst` at once; zeros count as one.
    pub(super) fn new(n: u32, period: Duration, burst: u32) -> Self {
        let each = (period / n.max(1)).max(Duration::from_nanos(1));
        Self { each, burst: NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN) }
    }

    /// governor's `per_second(n)` would mean a burst of n as well: it is always set apart.
    fn quota(self) -> Quota {
        let unit = Quota::with_period(self.each).unwrap_or_else(|| Quota::per_second(NonZeroU32::MIN));
        unit.allow_burst(self.burst)
    }
}

/// The table. Its memory is [`Table::bytes`] from the start, whatever comes.
#[derive(Debug)]
pub(super) struct Table {
    sets: Box<[Mutex<[State; WAYS]>]>,
    hasher: foldhash::fast::RandomState,
}

impl Table {
    /// Room for `sets` x [`WAYS`] keys.
    pub(super) fn new(sets: usize) -> Self {
        let sets = (0..sets.max(1)).map(|_| Mutex::default()).collect();
        Self { sets, hasher: foldhash::fast::RandomState::default() }
    }

    /// Memory of the table.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.sets.len() * SET_BYTES
    }

    /// Takes one of `key`'s; else how long until there is one. The limiter is made for this one question: what it knows
    /// is in the table, so a changed rate holds from the next question on and grants nobody a new burst.
    pub(super) fn check(&self, now: Mono, key: &impl Hash, rate: Rate) -> Result<(), Duration> {
        let now = Nanos::from(now.0.saturating_mul(1000));
        let clock = Given { now, begun: Cell::new(false) };
        let full = Duration::from_nanos(now.as_u64()).saturating_add(rate.each.saturating_mul(rate.burst.get()));
        let states = States { table: self, full: u64::try_from(full.as_nanos()).unwrap_or(u64::MAX) };
        let limiter: RateLimiter<u64, States<'_>, Given, NoOpMiddleware<Nanos>> =
            RateLimiter::new(rate.quota(), states, clock);
        limiter.check_key(&self.hasher.hash_one(key).max(1)).map_err(|refused| refused.wait_time_from(now))
    }

    /// How long `key` would have to wait; zero = not at all. Takes nothing.
    pub(super) fn wait(&self, now: Mono, key: &impl Hash, rate: Rate) -> Duration {
        let key = self.hasher.hash_one(key).max(1);
        let set = self.set(key).lock().unwrap_or_else(PoisonError::into_inner);
        let tat = set.iter().find(|s| s.key == key).map_or(0, |s| s.tat);
        let full = Duration::from_micros(now.0).saturating_add(rate.each.saturating_mul(rate.burst.get()));
        let allowed = rate.each * (rate.burst.get() - 1);
        Duration::from_nanos(tat).min(full).saturating_sub(allowed).saturating_sub(Duration::from_micros(now.0))
    }

    fn set(&self, key: u64) -> &Mutex<[State; WAYS]> {
        // The upper half of a good hash is as random as the lower, which the key is told by.
        let at = usize::try_from(key >> 32).unwrap_or(0) % self.sets.len();
        &self.sets[at]
    }
}

/// The table as one question sees it.
#[derive(Debug)]
struct States<'a> {
    table: &'a Table,
    /// The state of a key that has used all of its burst. What was used at a slower rate is a longer time: beyond this it
    /// would make a key wait for its limit having been raised.
    full: u64,
}

impl StateStore for States<'_> {
    type Key = u64;

    fn measure_and_replace<T, F, E>(&self, key: &u64, f: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut set = self.table.set(*key).lock().unwrap_or_else(PoisonError::into_inner);
        let found = set.iter().position(|s| s.key == *key);
        if let Some(at) = found {
            set[at].tat = set[at].tat.min(self.full);
        }
        let (out, tat) = f(found.map(|at| Nanos::from(set[at].tat)))?;
        let recovered = || (0..WAYS).min_by_key(|&at| set[at].tat).unwrap_or(0);
        let at = found.unwrap_or_else(recovered);
        set[at] = State { key: *key, tat: tat.as_u64() };
        Ok(out)
    }
}

/// Time as an argument. The first reading, which a limiter takes for its start, is that of the process's clock: states
/// count from there and so outlive the limiter.
#[derive(Clone, Debug)]
struct Given {
    now: Nanos,
    begun: Cell<bool>,
}

impl Clock for Given {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        if self.begun.replace(true) { self.now } else { Nanos::from(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn passes(table: &Table, now: Mono, key: u64, rate: Rate, tries: usize) -> usize {
        (0..tries).filter(|_| table.check(now, &key, rate).is_ok()).count()
    }

    #[test]
    fn a_burst_then_the_rate() {
        let (table, rate) = (Table::new(4), Rate::new(50, SECOND, 200));
        assert_eq!(passes(&table, Mono(7), 1, rate, 1000), 200);
        assert_eq!(table.check(Mono(7), &1u64, rate), Err(Duration::from_millis(20)));
        assert_eq!(table.wait(Mono(7), &1u64, rate), Duration::from_millis(20));
        assert_eq!(table.wait(Mono(7), &2u64, rate), Duration::ZERO);
        assert_eq!(passes(&table, Mono(1_000_007), 1, rate, 1000), 50);
        assert_eq!(passes(&table, Mono(1_000_007), 2, rate, 1000), 200, "another key");
    }

    #[test]
    fn a_new_rate_grants_no_new_burst() {
        let (table, now) = (Table::new(4), Mono(5_000_000));
        assert_eq!(passes(&table, now, 1, Rate::new(50, SECOND, 200), 1000), 200);
        assert_eq!(passes(&table, now, 1, Rate::new(100, SECOND, 200), 1000), 0);
        assert_eq!(passes(&table, Mono(now.0 + 100_000), 1, Rate::new(100, SECOND, 200), 1000), 10);
    }

    #[test]
    fn the_fullest_key_of_a_set_is_forgotten_last() {
        let (table, now, rate) = (Table::new(1), Mono(1_000_000), Rate::new(50, SECOND, 200));
        assert_eq!(passes(&table, now, 1, rate, 1000), 200);
        for other in 2..200_000 {
            assert_eq!(table.check(now, &other, rate), Ok(()));
        }
        assert!(table.check(now, &1u64, rate).is_err(), "still known");
    }
}
