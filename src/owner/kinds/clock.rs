//! Chess clocks and lag credit: the owner's rule of design 5.5. Integers only, all in microseconds.
//!
//! A player is charged for the time between the delivery of the opponent's move and the arrival of the answer, both
//! stamped at the edge by one gateway process, less a credit for the network. Credit is paid from a quota, so that a
//! slow line is never punished and a player who invents lag runs out of it.

use holdfast_core::proto::Stamp;
use serde::{Deserialize, Serialize};

/// One second.
pub const SECOND_US: u64 = 1_000_000;
/// Longest starting time, three hours: 10.8e9 us, far below 2^53.
pub const LIMIT_SECONDS_MAX: u64 = 3 * 3_600;
/// Largest increment per move.
pub const INCREMENT_SECONDS_MAX: u64 = 180;
/// Most that the quota grows per move: 100 cs.
const GAIN_MAX_US: u64 = SECOND_US;
/// What a client's own machine may add to the measured round trip: 14 cs.
const CPU_LAG_US: u64 = 140_000;
/// Most grace when the flag is claimed by the opponent or the server.
const GRACE_MAX_US: u64 = 2 * SECOND_US;

/// A time control: starting time and increment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// Starting time of each side.
    pub limit_us: u64,
    /// Added after each move.
    pub increment_us: u64,
}

impl Default for Control {
    /// 300+3.
    fn default() -> Self {
        Self { limit_us: 300 * SECOND_US, increment_us: 3 * SECOND_US }
    }
}

impl Control {
    /// Reads `180+2` (seconds + seconds); `None` outside 1..=10,800 and 0..=180.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (limit, increment) = text.split_once('+')?;
        let digits = |s: &str| (!s.is_empty() && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse::<u64>().ok());
        let (limit, increment) = (digits(limit)??, digits(increment)??);
        let fits = (1..=LIMIT_SECONDS_MAX).contains(&limit) && increment <= INCREMENT_SECONDS_MAX;
        fits.then_some(Self { limit_us: limit * SECOND_US, increment_us: increment * SECOND_US })
    }

    /// Growth of the quota per move: min(100, E x 2/5 + 15) cs, where E = limit + 40 x increment in seconds.
    #[must_use]
    pub fn gain_us(self) -> u64 {
        let estimate_us = self.limit_us + 40 * self.increment_us;
        // E seconds x 2/5 cs = E us x 2/5 x 10^4 / 10^6 us
        (estimate_us / 250 + 150_000).min(GAIN_MAX_US)
    }

    /// Quota at the start: three gains.
    #[must_use]
    pub fn quota_start_us(self) -> u64 {
        3 * self.gain_us()
    }

    /// Largest quota: seven gains.
    #[must_use]
    pub fn quota_max_us(self) -> u64 {
        7 * self.gain_us()
    }
}

/// What one move cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Taken from the clock.
    pub charged_us: u64,
    /// Given back for lag.
    pub credited_us: u64,
    /// Lag believed: min(smoothed round trip, its bound, elapsed).
    pub lag_us: u64,
    /// The mover's quota afterwards.
    pub quota_us: u64,
}

/// Both sides' clocks; index 0 is white.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    control: Control,
    remaining_us: [u64; 2],
    quota_us: [u64; 2],
}

impl Clock {
    /// Two full clocks.
    #[must_use]
    pub fn new(control: Control) -> Self {
        let quota = control.quota_start_us();
        Self { control, remaining_us: [control.limit_us; 2], quota_us: [quota; 2] }
    }

    /// The time left of a side.
    #[must_use]
    pub fn remaining_us(&self, side: usize) -> u64 {
        self.remaining_us[side]
    }

    /// Cost of a move of `side` that took `elapsed_us` from delivery to arrival over a line whose measured round trip
    /// is `rtt_us` (0 = no measurement: nothing is credited).
    #[must_use]
    pub fn charge(&self, side: usize, elapsed_us: u64, rtt_us: u64) -> Charge {
        let lag_us = rtt_us.min(elapsed_us);
        let quota = self.quota_us[side];
        let credited_us = lag_us.min(quota);
        let gain = match rtt_us {
            0 => self.control.gain_us(),
            rtt => self.control.gain_us().min(rtt.saturating_add(CPU_LAG_US)),
        };
        let quota_us = (quota + gain - credited_us).min(self.control.quota_max_us());
        Charge { charged_us: elapsed_us - credited_us, credited_us, lag_us, quota_us }
    }

