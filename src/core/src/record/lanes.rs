//! What was decided of each ordered sender: the order rule, duplicates, and what is remembered (design 7.2).

use std::collections::{HashMap, VecDeque};

use crate::{
    id::Lane,
    mutant::{self, Mutant},
    proto::{
        HeldOp,
        record::{self, Outcome},
    },
};

/// Outcomes kept: the last 256 of the session, and the last 64 of every lane (those an `Attached` may have to name).
/// One outcome is about 45 bytes encoded, so a lane's key is at most 11 KiB.
const SESSION_OUTCOMES: usize = 256;
const LANE_OUTCOMES: usize = 64;
/// Lanes evicted at once: one write may delete this many keys beside its puts (etcd allows 128 operations).
const EVICT_MAX: usize = 16;

/// Principal and lane.
pub(super) type Key = (String, Lane);

/// What the order rule says of an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its turn.
    New,
    /// Not its turn; this seq is expected.
    Gap(u64),
    /// Decided before, with the same digest.
    Dup(Outcome),
    /// Decided before, with another digest.
    Reused,
    /// Decided, but how is no longer known.
    Expired,
}

#[derive(Debug, Default)]
struct Slot {
    lane: record::Lane,
    /// How many of its outcomes are among the session's last 256.
    recent: usize,
    /// Order of last use.
    used: u64,
}

/// All lanes of a session.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    slots: HashMap<Key, Slot>,
    /// Lanes of the session's last outcomes, oldest first.
    recent: VecDeque<Key>,
    uses: u64,
}

impl Lanes {
    pub fn load(lanes: Vec<(String, Lane, record::Lane)>) -> Self {
        let mut table = Self::default();
        if mutant::on(Mutant::LaneTableTrimmed) {
            return table;
        }
        let mut order = Vec::new();
        for (principal, lane, stored) in lanes {
            let key = (principal, lane);
            order.extend(stored.outcomes.iter().map(|o| (o.decided_us, key.clone())));
            table.slots.insert(key, Slot { lane: stored, recent: 0, used: 0 });
        }
        order.sort_by_key(|(us, _)| *us);
        for (_, key) in order {
            table.touch(key);
        }
        table
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn get(&self, key: &Key) -> Option<&record::Lane> {
        self.slots.get(key).map(|s| &s.lane)
    }

    /// `ordered` = false for the deadline lane, which has no order rule.
    pub fn verdict(&self, key: &Key, held: &HeldOp, ordered: bool, evicted: bool) -> Verdict {
        let seq = held.op.as_ref().map_or(0, |o| o.seq);
        let Some(lane) = self.get(key) else {
            if evicted && held.client_attempt > 1 && ordered {
                return Verdict::Expired;
            }
            return if ordered { order(seq, 0, held.settled) } else { Verdict::New };
        };
        match lane.outcomes.binary_search_by_key(&seq, |o| o.seq) {
            // claims of two gateways for one deadline collapse, however they were made
            Ok(at) if !ordered || lane.outcomes[at].digest == held.digest => Verdict::Dup(lane.outcomes[at].clone()),
            Ok(_) => Verdict::Reused,
            Err(_) if !ordered => Verdict::New,
            Err(_) if seq <= lane.last_decided => Verdict::Expired,
            Err(_) => order(seq, lane.last_decided, held.settled),
        }
    }

    /// Remembers a decision.
    pub fn decide(&mut self, key: Key, outcome: Outcome) {
        let slot = self.slots.entry(key.clone()).or_default();
        slot.lane.last_decided = slot.lane.last_decided.max(outcome.seq);
        let at = slot.lane.outcomes.partition_point(|o| o.seq < outcome.seq);
        slot.lane.outcomes.insert(at, outcome);
        self.touch(key);
    }

    fn touch(&mut self, key: Key) {
        self.uses += 1;
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.recent += 1;
            slot.used = self.uses;
            slot.trim();
        }
        self.recent.push_back(key);
        if self.recent.len() > SESSION_OUTCOMES
            && let Some(old) = self.recent.pop_front()
            && let Some(slot) = self.slots.get_mut(&old)
        {
            slot.recent = slot.recent.saturating_sub(1);
            slot.trim();
        }
    }

