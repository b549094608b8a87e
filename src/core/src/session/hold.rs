//! The hold: ops forwarded (or about to be) and not yet settled, in arrival order (design 6.1).

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

use crate::{
    id::{ConnId, Lane},
    time::{Mono, Wall},
};

/// One held op. `bytes` never change; everything else is envelope.
#[derive(Debug)]
pub(super) struct Held {
    pub principal: Arc<str>,
    pub participant: Arc<str>,
    pub lane: Lane,
    pub seq: u64,
    pub digest: Bytes,
    pub bytes: Bytes,
    pub arrived_at: Wall,
    pub arrived: Mono,
    /// The connection that will hear of it; it may be gone.
    pub conn: ConnId,
    /// The client's newest attempt.
    pub attempt: u32,
    /// Times it was written to a link.
    pub sends: u32,
    /// Must be (re)sent as soon as its turn comes.
    pub pending: bool,
}

/// All held ops of one session. Bounded by `Limits::held_ops_max` and the wiring's budgets.
#[derive(Debug, Default)]
pub(super) struct Hold {
    entries: BTreeMap<u64, Held>,
    keys: BTreeMap<(Lane, u64), u64>,
    next: u64,
}

impl Hold {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn get(&self, lane: Lane, seq: u64) -> Option<&Held> {
        self.entries.get(self.keys.get(&(lane, seq))?)
    }

    pub fn get_mut(&mut self, lane: Lane, seq: u64) -> Option<&mut Held> {
        self.entries.get_mut(self.keys.get(&(lane, seq))?)
    }

    pub fn insert(&mut self, held: Held) {
        let at = self.next;
        self.next += 1;
        self.keys.insert((held.lane, held.seq), at);
        self.entries.insert(at, held);
    }

    pub fn remove(&mut self, lane: Lane, seq: u64) -> Option<Held> {
        let at = self.keys.remove(&(lane, seq))?;
        self.entries.remove(&at)
    }

    pub fn lane_len(&self, lane: Lane) -> usize {
        self.keys.range((lane, 0)..=(lane, u64::MAX)).count()
    }

    /// Whose lane this is, as far as held ops say.
    pub fn lane_principal(&self, lane: Lane) -> Option<&Arc<str>> {
        let (_, at) = self.keys.range((lane, 0)..=(lane, u64::MAX)).next()?;
        self.entries.get(at).map(|h| &h.principal)
    }

    /// In arrival order.
    pub fn iter(&self) -> impl Iterator<Item = &Held> {
        self.entries.values()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        self.entries.values_mut()
    }

    /// When the oldest arrived.
    pub fn oldest(&self) -> Option<Mono> {
        self.entries.first_key_value().map(|(_, h)| h.arrived)
    }

    /// Ids of all that `is` says, in arrival order.
    pub fn select(&self, is: impl Fn(&Held) -> bool) -> Vec<(Lane, u64)> {
        self.iter().filter(|h| is(h)).map(|h| (h.lane, h.seq)).collect()
    }
}
