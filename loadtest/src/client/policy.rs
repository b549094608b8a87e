//! How a client behaves when it has to come back: as the protocol asks, or worse (design 9.1).

use std::fmt;
use std::str::FromStr;

/// One client's manners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The protocol whole: its rank in advance, a slot when refused.
    Ranks,
    /// Comes at once, and at its slot when refused.
    Slots,
    /// Believes nothing: waits U(0, min(cap, base x 2^n)).
    FullJitter,
    /// Believes nothing: waits min(cap, U(base, 3 x previous)).
    Decorrelated,
    /// Asks again and again, whatever it was told.
    Hammer,
}

impl Policy {
    /// Whether the moment named in a refusal counts.
    pub fn obeys(self) -> bool {
        matches!(self, Policy::Ranks | Policy::Slots)
    }

    /// As on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Policy::Ranks => "ranks",
            Policy::Slots => "slots",
            Policy::FullJitter => "full-jitter",
            Policy::Decorrelated => "decorrelated",
            Policy::Hammer => "hammer",
        }
    }
}

/// The manners of a crowd: `hammer:5` is 5 % that hammer among clients that keep their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowd {
    pub polite: Policy,
    /// Per cent of the clients, spread evenly over them.
    pub hammer_percent: u8,
}

impl Crowd {
    /// Manners of the n-th client.
    pub fn of(self, index: usize) -> Policy {
        // 61 is prime to 100: every hundred in a row has each remainder once, and neighbours differ
        let hammers = index.wrapping_mul(61) % 100 < usize::from(self.hammer_percent);
        if hammers { Policy::Hammer } else { self.polite }
    }
}

impl fmt::Display for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hammer_percent {
            0 => f.write_str(self.polite.word()),
            percent => write!(f, "hammer:{percent}"),
        }
    }
}

impl FromStr for Crowd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Policy::Ranks, Policy::Slots, Policy::FullJitter, Policy::Decorrelated];
        if let Some(policy) = all.into_iter().find(|p| p.word() == text) {
            return Ok(Crowd { polite: policy, hammer_percent: 0 });
        }
        let percent = text.strip_prefix("hammer:").and_then(|p| p.parse().ok()).filter(|p| (1..=100).contains(p));
        percent.map(|hammer_percent| Crowd { polite: Policy::Slots, hammer_percent }).ok_or_else(|| {
            "slots, ranks, full-jitter, decorrelated, or hammer:P with P per cent from 1 to 100".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back_and_a_crowd_has_its_share_of_hammerers() {
        for text in ["slots", "ranks", "full-jitter", "decorrelated", "hammer:5"] {
            assert_eq!(text.parse::<Crowd>().unwrap().to_string(), text);
        }
        for text in ["hammer:0", "hammer:101", "hammer", "politely"] {
            assert!(text.parse::<Crowd>().is_err(), "{text}");
        }
        let crowd: Crowd = "hammer:5".parse().unwrap();
        let hammerers = (0..1_000).filter(|i| crowd.of(*i) == Policy::Hammer).count();
        assert_eq!(hammerers, 50);
    }
}
