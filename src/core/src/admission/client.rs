//! What a client does when it is sent away or cut off (design 4.4, 9.2, 9.3): one set of numbers for the simulation, the
//! load tester and the tests.
//!
//! Draws are arguments, uniform in `[0, 1)`.

use std::time::Duration;

use crate::backoff::Backoff;

/// First wait of a client without other advice (`welcome.reconnect.base_ms`).
pub const BASE: Duration = Duration::from_millis(250);
/// Longest (`welcome.reconnect.cap_ms`).
pub const CAP: Duration = Duration::from_millis(8000);
/// A connection that lived this long resets the backoff.
pub const LIVED: Duration = Duration::from_secs(5);
/// How often a cheating client asks.
pub const HAMMER: Duration = Duration::from_millis(50);

/// How a client comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// U(0, min(cap, base x 2^n)); slots are ignored.
    FullJitter,
    /// min(cap, U(base, 3 x previous)); slots are ignored.
    Decorrelated,
    /// At once, then at the slot.
    Slots,
    /// At its rank, then at the slot.
    Ranks,
    /// At once, then each 50 ms whatever it was told.
    Hammer,
}

/// What the last try came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The connection vanished without a word (reset, end without a close frame); the spread and rank it was told.
    Cut {
        /// `welcome.reconnect.spread_ms`.
        spread: Duration,
        /// `welcome.reconnect.rank_ppm`.
        rank_ppm: u32,
    },
    /// Its own timeout, or its network came back.
    Alone,
    /// Told to come back after this long (slot, drain, full, Retry-After).
    At(Duration),
    /// Refused, or failed, without a moment.
    Failed,
}

/// One client's memory between tries.
#[derive(Clone, Copy, Debug)]
pub struct Reconnect {
    policy: Policy,
    tries: u32,
    backoff: Backoff,
}

impl Reconnect {
    /// A client that was connected.
    #[must_use]
    pub const fn new(policy: Policy) -> Self {
        Self { policy, tries: 0, backoff: Backoff::new(BASE, CAP) }
    }

    /// How long to wait before the next try.
    pub fn next_attempt(&mut self, heard: Heard, draw: f64) -> Duration {
        self.tries = self.tries.saturating_add(1);
        match (self.policy, heard) {
            (Policy::FullJitter, _) => full_jitter(self.tries, draw),
            (Policy::Decorrelated, _) => self.backoff.next(draw),
            (Policy::Ranks, Heard::Cut { spread, rank_ppm }) if self.tries == 1 => at_rank(spread, rank_ppm),
            (Policy::Slots | Policy::Ranks, Heard::At(wait)) => wait,
            (Policy::Slots | Policy::Ranks | Policy::Hammer, _) if self.tries == 1 => Duration::ZERO,
            (Policy::Slots | Policy::Ranks, _) => self.backoff.next(draw),
            (Policy::Hammer, _) => HAMMER,
        }
    }

    /// It is in: after [`LIVED`] the next loss is a first one again.
    pub const fn lived(&mut self) {
        self.tries = 0;
        self.backoff.reset();
    }
}

/// U(0, min(cap, base x 2^n)), `n` = 1 for the first try.
#[must_use]
pub fn full_jitter(n: u32, draw: f64) -> Duration {
    let top = BASE.saturating_mul(1_u32.checked_shl(n.min(16)).unwrap_or(u32::MAX)).min(CAP);
    top.mul_f64(draw.clamp(0.0, 1.0))
}

/// spread x rank (design 9.2).
#[must_use]
pub fn at_rank(spread: Duration, rank_ppm: u32) -> Duration {
    spread.mul_f64(f64::from(rank_ppm.min(1_000_000)) / 1e6)
}

/// What a close code tells the client to do (design 4.4). The same numbers hold on QUIC and WebTransport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Come back at the moment in the reason.
    AtSlot,
    /// Do not come back; tell the user.
    Stop,
    /// Rank once, then back off.
    BackOff,
    /// Come back at once (4201: with a fresh token).
    Now,
}

/// The table of 4.4. No close code at all (reset, timeout) is 1006.
#[must_use]
pub const fn after_close(code: u16) -> After {
    match code {
        1012 | 1013 => After::AtSlot,
        4100..=4199 | 1001 | 1006 | 1011 => After::BackOff,
        4200..=4299 => After::Now,
        _ => After::Stop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn close_codes_are_those_of_the_table() {
        for (codes, then) in [
            (&[1012, 1013][..], After::AtSlot),
            (&[4000, 4001, 4006, 4007, 4099, 1000, 1002, 1003, 1007, 1009, 1010, 4300, 4999], After::Stop),
            (&[4100, 4103, 4106, 4199, 1001, 1006, 1011], After::BackOff),
            (&[4200, 4201, 4203, 4299], After::Now),
        ] {
            assert!(codes.iter().all(|c| after_close(*c) == then), "{then:?}");
        }
    }

    #[test]
    fn slots_are_followed_by_those_that_follow_slots() {
        for (policy, wait) in [(Policy::Slots, MS(4870)), (Policy::Ranks, MS(4870)), (Policy::Hammer, HAMMER)] {
            let mut client = Reconnect::new(policy);
            assert_eq!(client.next_attempt(Heard::Alone, 0.5), Duration::ZERO);
            assert_eq!(client.next_attempt(Heard::At(MS(4870)), 0.5), wait);
        }
    }

    #[test]
    fn a_rank_is_followed_once() {
        let mut client = Reconnect::new(Policy::Ranks);
        let cut = Heard::Cut { spread: MS(4000), rank_ppm: 250_000 };
        assert_eq!(client.next_attempt(cut, 0.0), MS(1000));
        assert_eq!(client.next_attempt(cut, 0.0), BASE);
        client.lived();
        assert_eq!(client.next_attempt(cut, 0.0), MS(1000));
    }

    #[test]
    fn jitter_stays_in_its_range() {
        assert_eq!((full_jitter(1, 1.0), full_jitter(3, 0.5), full_jitter(40, 1.0)), (MS(500), MS(1000), CAP));
    }
}
