//! Which client has which slot: a fixed table with bounded probing (design 9.3).
//!
//! A client that asks again gets the slot it has, and a ticket is honoured once. The anonymous are only remembered once
//! they come back with their ticket, so asking under ever new names fills nothing. A full neighbourhood forgets: the
//! ticket itself still says the slot, so what is lost is the memory of those that come without it.

use std::time::Duration;

use super::ticket::ClientTag;
use crate::time::Mono;

/// Entries, whatever the load: 65,536 x 24 B = 1.5 MiB. Slots of 13 s at 5,000/s; marks of honoured ones need 5 s.
pub const SLOTS: usize = 65_536;
/// Entries looked at per client: at three quarters full, 3 % find no room among 8, and are forgotten.
const PROBES: usize = 8;
const STRIKES_MAX: u8 = 0x7f;
const FULL: u64 = 0x80;

/// What is remembered of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    key: u64,
    /// Microseconds << 8 | told it is full << 7 | early asks.
    slot: u64,
    /// The latest slot that was used up here.
    honoured: Mono,
}

impl Entry {
    /// The moment it was told.
    pub(super) const fn slot(&self) -> Mono {
        Mono(self.slot >> 8)
    }

    /// Times it asked before its window.
    pub(super) const fn strikes(&self) -> u8 {
        (self.slot & 0x7f) as u8
    }

    /// It was told to come back then, but has no slot.
    pub(super) const fn is_full(&self) -> bool {
        self.slot & FULL != 0
    }

    /// Whether the slot is still to be used.
    pub(super) fn is_pending(&self) -> bool {
        self.slot() > self.honoured
    }

    /// The latest slot that was used up here; zero if none.
    pub(super) const fn honoured(&self) -> Mono {
        self.honoured
    }

    pub(super) fn with_slot(self, slot: Mono, full: bool) -> Self {
        Self { slot: slot.0 << 8 | if full { FULL } else { 0 } | u64::from(self.strikes()), ..self }
    }

    pub(super) fn struck(self) -> Self {
        if self.strikes() < STRIKES_MAX { Self { slot: self.slot + 1, ..self } } else { self }
    }

    /// Used up: what it had, and `slot`.
    pub(super) fn spent(self, slot: Mono) -> Self {
        let honoured = self.honoured.max(slot).max(self.slot());
        Self { slot: 0, honoured, ..self }
    }

    fn last(&self) -> Mono {
        self.slot().max(self.honoured)
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Slots {
    entries: Box<[Entry]>,
}

impl Slots {
    pub(super) fn new() -> Self {
        Self { entries: vec![Entry::default(); SLOTS].into_boxed_slice() }
    }

    /// What is remembered of a client; an empty entry of its own if nothing is.
    pub(super) fn find(&self, now: Mono, tag: &ClientTag, late: Duration) -> Entry {
        let key = key(tag);
        let fresh = Entry { key, ..Entry::default() };
        let found = self.places(key).map(|i| self.entries[i]).find(|e| e.key == key);
        found.filter(|e| e.last().after(late) >= now).unwrap_or(fresh)
    }

    /// Remembers, if there is room: in its own place, a free or outdated one, or (for what was honoured) in the place of
    /// the slot that is furthest ahead.
    pub(super) fn put(&mut self, now: Mono, late: Duration, entry: Entry) {
        let own = self.places(entry.key).find(|i| self.entries[*i].key == entry.key);
        let free =
            || self.places(entry.key).find(|i| self.entries[*i].last().after(late) < now || self.entries[*i].key == 0);
        let pushed = || {
            let pending = self.places(entry.key).filter(|i| self.entries[*i].is_pending() && !entry.is_pending());
            pending.max_by_key(|i| self.entries[*i].slot())
        };
        if let Some(i) = own.or_else(free).or_else(pushed) {
            self.entries[i] = entry;
        }
    }

    fn places(&self, key: u64) -> impl Iterator<Item = usize> + use<> {
        let mask = self.entries.len() - 1;
        let start = (key >> 32) as usize;
        (0..PROBES).map(move |i| (start + i) & mask)
    }
}

/// The head of the tag: a MAC or random, so nobody can choose where it lands. 0 marks a free entry.
fn key(tag: &ClientTag) -> u64 {
    let mut head = [0; 8];
    head.copy_from_slice(&tag[..8]);
    u64::from_be_bytes(head).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Duration = Duration::from_secs(5);

    fn tag(n: u64) -> ClientTag {
        let mut tag = [0; 12];
        tag[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        tag
    }

    #[test]
    fn remembers_until_the_window_is_over() {
        let mut slots = Slots::new();
        let entry = slots.find(Mono(0), &tag(1), LATE).with_slot(Mono(2_000_000), false);
        slots.put(Mono(0), LATE, entry.struck());
        let found = slots.find(Mono(7_000_000), &tag(1), LATE);
        assert_eq!((found.slot(), found.strikes(), found.is_pending()), (Mono(2_000_000), 1, true));
        assert!(!slots.find(Mono(7_000_001), &tag(1), LATE).is_pending());
    }

    #[test]
    fn strikes_stop_before_they_reach_the_slot() {
        let entry = (0..1000).fold(Entry::default().with_slot(Mono(77), true), |e, _| e.struck());
        assert_eq!((entry.slot(), entry.strikes(), entry.is_full()), (Mono(77), 127, true));
    }

    #[test]
    fn a_flood_takes_no_more_memory_and_loses_no_honoured_mark() {
        let mut slots = Slots::new();
        for n in 0..20_000 {
            slots.put(Mono(1), LATE, slots.find(Mono(1), &tag(n), LATE).spent(Mono(1)));
        }
        for n in 20_000..300_000 {
            slots.put(Mono(1), LATE, slots.find(Mono(1), &tag(n), LATE).with_slot(Mono(9_000_000), false));
        }
        assert_eq!(slots.entries.len() * size_of::<Entry>(), 1_572_864);
        let kept = (0..20_000).filter(|n| slots.find(Mono(1), &tag(*n), LATE).honoured() == Mono(1)).count();
        assert!(kept >= 19_980, "{kept}");
    }
}
