//! The newest events of the record, in memory, and whether they answer a catch-up.

use std::collections::VecDeque;

use crate::proto::{Pos, record::Entry};

/// Events in ver order, without a hole.
#[derive(Debug, Default)]
pub(super) struct Tail(VecDeque<Entry>);

/// How somebody with an older position is brought up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resume {
    /// The events after this ver.
    Events(u64),
    /// The whole state.
    State,
    /// It has everything.
    Nothing,
}

impl Tail {
    /// Takes the stored tail, or says why it is not one that ends at `ver`.
    pub fn load(entries: Vec<Entry>, ver: u64, checkpoint: u64) -> Result<Self, String> {
        let hole = entries.windows(2).find(|w| w[1].ver != w[0].ver + 1);
        if let Some(w) = hole {
            return Err(format!("entries {} and {} are stored without those between", w[0].ver, w[1].ver));
        }
        match (entries.first(), entries.last()) {
            (Some(first), Some(last)) if last.ver == ver && first.ver <= checkpoint + 1 => Ok(Self(entries.into())),
            (None, None) if ver == checkpoint => Ok(Self::default()),
            (first, last) => Err(format!(
                "header at {ver}, checkpoint at {checkpoint}, entries {:?}..={:?}",
                first.map(|e| e.ver),
                last.map(|e| e.ver)
            )),
        }
    }

    pub fn extend(&mut self, entries: Vec<Entry>) {
        self.0.extend(entries);
    }

    /// Keeps the newest `max`.
    pub fn trim(&mut self, max: usize) {
        let over = self.0.len().saturating_sub(max);
        self.0.drain(..over);
    }

    pub fn first_ver(&self) -> Option<u64> {
        self.0.front().map(|e| e.ver)
    }

    /// Entries with ver > `ver`.
    pub fn after(&self, ver: u64) -> impl Iterator<Item = &Entry> {
        let from = self.0.partition_point(|e| e.ver <= ver);
        self.0.range(from..)
    }

    fn at(&self, ver: u64) -> Option<&Entry> {
        self.0.binary_search_by_key(&ver, |e| e.ver).ok().and_then(|i| self.0.get(i))
    }

    /// What brings `have` to `head`. A position whose event was written later than its epoch speaks of a record that has
    /// since gone back (design 4.4 `diverged`): only a state helps.
    pub fn resume(&self, have: Pos, head: u64) -> Resume {
        let diverged = have.ver > head || self.at(have.ver).is_some_and(|e| e.epoch > have.epoch);
        if have.epoch == 0 || diverged {
            return Resume::State;
        }
        if have.ver == head {
            return Resume::Nothing;
        }
        if self.first_ver().is_some_and(|f| f <= have.ver + 1) { Resume::Events(have.ver) } else { Resume::State }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ver: u64, epoch: u64) -> Entry {
        Entry { ver, epoch, ..Default::default() }
    }

    #[test]
    fn events_only_if_all_of_them_are_there_and_of_the_same_past() {
        let tail = Tail::load(vec![entry(5, 2), entry(6, 2), entry(7, 4)], 7, 4).expect("dense");
        let resume = |epoch, ver| tail.resume(Pos { epoch, ver }, 7);
        assert_eq!(resume(0, 0), Resume::State);
        assert_eq!(resume(1, 3), Resume::State);
        assert_eq!(resume(1, 4), Resume::Events(4));
        assert_eq!(resume(2, 6), Resume::Events(6));
        assert_eq!(resume(1, 6), Resume::State);
        assert_eq!(resume(3, 7), Resume::State);
        assert_eq!(resume(4, 7), Resume::Nothing);
        assert_eq!(resume(4, 8), Resume::State);
    }

    #[test]
    fn a_record_with_a_hole_is_refused() {
        assert!(Tail::load(vec![entry(1, 1), entry(3, 1)], 3, 0).is_err());
        assert!(Tail::load(vec![entry(2, 1)], 2, 0).is_err());
        assert!(Tail::load(vec![entry(1, 1)], 2, 0).is_err());
        assert!(Tail::load(vec![], 1, 0).is_err());
    }
}
