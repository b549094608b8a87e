//! Reactions: relayed with their age, never stored, merged when there are many (design 4.7).

use std::{collections::BTreeMap, time::Duration};

use crate::{
    proto::{ReactionCount, gateway_msg, owner_msg},
    time::Mono,
};

/// Above this many a second a class is merged.
const SINGLE_PER_S: u32 = 20;
/// Merged reactions leave this often.
const WINDOW: Duration = Duration::from_millis(100);
/// Classes in use at once; further ones are dropped.
const CLASSES_MAX: usize = 64;
/// Carries a position, of which a count would be no use: never merged.
const CURSOR: &str = "cursor";

#[derive(Debug, Default)]
struct Class {
    second: Mono,
    seen: u32,
    merged: u32,
    /// When the oldest merged one was made, by our clock.
    oldest: Mono,
}

/// What is under way.
#[derive(Debug, Default)]
pub(super) struct Reactions {
    classes: BTreeMap<String, Class>,
    flush_at: Option<Mono>,
}

impl Reactions {
    pub fn poll_timeout(&self) -> Option<Mono> {
        self.flush_at
    }

    /// Takes one in: itself, if it goes out alone and at once.
    pub fn add(&mut self, now: Mono, r: &gateway_msg::Reaction, actor: &str) -> Option<owner_msg::Reaction> {
        let single = |r: &gateway_msg::Reaction| owner_msg::Reaction {
            session: r.session.clone(),
            epoch: r.epoch,
            age_us: r.age_us,
            class: r.class.clone(),
            actor: actor.to_owned(),
            content: r.content,
            payload: r.payload.clone(),
            counts: r.counts.clone(),
        };
        if r.class == CURSOR {
            return Some(single(r));
        }
        if !self.classes.contains_key(&r.class) && self.classes.len() >= CLASSES_MAX {
            self.classes.retain(|_, c| c.merged > 0 || now.since(c.second) < Duration::from_secs(1));
            if self.classes.len() >= CLASSES_MAX {
                return None;
            }
        }
        let class = self.classes.entry(r.class.clone()).or_default();
        if now.since(class.second) >= Duration::from_secs(1) {
            (class.second, class.seen) = (now, 0);
        }
        let count = r.counts.iter().find(|c| c.class == r.class).map_or(1, |c| c.count);
        class.seen = class.seen.saturating_add(count);
        if class.seen <= SINGLE_PER_S && class.merged == 0 {
            return Some(single(r));
        }
        let made = Mono(now.0.saturating_sub(u64::from(r.age_us)));
        class.oldest = if class.merged == 0 { made } else { class.oldest.min(made) };
        class.merged = class.merged.saturating_add(count);
        self.flush_at.get_or_insert(now.after(WINDOW));
        None
    }

    /// The merged ones, when their window is over.
    pub fn flush(&mut self, now: Mono, session: &str, epoch: u64) -> Vec<owner_msg::Reaction> {
        if self.flush_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.flush_at = None;
        let merged = self.classes.iter_mut().filter(|(_, c)| c.merged > 0);
        merged
            .map(|(name, c)| owner_msg::Reaction {
                session: session.to_owned(),
                epoch,
                age_us: u32::try_from(now.since(c.oldest).as_micros()).unwrap_or(u32::MAX),
                class: name.clone(),
                counts: vec![ReactionCount { class: name.clone(), count: std::mem::take(&mut c.merged) }],
                ..Default::default()
            })
            .collect()
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twenty_first_in_a_second_is_merged_and_leaves_with_the_oldest_age() {
        let mut all = Reactions::default();
        let r = gateway_msg::Reaction { class: "applause".into(), age_us: 7, epoch: 3, ..Default::default() };
        let alone = (0..30).filter(|_| all.add(Mono(5_000_000), &r, "p").is_some()).count();
        assert_eq!(alone, 20);
        assert_eq!(all.poll_timeout(), Some(Mono(5_100_000)));
        assert_eq!(all.flush(Mono(5_099_999), "s", 3), []);
        let out = all.flush(Mono(5_100_000), "s", 3);
        assert_eq!(out.len(), 1);
        assert_eq!((out[0].counts[0].count, out[0].age_us, out[0].epoch), (10, 100_007, 3));
        assert_eq!(all.poll_timeout(), None);
    }
}