    /// Time left after a charge, increment included; `None`: the flag fell.
    #[must_use]
    pub fn after(&self, side: usize, charge: &Charge) -> Option<u64> {
        let left = self.remaining_us[side].checked_sub(charge.charged_us).filter(|left| *left > 0)?;
        Some(left + self.control.increment_us)
    }

    /// The time `side` has before a claim stands: what is left and a grace of min(quota, 2 s).
    #[must_use]
    pub fn budget_us(&self, side: usize) -> u64 {
        self.remaining_us[side] + self.quota_us[side].min(GRACE_MAX_US)
    }

    /// Whether a claim stands that `side` let `elapsed_us` pass.
    #[must_use]
    pub fn flag_stands(&self, side: usize, elapsed_us: u64) -> bool {
        elapsed_us >= self.budget_us(side)
    }

    /// Writes what a recorded event says.
    pub fn set(&mut self, side: usize, remaining_us: u64, quota_us: Option<u64>) {
        self.remaining_us[side] = remaining_us;
        self.quota_us[side] = quota_us.unwrap_or(self.quota_us[side]);
    }
}

/// The round trip that lag credit may believe: smoothed, never above a full exchange seen (design 5.3).
#[must_use]
pub fn rtt_us(stamp: &Stamp) -> u64 {
    let bound = if stamp.rtt_bound_us == 0 { u32::MAX } else { stamp.rtt_bound_us };
    u64::from(stamp.srtt_us.min(bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CS: u64 = 10_000;

    /// Remaining centiseconds of one side after moves of no thinking and these lags, the reference's own check
    /// (scalachess ClockTest): there the lag is reported per move, without the round-trip cap on the gain.
    fn after_lags(control: &str, lags_cs: &[u64]) -> u64 {
        let control = Control::parse(control).expect("control");
        let mut clock = Clock::new(control);
        for lag in lags_cs {
            let mut charge = clock.charge(0, lag * CS, lag * CS);
            charge.quota_us = (clock.quota_us[0] + control.gain_us() - charge.credited_us).min(control.quota_max_us());
            let left = clock.after(0, &charge).expect("no flag");
            clock.set(0, left, Some(charge.quota_us));
        }
        clock.remaining_us(0) / CS
    }

    #[test]
    fn published_numbers_of_the_reference_owner_hold() {
        assert_eq!(after_lags("60+0", &[0, 300]), 5_856);
        assert_eq!(after_lags("60+0", &[0, 0, 0, 0, 700]), 5_573);
        assert_eq!(after_lags("600+0", &[0, 0, 0, 0, 0, 500, 500, 500]), 59_400);
        assert_eq!(after_lags("600+0", &[0]), 60_000);
        assert_eq!(after_lags("600+0", &[20]), 60_000);
        assert_eq!(after_lags("600+0", &[400]), 59_900);
    }

    #[test]
    fn gain_start_and_cap_are_those_of_the_design() {
        let values = |s| Control::parse(s).map(|c| (c.gain_us(), c.quota_start_us(), c.quota_max_us()));
        assert_eq!(values("60+0"), Some((390_000, 1_170_000, 2_730_000)));
        assert_eq!(values("180+0"), Some((870_000, 2_610_000, 6_090_000)));
        assert_eq!(values("300+0"), Some((1_000_000, 3_000_000, 7_000_000)));
    }

    #[test]
    fn a_short_measured_round_trip_caps_the_gain() {
        let clock = Clock::new(Control::parse("300+0").expect("control"));
        let charge = clock.charge(0, 5 * SECOND_US, 30_000);
        assert_eq!(charge.charged_us, 5 * SECOND_US - 30_000);
        assert_eq!(charge.quota_us, 3 * SECOND_US + 170_000 - 30_000);
    }

    #[test]
    fn a_flag_needs_the_time_and_the_grace() {
        let clock = Clock::new(Control::parse("60+0").expect("control"));
        assert!(!clock.flag_stands(1, 61 * SECOND_US));
        assert!(!clock.flag_stands(1, 60 * SECOND_US + 1_169_999));
        assert!(clock.flag_stands(1, 60 * SECOND_US + 1_170_000));
        let late = clock.charge(0, 60 * SECOND_US, 0);
        assert_eq!(clock.after(0, &late), None);
    }

    #[test]
    fn odd_controls_are_refused() {
        for text in
            ["", "+", "180", "180+", "+2", "0+1", "10801+0", "1+181", "-1+0", "1+-1", "99999999999999999999+0", "1.5+0"]
        {
            assert_eq!(Control::parse(text), None, "{text}");
        }
    }
}
