//! How classes share the schedule (design 9.3).
//!
//! Each class has a lane: a reserving GCRA whose pace is what the class may take *at the moment where its next slot lies*.
//! At a moment x, the most urgent lane that reaches x takes all of R but what is kept for the others that reach x; each of
//! these takes its own share. What a lane does not use is so used by the next one below, and with one lane busy that lane
//! has all of R.
//!
//! Slots of a lower lane may lie where a higher one reserves later: the schedule is then overbooked, higher classes pass
//! first and the others get the next slot. Nothing is lost to a promise that nobody keeps: for the anonymous, whose
//! slots cost nothing to ask for, only what they were seen to use lately is kept.

use std::time::Duration;

use super::{
    Class,
    gcra::{Pace, Reserved, ReservingGcra},
};
use crate::time::Mono;

/// Fractions of R; what one class does not use flows to those below it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    /// Clients that came in their slot and had to be sent away.
    pub ticket: f64,
    /// Resuming clients: games before meetings before documents.
    pub resuming: f64,
    /// Known clients without a session.
    pub known: f64,
    /// All others.
    pub anonymous: f64,
}

impl Default for Shares {
    fn default() -> Self {
        Self { ticket: 0.45, resuming: 0.30, known: 0.15, anonymous: 0.10 }
    }
}

/// What documents keep of R while games reserve the same moments (meetings likewise): almost nothing, but not nothing.
const BEHIND: f64 = 0.02;
/// A class counts as reaching this much further than its last slot for those below it: both wait at the horizon when the
/// offered load stays high, and neither may run past the other there.
const AHEAD: f64 = 1.1;
/// Over which the use of the anonymous is measured.
const USE_WINDOW_US: u64 = 1_000_000;

/// The lanes of all classes.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: [ReservingGcra; 6],
    anonymous: Recent,
}

impl Shares {
    pub(super) const fn of(&self, class: Class) -> f64 {
        match class {
            Class::Ticket => self.ticket,
            Class::Game | Class::Meeting | Class::Document => self.resuming,
            Class::Known => self.known,
            Class::Anonymous => self.anonymous,
        }
    }
}

impl Lanes {
    /// The moment the class's next reservation would get.
    pub(super) fn next(&self, now: Mono, class: Class, base: Pace) -> Mono {
        self.lanes[class as usize].next(now, base)
    }

    /// Reserves the next moment for the class.
    pub(super) fn reserve(&self, now: Mono, class: Class, by: (&Shares, Pace), horizon: Duration) -> Reserved {
        let (shares, base) = by;
        let pace = base.fraction(self.fraction(now, class, shares, base));
        self.lanes[class as usize].reserve(now, pace, horizon)
    }

    /// Whether a more urgent class has slots ahead.
    pub(super) fn is_contended_above(&self, now: Mono, class: Class, base: Pace) -> bool {
        Class::ALL[..class as usize].iter().any(|c| self.next(now, *c, base) > now)
    }

    /// Counts an admission of an anonymous client.
    pub(super) fn saw_anonymous(&mut self, now: Mono) {
        self.anonymous.count(now);
    }

    /// See [`ReservingGcra::repace`].
    pub(super) fn repace(&mut self, now: Mono, old: Pace, new: Pace) {
        for lane in &self.lanes {
            lane.repace(now, old, new);
        }
    }

