//! Ranks, given in advance (design 9.2), and the pace of a drain (design 10).

use std::time::Duration;

use super::Class;

/// Clients by what they lose if their gateway vanishes, in the order in which they may come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts {
    /// Participants of games.
    pub games: u32,
    /// Of meetings.
    pub meetings: u32,
    /// Of documents.
    pub documents: u32,
    /// Spectators, and those without a session.
    pub others: u32,
}

impl ClassCounts {
    fn parts(self) -> [u32; 4] {
        [self.games, self.meetings, self.documents, self.others]
    }
}

/// Where in the spread a client comes back, parts per million: random, class-major. `random` is uniform over u64.
#[must_use]
pub fn rank_ppm(counts: ClassCounts, class: Class, random: u64) -> u32 {
    let mine = match class {
        Class::Game => 0,
        Class::Meeting => 1,
        Class::Document => 2,
        Class::Ticket | Class::Known | Class::Anonymous => 3,
    };
    // the one that asks is counted even if the counts are a moment old
    let mut parts = counts.parts().map(u64::from);
    parts[mine] = parts[mine].max(1);
    let (total, before): (u64, u64) = (parts.iter().sum(), parts[..mine].iter().sum());
    let within = (u128::from(random) * u128::from(parts[mine]) * 1_000_000) >> 64;
    let ppm = (u128::from(before) * 1_000_000 + within) / u128::from(total);
    u32::try_from(ppm).unwrap_or(999_999).min(999_999)
}

/// Reserve on top of the ideal time, so that ranks do not meet the limit: 5 %.
pub const SPREAD_RESERVE: f64 = 1.05;
/// A spread is sent again when it moved by this fraction.
pub const SPREAD_MOVED: f64 = 0.2;
/// Longest spread that is told: beyond it slots are better than patience.
pub const SPREAD_MAX: Duration = Duration::from_secs(600);

/// Over how long the clients of this gateway come back: 1.05 x connections here / what the others admit a second.
#[must_use]
pub fn spread(connections: u32, others_per_s: f64) -> Duration {
    let s = SPREAD_RESERVE * f64::from(connections) / others_per_s.max(1.0);
    Duration::from_secs_f64(s).min(SPREAD_MAX)
}

/// Whether a spread has moved enough to tell clients.
#[must_use]
pub fn spread_moved(told: Duration, now: Duration) -> bool {
    now.abs_diff(told).as_secs_f64() > SPREAD_MOVED * told.as_secs_f64()
}

/// When the `i`-th client of a drain goes, from its start, at `per_s`.
#[must_use]
pub fn drain_slot(i: u32, per_s: f64) -> Duration {
    Duration::from_secs_f64(f64::from(i) / per_s.max(1e-3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: ClassCounts = ClassCounts { games: 100, meetings: 300, documents: 500, others: 100 };

    #[test]
    fn classes_follow_each_other_without_overlap() {
        let range = |class| (rank_ppm(COUNTS, class, 0), rank_ppm(COUNTS, class, u64::MAX));
        assert_eq!(range(Class::Game), (0, 99_999));
        assert_eq!(range(Class::Meeting), (100_000, 399_999));
        assert_eq!(range(Class::Document), (400_000, 899_999));
        assert_eq!(range(Class::Known), (900_000, 999_999));
    }

    #[test]
    fn within_a_class_the_draw_is_linear() {
        assert_eq!(rank_ppm(COUNTS, Class::Meeting, u64::MAX / 2), 249_999);
        assert_eq!(rank_ppm(ClassCounts::default(), Class::Game, u64::MAX), 999_999, "alone");
    }

    #[test]
    fn the_spread_is_what_the_others_need() {
        assert_eq!(spread(50_000, 5000.0), Duration::from_millis(10_500));
        assert_eq!(spread(50_000, 0.0), SPREAD_MAX);
        let s = Duration::from_secs;
        assert!(spread_moved(s(10), s(13)) && spread_moved(s(10), s(7)) && !spread_moved(s(10), s(11)));
    }

    #[test]
    fn a_drain_is_paced() {
        assert_eq!(drain_slot(0, 1000.0), Duration::ZERO);
        assert_eq!(drain_slot(2500, 1000.0), Duration::from_millis(2500));
    }
}