    /// Forgets the least recently used lanes over `max`; their keys must go from the store in the same write.
    pub fn evict(&mut self, max: usize) -> Vec<Key> {
        let over = self.slots.len().saturating_sub(max).min(EVICT_MAX);
        if over == 0 {
            return Vec::new();
        }
        let mut by_use: Vec<_> = self.slots.iter().map(|(k, s)| (s.used, k)).collect();
        by_use.sort_unstable();
        let gone: Vec<Key> = by_use.into_iter().take(over).map(|(_, k)| k.clone()).collect();
        for key in &gone {
            self.slots.remove(key);
        }
        gone
    }
}

impl Slot {
    fn trim(&mut self) {
        let keep = self.recent.max(LANE_OUTCOMES);
        let over = self.lane.outcomes.len().saturating_sub(keep);
        self.lane.outcomes.drain(..over);
    }
}

/// The owner accepts iff seq == max(last_decided, settled - 1) + 1.
fn order(seq: u64, last_decided: u64, settled: u64) -> Verdict {
    let expected = last_decided.max(settled.saturating_sub(1)) + 1;
    if seq == expected || mutant::on(Mutant::NoLaneOrder) { Verdict::New } else { Verdict::Gap(expected) }
}

/// Rejected seqs among the last 64 of a lane, ascending.
pub(super) fn rejected(lane: &record::Lane) -> Vec<crate::proto::Rejected> {
    let from = lane.last_decided.saturating_sub(LANE_OUTCOMES as u64);
    let refused = lane.outcomes.iter().filter(|o| o.code != 0 && o.seq > from);
    refused
        .map(|o| crate::proto::Rejected { seq: o.seq, code: i32::try_from(o.code).unwrap_or(0), app_code: o.app_code })
        .collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::proto::OpId;

    fn op(seq: u64, settled: u64, digest: &'static [u8]) -> HeldOp {
        let op = Some(OpId { lane: Bytes::from_static(b"lanelane"), seq });
        HeldOp { op, settled, digest: Bytes::from_static(digest), client_attempt: 2, ..Default::default() }
    }

    fn key(n: usize) -> Key {
        (format!("p{n}"), Lane::any(b"lanelane").expect("lane"))
    }

    fn done(seq: u64, us: u64) -> Outcome {
        Outcome { seq, ver: seq, digest: Bytes::from_static(b"d"), decided_us: us, ..Default::default() }
    }

    #[test]
    fn the_order_rule() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.verdict(&key(0), &op(2, 0, b"d"), true, false), Verdict::Gap(1));
        assert_eq!(lanes.verdict(&key(0), &op(5, 5, b"d"), true, false), Verdict::New);
        assert_eq!(lanes.verdict(&key(0), &op(5, 5, b"d"), true, true), Verdict::Expired);
        lanes.decide(key(0), done(5, 1));
        assert_eq!(lanes.verdict(&key(0), &op(5, 5, b"d"), true, false), Verdict::Dup(done(5, 1)));
        assert_eq!(lanes.verdict(&key(0), &op(5, 5, b"x"), true, false), Verdict::Reused);
        assert_eq!(lanes.verdict(&key(0), &op(4, 0, b"d"), true, false), Verdict::Expired);
        assert_eq!(lanes.verdict(&key(0), &op(6, 5, b"d"), true, false), Verdict::New);
        assert_eq!(lanes.verdict(&key(0), &op(8, 5, b"d"), true, false), Verdict::Gap(6));
        assert_eq!(lanes.verdict(&key(0), &op(9, 0, b"d"), false, false), Verdict::New);
    }

    #[test]
    fn the_last_256_outcomes_stay_and_last_decided_always_does() {
        let mut lanes = Lanes::default();
        for seq in 1..=300 {
            lanes.decide(key(0), done(seq, seq));
        }
        assert_eq!(lanes.get(&key(0)).map(|l| l.outcomes.len()), Some(256));
        for n in 1..=300 {
            lanes.decide(key(n), done(1, 1000));
        }
        let lane = lanes.get(&key(0)).expect("kept");
        assert_eq!((lane.last_decided, lane.outcomes.len()), (300, LANE_OUTCOMES));
        assert_eq!(lanes.evict(300), [key(0)]);
        let stored = lanes.slots.iter().map(|(k, s)| (k.0.clone(), k.1, s.lane.clone())).collect();
        assert_eq!(Lanes::load(stored).len(), 300);
    }
}