    /// What of R the class may take where its next slot lies.
    fn fraction(&self, now: Mono, class: Class, shares: &Shares, base: Pace) -> f64 {
        let at = self.next(now, class, base);
        let reaches = |c: &Class| self.next(now, *c, base) > at;
        let (above, below) = (&Class::ALL[..class as usize], &Class::ALL[class as usize + 1..]);
        let resuming = [Class::Game, Class::Meeting, Class::Document];
        let ahead = |c: &Class| self.next(now, *c, base).since(now).mul_f64(AHEAD) > at.since(now);
        if above.iter().any(ahead) {
            let same_share = resuming.contains(&class) && above.iter().filter(|c| resuming.contains(c)).any(ahead);
            return if same_share { BEHIND } else { shares.of(class) };
        }
        let mut kept = 0.0;
        if !resuming.contains(&class) && below.iter().filter(|c| resuming.contains(c)).any(reaches) {
            kept += shares.resuming;
        }
        if class < Class::Known && reaches(&Class::Known) {
            kept += shares.known;
        }
        if class < Class::Anonymous && reaches(&Class::Anonymous) {
            kept += shares.anonymous.min(self.anonymous.per_s(now) * base.interval_s());
        }
        1.0 - kept
    }
}

/// A rate over the last one or two windows.
#[derive(Debug, Default)]
struct Recent {
    window: u64,
    this: u32,
    last: u32,
}

impl Recent {
    fn count(&mut self, now: Mono) {
        let window = now.0 / USE_WINDOW_US;
        if window != self.window {
            self.last = if window == self.window + 1 { self.this } else { 0 };
            (self.window, self.this) = (window, 0);
        }
        self.this = self.this.saturating_add(1);
    }

    fn per_s(&self, now: Mono) -> f64 {
        match (now.0 / USE_WINDOW_US).saturating_sub(self.window) {
            0 => f64::from(self.last.max(self.this)),
            1 => f64::from(self.this),
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    fn base() -> Pace {
        Pace::new(1000.0, Duration::from_millis(20))
    }

    /// Each class asks 4 times as often as R for 20 s; slots a second given to each once the horizon is reached.
    fn contend(classes: &[Class]) -> Vec<usize> {
        let (mut lanes, shares) = (Lanes::default(), Shares::default());
        let mut got = vec![0; classes.len()];
        for ms in 0..20_000 {
            let now = Mono(S + ms * 1000);
            (0..4).for_each(|_| lanes.saw_anonymous(now));
            for (n, class) in (0..4).flat_map(|_| classes.iter().enumerate()) {
                if let Reserved::At(at) = lanes.reserve(now, *class, (&shares, base()), Duration::from_secs(10)) {
                    got[n] += usize::from((15 * S..25 * S).contains(&at.0));
                }
            }
        }
        got.into_iter().map(|n| n / 10).collect()
    }

    fn about(got: usize, want: usize) {
        assert!(got.abs_diff(want) <= 25, "{got}, not {want}");
    }

    #[test]
    fn one_class_alone_has_all_of_it() {
        for class in Class::ALL {
            about(contend(&[class])[0], 1000);
        }
    }

    #[test]
    fn contended_classes_have_their_shares() {
        let got = contend(&[Class::Anonymous, Class::Known, Class::Game, Class::Ticket]);
        [(0, 100), (1, 150), (2, 300), (3, 450)].iter().for_each(|(i, want)| about(got[*i], *want));
    }

    #[test]
    fn unused_shares_flow_down() {
        let got = contend(&[Class::Anonymous, Class::Game]);
        about(got[0], 100);
        about(got[1], 900);
    }

    #[test]
    fn games_go_before_documents() {
        let got = contend(&[Class::Document, Class::Game]);
        assert!(got[1] >= 900 && got[0] <= 50, "{got:?}");
    }

    #[test]
    fn a_flood_of_the_anonymous_takes_nothing_from_those_above() {
        let (lanes, now, shares) = (Lanes::default(), Mono(S), Shares::default());
        for _ in 0..100_000 {
            let _ = lanes.reserve(now, Class::Anonymous, (&shares, base()), Duration::from_secs(30));
        }
        let slots = (0..1100).map(|_| lanes.reserve(now, Class::Known, (&shares, base()), Duration::from_secs(30)));
        let in_the_first_second = slots.filter(|r| matches!(r, Reserved::At(at) if at.0 <= 2 * S)).count();
        about(in_the_first_second, 1000);
    }
}
