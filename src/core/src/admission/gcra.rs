//! The pace at which clients are let in: a GCRA that hands out reservations (design 9.3), and one that only counts.
//!
//! governor tells every refused client the same 200 us; here a refusal advances the schedule and returns its own slot.
//! Time inside is in nanoseconds, so that 15,000 a second are not 14,925.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::time::Mono;

/// A rate and the burst above it. Cheap to make: rate and burst are given at each call, so changing them needs no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    interval_ns: u64,
    burst_ns: u64,
}

impl Pace {
    /// Seconds between two.
    #[must_use]
    pub(super) fn interval_s(&self) -> f64 {
        Duration::from_nanos(self.interval_ns).as_secs_f64()
    }

    /// `per_s` admissions a second (at least one in 1,000 s), and what `burst` of that rate amounts to at once.
    #[must_use]
    pub fn new(per_s: f64, burst: Duration) -> Self {
        let interval = 1e9 / per_s.max(1e-3);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 1e12")]
        Self { interval_ns: (interval.max(1.0)) as u64, burst_ns: ns(burst) }
    }

    /// A pace that never lets more than `per_s + burst` (burst counted at `per_s / over`) through in any second: what is
    /// admitted first counts against the burst.
    #[must_use]
    pub fn strict(per_s: f64, burst: Duration, over: f64) -> Self {
        let mut pace = Self::new(per_s, burst.div_f64(over.max(1.0)));
        pace.burst_ns = pace.burst_ns.saturating_sub(pace.interval_ns);
        pace
    }

    /// The same burst (as time) at another fraction of the rate.
    #[must_use]
    pub fn fraction(self, of: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "below 2^53"
        )]
        Self { interval_ns: (self.interval_ns as f64 / of.clamp(1e-3, 1.0)) as u64, ..self }
    }

    /// Admissions that pass at once after idling.
    #[must_use]
    pub const fn at_once(&self) -> u64 {
        1 + self.burst_ns / self.interval_ns
    }
}

/// What a reservation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// Free now: taken.
    Now,
    /// Not free now: this moment is reserved, for this caller only.
    At(Mono),
    /// Not free within the horizon; nothing was reserved.
    Beyond,
}

/// Virtual scheduling that reserves: one atomic, the theoretical arrival time of the next admission.
#[derive(Debug, Default)]
pub struct ReservingGcra {
    tat_ns: AtomicU64,
}

impl ReservingGcra {
    /// Admits, or reserves the next free moment however far away it is.
    pub fn admit(&self, now: Mono, pace: Pace) -> Result<(), Mono> {
        match self.reserve(now, pace, Duration::MAX) {
            Reserved::Now => Ok(()),
            Reserved::At(slot) => Err(slot),
            Reserved::Beyond => Err(Mono(u64::MAX)),
        }
    }

    /// Admits, or reserves the next free moment if it is within `horizon`.
    pub fn reserve(&self, now: Mono, pace: Pace, horizon: Duration) -> Reserved {
        let now_ns = mono_ns(now);
        let mut tat = self.tat_ns.load(Ordering::Relaxed);
        loop {
            let slot = tat.saturating_sub(pace.burst_ns);
            if slot.saturating_sub(now_ns) > ns(horizon) {
                return Reserved::Beyond;
            }
            let next = tat.max(now_ns).saturating_add(pace.interval_ns);
            match self.tat_ns.compare_exchange_weak(tat, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) if slot <= now_ns => return Reserved::Now,
                Ok(_) => return Reserved::At(Mono(slot.div_ceil(1000))),
                Err(seen) => tat = seen,
            }
        }
    }

    /// The moment the next reservation would get; never before `now`.
    #[must_use]
    pub fn next(&self, now: Mono, pace: Pace) -> Mono {
        Mono(self.tat_ns.load(Ordering::Relaxed).saturating_sub(pace.burst_ns).div_ceil(1000)).max(now)
    }

    /// Takes over a new pace: what was reserved stays, and nobody can take more at once than before.
    pub fn repace(&self, now: Mono, old: Pace, new: Pace) {
        let tat = self.tat_ns.load(Ordering::Relaxed);
        self.tat_ns.store(repaced(tat, mono_ns(now), old, new), Ordering::Relaxed);
    }
}

/// The counting half: the same arithmetic without reservations, for what has to hold over all classes together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    tat_ns: u64,
}

