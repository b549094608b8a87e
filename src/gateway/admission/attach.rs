//! How fast attaches go to one owner (design 9.4): a wave of clients must not reach an owner that has just taken over.
//!
//! An attach takes its turn in the owner's schedule when it comes, so nobody gains by asking again, and then waits,
//! connected, until the turn is there and the owner has answered enough of the others. Longer than the longest wait: it
//! is refused at once, with the wait it would have been.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use holdfast_core::time::Mono;

use super::settings::Settings;

/// Owners with a schedule. Above it the idle ones are forgotten: a schedule in the past says nothing. 4,096 x 100 B.
const OWNERS_MAX: usize = 4096;
/// Turns that may pile up while nobody attaches, in time: 64 attaches at 1,000/s go at once.
const BURST: Duration = Duration::from_millis(64);
/// How soon an attach whose turn has come looks again while the owner has too many to answer.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Told with a refusal where it is the answers that are late: when they come is not known.
const ANSWERS_LATE: Duration = Duration::from_secs(1);

/// Schedules by owner.
#[derive(Default)]
pub(super) struct Attaches(DashMap<Arc<str>, Arc<Owner>, foldhash::fast::RandomState>);

#[derive(Debug, Default)]
struct Owner {
    /// When the next turn is, µs of the process's clock.
    next: AtomicU64,
    unanswered: AtomicU32,
}

/// An attach that waits for its turn.
#[derive(Debug)]
pub struct Waiting {
    owner: Arc<Owner>,
    turn: Mono,
    deadline: Mono,
}

/// An attach under way at its owner, until dropped.
#[derive(Debug)]
pub struct UnderWay(Arc<Owner>);

/// What becomes of a waiting attach now.
#[derive(Debug)]
pub enum Turn {
    /// It goes.
    Go(UnderWay),
    /// Ask again then.
    At(Mono),
    /// Not in time; worth trying again after this.
    TooLate(Duration),
}

impl Attaches {
    /// Takes a turn at `owner`; the error is how long it would have to wait.
    pub(super) fn queue(&self, now: Mono, owner: &str, s: &Settings) -> Result<Waiting, Duration> {
        let owner = self.owner(now, owner);
        let each = 1_000_000 / u64::from(s.attach_per_s.max(1));
        let earliest = now.0.saturating_sub(u64::try_from(BURST.as_micros()).unwrap_or(0));
        let latest = now.after(s.attach_wait).0;
        let turn = |next: u64| next.max(earliest);
        let taken = owner.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            (turn(next) <= latest).then(|| turn(next) + each)
        });
        match taken {
            Ok(next) => Ok(Waiting { owner, turn: Mono(turn(next).max(now.0)), deadline: Mono(latest) }),
            Err(next) => Err(Mono(next).since(now)),
        }
    }

    fn owner(&self, now: Mono, name: &str) -> Arc<Owner> {
        if let Some(known) = self.0.get(name) {
            return known.clone();
        }
        if self.0.len() >= OWNERS_MAX {
            self.0.retain(|_, o| o.next.load(Ordering::Relaxed) > now.0 || Arc::strong_count(o) > 1);
        }
        self.0.entry(name.into()).or_default().clone()
    }
}

impl Waiting {
    /// Looks whether it may go. `None` of it is left after `Go` and `TooLate`: drop it.
    pub fn look(&self, now: Mono, unanswered_max: u32) -> Turn {
        if self.turn > now {
            return Turn::At(self.turn);
        }
        let room = |n: u32| (n < unanswered_max.max(1)).then_some(n + 1);
        if self.owner.unanswered.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok() {
            return Turn::Go(UnderWay(self.owner.clone()));
        }
        if now >= self.deadline {
            Turn::TooLate(ANSWERS_LATE)
        } else {
            Turn::At(now.after(LOOK_AGAIN).min(self.deadline))
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.unanswered.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { attach_per_s: 1000, attach_inflight: 256, ..Settings::default() }
    }

    #[test]
    fn turns_come_at_the_rate_and_one_too_far_away_is_refused() {
        let (all, now, s) = (Attaches::default(), Mono(10_000_000), settings());
        let waiting: Vec<Waiting> = (0..2000).map_while(|_| all.queue(now, "o-1", &s).ok()).collect();
        // 64 at once, one now, and a thousand within the second.
        assert_eq!(waiting.len(), 1065);
        assert_eq!(waiting.iter().filter(|w| w.turn == now).count(), 65);
        let refused = all.queue(now, "o-1", &s).unwrap_err();
        assert_eq!(refused, Duration::from_millis(1001));
        assert!(all.queue(now, "o-2", &s).is_ok(), "another owner");
        assert!(matches!(waiting[1064].look(now, 256), Turn::At(at) if at == Mono(11_000_000)));
    }

    #[test]
    fn unanswered_attaches_are_bounded_and_answers_make_room() {
        let (all, now, s) = (Attaches::default(), Mono(10_000_000), settings());
        let one = all.queue(now, "o", &s).unwrap();
        let two = all.queue(now, "o", &s).unwrap();
        let Turn::Go(under_way) = one.look(now, 1) else { panic!() };
        assert!(matches!(two.look(now, 1), Turn::At(at) if at == now.after(LOOK_AGAIN)));
        assert!(matches!(two.look(now.after(s.attach_wait), 1), Turn::TooLate(_)));
        drop(under_way);
        assert!(matches!(two.look(now, 1), Turn::Go(_)));
    }

    #[test]
    fn owners_are_bounded() {
        let (all, s) = (Attaches::default(), settings());
        for n in 0..3 * OWNERS_MAX as u64 {
            drop(all.queue(Mono(10_000_000 + n * 100_000), &format!("o-{n}"), &s));
        }
        assert!(all.0.len() <= OWNERS_MAX, "{}", all.0.len());
    }
}
