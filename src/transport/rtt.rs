//! Round trips of one connection from WebSocket pings with a random nonce (design 5.3). Pure: time is an argument.
//!
//! A pong that is wrong, early, second or unsolicited is ignored: a client can only make its round trip look longer by
//! really answering later, and the bound (smallest full exchange) undoes that.

use std::time::Duration;

use holdfast_core::time::Mono;

/// Pings under way at once; more are not sent. 2 x 16 B per connection.
const OUTSTANDING_MAX: usize = 2;
/// A ping not answered for this long is forgotten, and samples are clamped to it.
const SAMPLE_MAX: Duration = Duration::from_secs(5);
/// `rtt_min` is the smallest of this many samples.
const WINDOW: usize = 8;

/// What is known about one connection's round trip.
#[derive(Clone, Debug, Default)]
pub struct Rtt {
    outstanding: [Option<(u64, Mono)>; OUTSTANDING_MAX],
    window: [u32; WINDOW],
    /// Smoothed, in microseconds: rises by 5 % of the difference, falls by 10 %; 0 = no sample.
    pub srtt_us: u32,
    /// Smallest sample of the connection, in microseconds; 0 = no sample.
    pub bound_us: u32,
    /// Samples taken.
    pub samples: u32,
}

impl Rtt {
    /// What an earlier connection of the client measured stands in until there are samples of this one.
    pub fn carry(&mut self, srtt_us: u32, bound_us: u32) {
        if self.samples == 0 {
            (self.srtt_us, self.bound_us) = (srtt_us, bound_us);
        }
    }

    /// Where the numbers come from (`RttSource`): 1 pings, 4 carried over, 0 nowhere.
    #[must_use]
    pub fn source(&self) -> i32 {
        match (self.samples, self.srtt_us) {
            (0, 0) => 0,
            (0, _) => 4,
            _ => 1,
        }
    }

    /// Notes a ping that is written now; `false` = enough are under way, do not send it.
    pub fn start(&mut self, now: Mono, nonce: u64) -> bool {
        let free = |slot: &&mut Option<(u64, Mono)>| slot.is_none_or(|(_, sent)| now.since(sent) >= SAMPLE_MAX);
        self.outstanding.iter_mut().find(free).map(|slot| *slot = Some((nonce, now))).is_some()
    }

    /// A pong read at `at` with this payload; `true` if it was an answer.
    pub fn pong(&mut self, at: Mono, payload: &[u8]) -> bool {
        let Ok(nonce) = <[u8; 8]>::try_from(payload).map(u64::from_be_bytes) else { return false };
        let answered = |slot: &&mut Option<(u64, Mono)>| slot.is_some_and(|(n, sent)| n == nonce && at > sent);
        let Some(slot) = self.outstanding.iter_mut().find(answered) else { return false };
        if let Some((_, sent)) = slot.take() {
            self.sample(at.since(sent));
        }
        true
    }

    /// Smallest of the last samples, in microseconds; 0 = none.
    #[must_use]
    pub fn min_us(&self) -> u32 {
        let filled = WINDOW.min(self.samples as usize);
        self.window[..filled].iter().copied().min().unwrap_or(0)
    }

    fn sample(&mut self, took: Duration) {
        let us = u32::try_from(took.min(SAMPLE_MAX).as_micros()).unwrap_or(u32::MAX).max(1);
        self.window[self.samples as usize % WINDOW] = us;
        if self.samples == 0 {
            // Carried over, perhaps from another network.
            (self.srtt_us, self.bound_us) = (0, 0);
        }
        self.srtt_us = match self.srtt_us {
            0 => us,
            old if us > old => old + (us - old) / 20,
            old => old - (old - us) / 10,
        };
        self.bound_us = if self.bound_us == 0 { us } else { self.bound_us.min(us) };
        self.samples = self.samples.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_slowly_falls_faster_and_keeps_the_bound() {
        let mut rtt = Rtt::default();
        for (nonce, took) in [(1, 1000), (2, 3000), (3, 100)] {
            assert!(rtt.start(Mono(10_000 * nonce), nonce));
            assert!(rtt.pong(Mono(10_000 * nonce + took), &nonce.to_be_bytes()));
        }
        assert_eq!((rtt.srtt_us, rtt.min_us(), rtt.bound_us, rtt.samples), (1000, 100, 100, 3));
    }

    #[test]
    fn a_carried_round_trip_stands_in_until_the_first_sample() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.source(), 0);
        rtt.carry(40_000, 30_000);
        assert_eq!((rtt.source(), rtt.srtt_us, rtt.bound_us, rtt.samples), (4, 40_000, 30_000, 0));
        assert!(rtt.start(Mono(10), 7) && rtt.pong(Mono(50_010), &7u64.to_be_bytes()));
        assert_eq!((rtt.source(), rtt.srtt_us, rtt.bound_us), (1, 50_000, 50_000), "another network");
        rtt.carry(1, 1);
        assert_eq!(rtt.srtt_us, 50_000);
    }

    #[test]
    fn wrong_early_second_and_unsolicited_pongs_are_ignored() {
        let mut rtt = Rtt::default();
        assert!(!rtt.pong(Mono(5), &7u64.to_be_bytes()));
        assert!(rtt.start(Mono(10), 7));
        assert!(!rtt.pong(Mono(10), &7u64.to_be_bytes()));
        assert!(!rtt.pong(Mono(20), &8u64.to_be_bytes()));
        assert!(!rtt.pong(Mono(20), b"short"));
        assert!(rtt.pong(Mono(20), &7u64.to_be_bytes()));
        assert!(!rtt.pong(Mono(30), &7u64.to_be_bytes()));
        assert_eq!(rtt.samples, 1);
    }

    #[test]
    fn pings_under_way_are_bounded_until_they_are_forgotten() {
        let mut rtt = Rtt::default();
        assert!(rtt.start(Mono(1), 1) && rtt.start(Mono(1), 2));
        assert!(!rtt.start(Mono(2), 3));
        assert!(rtt.start(Mono(5_000_001), 3));
    }
}