impl Meter {
    /// Whether one more would be within the pace, with `keep` (0 to 1) of the burst left to others.
    #[must_use]
    pub fn conforms(&self, now: Mono, pace: Pace, keep: f64) -> bool {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "below 2^53"
        )]
        let usable = (pace.burst_ns as f64 * (1.0 - keep.clamp(0.0, 1.0))) as u64;
        self.tat_ns.saturating_sub(usable) <= mono_ns(now)
    }

    /// Counts one, conforming or not.
    pub fn take(&mut self, now: Mono, pace: Pace) {
        self.tat_ns = self.tat_ns.max(mono_ns(now)).saturating_add(pace.interval_ns);
    }

    /// Whether nothing was taken for so long that the whole burst is there: capacity that nobody claims.
    #[must_use]
    pub fn is_idle(&self, now: Mono) -> bool {
        self.tat_ns <= mono_ns(now)
    }

    /// When [`Meter::conforms`] will say yes.
    #[must_use]
    pub fn next(&self, now: Mono, pace: Pace) -> Mono {
        Mono(self.tat_ns.saturating_sub(pace.burst_ns).div_ceil(1000)).max(now)
    }

    /// See [`ReservingGcra::repace`].
    pub fn repace(&mut self, now: Mono, old: Pace, new: Pace) {
        self.tat_ns = repaced(self.tat_ns, mono_ns(now), old, new);
    }
}

/// The arrival time under `new` that leaves no more admissions at once than there were under `old`.
fn repaced(tat: u64, now: u64, old: Pace, new: Pace) -> u64 {
    let limit = now.saturating_add(old.burst_ns);
    if tat > limit {
        // a backlog: the moments given away stay given away
        return (tat - old.burst_ns).saturating_add(new.burst_ns);
    }
    let left = u128::from(limit - tat.max(now)) * u128::from(new.interval_ns) / u128::from(old.interval_ns);
    let left = u64::try_from(left).unwrap_or(u64::MAX).min(new.burst_ns);
    now.saturating_add(new.burst_ns - left)
}

fn ns(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

const fn mono_ns(at: Mono) -> u64 {
    at.0.saturating_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: fn() -> Pace = || Pace::new(1000.0, Duration::from_millis(20));
    const S: u64 = 1_000_000;

    #[test]
    fn a_refusal_advances_the_schedule_and_returns_its_own_slot() {
        let gcra = ReservingGcra::default();
        let now = Mono(10 * S);
        assert_eq!((0..21).filter(|_| gcra.admit(now, PACE()).is_ok()).count(), 21, "20 ms of 1,000/s, and the first");
        let slots: Vec<_> = (0..3).map(|_| gcra.admit(now, PACE())).collect();
        assert_eq!(slots, [Err(Mono(10 * S + 1000)), Err(Mono(10 * S + 2000)), Err(Mono(10 * S + 3000))]);
    }

    #[test]
    fn idling_buys_no_more_than_the_burst() {
        let gcra = ReservingGcra::default();
        for start in [1, 61 * S, 600 * S] {
            assert_eq!((0..50).filter(|_| gcra.admit(Mono(start), PACE()).is_ok()).count(), 21);
        }
    }

    #[test]
    fn nothing_is_reserved_beyond_the_horizon() {
        let gcra = ReservingGcra::default();
        let all: Vec<_> = (0..100).map(|_| gcra.reserve(Mono(S), PACE(), Duration::from_millis(5))).collect();
        assert_eq!(all.iter().filter(|r| **r == Reserved::Now).count(), 21);
        assert_eq!(all.iter().filter(|r| matches!(r, Reserved::At(_))).count(), 5);
        assert_eq!(gcra.reserve(Mono(S + 1000), PACE(), Duration::from_millis(5)), Reserved::At(Mono(S + 6000)));
    }

    #[test]
    fn a_new_pace_is_no_new_burst() {
        let (mut meter, mut pace) = (Meter::default(), PACE());
        let now = Mono(S);
        while meter.conforms(now, pace, 0.0) {
            meter.take(now, pace);
        }
        for per_s in [5000.0, 10.0, 20_000.0, 1000.0] {
            let new = Pace::new(per_s, Duration::from_millis(20));
            meter.repace(now, pace, new);
            pace = new;
        }
        let passed = (0..100)
            .filter(|_| {
                meter.conforms(now, pace, 0.0) && {
                    meter.take(now, pace);
                    true
                }
            })
            .count();
        assert!(passed <= 1, "{passed}");
    }

    #[test]
    fn a_reserved_moment_survives_a_new_pace() {
        let gcra = ReservingGcra::default();
        let now = Mono(S);
        let last = (0..500).filter_map(|_| gcra.admit(now, PACE()).err()).last().unwrap();
        let new = Pace::new(100.0, Duration::from_millis(50));
        gcra.repace(now, PACE(), new);
        assert!(gcra.next(now, new) > last);
    }

    #[test]
    fn strict_paces_count_the_first_into_the_burst() {
        let pace = Pace::strict(1050.0, Duration::from_millis(20), 1.05);
        let (mut meter, mut passed) = (Meter::default(), 0);
        for us in 0..S {
            if meter.conforms(Mono(S + us), pace, 0.0) {
                meter.take(Mono(S + us), pace);
                passed += 1;
            }
        }
        assert!((1050..=1070).contains(&passed), "{passed}");
    }
}
