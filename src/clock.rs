//! The process's clock: the only place of the product that reads the operating system's time for stamps (design 5.1).
//!
//! Wall time is read once, at start, and carried on by the monotonic clock from then on, so it is never stepped. How far
//! the two have drifted apart since is exported by [`Clock::drift_us`].

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use holdfast_core::{
    id::Boot,
    time::{Mono, Now, Wall},
};

/// Above this much drift a gateway is not ready for stamped sessions (design 5.1).
pub const DRIFT_READY_MAX_US: u64 = 250_000;

/// The anchored clock of one process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Anchor>);

#[derive(Debug)]
struct Anchor {
    start: Instant,
    wall_us: u64,
    clock_id: u64,
    boot: Boot,
}

impl Clock {
    /// Anchors wall time on the monotonic clock and draws the process's random ids.
    #[must_use]
    pub fn start() -> Self {
        let start = Instant::now();
        let wall_us = wall_us();
        Self(Arc::new(Anchor { start, wall_us, clock_id: rand::random(), boot: Boot(rand::random::<u64>().max(1)) }))
    }

    /// Both clocks now.
    #[must_use]
    pub fn now(&self) -> Now {
        self.at(Instant::now())
    }

    /// Both clocks at a monotonic instant (not before the start).
    #[must_use]
    pub fn at(&self, instant: Instant) -> Now {
        let us = micros(instant.saturating_duration_since(self.0.start));
        Now { mono: Mono(us), wall: Wall(self.0.wall_us.saturating_add(us)) }
    }

    /// The instant of a monotonic reading, for timers.
    #[must_use]
    pub fn instant(&self, mono: Mono) -> Instant {
        self.0.start.checked_add(Duration::from_micros(mono.0)).unwrap_or(self.0.start)
    }

    /// Clock domain of this process's stamps: random per start.
    #[must_use]
    pub fn clock_id(&self) -> u64 {
        self.0.clock_id
    }

    /// Which life of the process this is: random per start, never 0.
    #[must_use]
    pub fn boot(&self) -> Boot {
        self.0.boot
    }

    /// Anchored minus current wall time in microseconds; positive = the system clock was set back or runs slow.
    #[must_use]
    pub fn drift_us(&self) -> i64 {
        let anchored = i64::try_from(self.now().wall.0).unwrap_or(i64::MAX);
        anchored.saturating_sub(i64::try_from(wall_us()).unwrap_or(i64::MAX))
    }
}

fn wall_us() -> u64 {
    // A system clock before 1970 reads as 0.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_advance_by_the_same_amount() {
        let clock = Clock::start();
        let (a, b) = (clock.now(), clock.at(Instant::now() + Duration::from_secs(5)));
        assert!(b.mono > a.mono);
        assert_eq!(b.mono.0 - a.mono.0, b.wall.0 - a.wall.0);
    }

    #[test]
    fn drift_is_small_at_the_start_and_instants_invert() {
        let clock = Clock::start();
        assert!(clock.drift_us().abs() < 100_000, "{}", clock.drift_us());
        let mono = Mono(7_000_000);
        assert_eq!(clock.at(clock.instant(mono)).mono, mono);
    }

    #[test]
    fn two_lives_differ() {
        let (a, b) = (Clock::start(), Clock::start());
        assert_ne!((a.boot(), a.clock_id()), (b.boot(), b.clock_id()));
    }
}
