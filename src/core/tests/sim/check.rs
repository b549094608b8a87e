//! What must be true (design 15), checked where it can be seen: at the store, on the links, at the clients.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use holdfast_core::{
    proto::{Applied, Code, OpId, Pos, gateway_msg, owner_msg, record::Entry},
    record::WriteSet,
};

use crate::{app::link, show, store::Record};

/// What was last seen of a session at a gateway.
#[derive(Clone, Debug, Default)]
pub struct Binding {
    /// Life and epoch it is bound to.
    pub bound: Option<(u64, u64)>,
    /// Held ops: (lane, seq), when they arrived.
    pub held: BTreeMap<(Vec<u8>, u64), u64>,
    /// The owner said that its store is not well.
    pub sick: bool,
}

/// The whole truth about one session.
#[derive(Debug, Default)]
pub struct Truth {
    /// Every event there ever was; index + 1 = ver.
    pub log: Vec<Entry>,
    chains: Vec<u64>,
    /// Version of the event that carries an op's echo.
    pub ops: BTreeMap<(Bytes, u64), u64>,
    last: BTreeMap<Bytes, u64>,
    /// Ops some client was told are finally refused and not applied.
    dead: BTreeSet<(Bytes, u64)>,
}

/// All that must be true.
#[derive(Debug)]
pub struct Oracle {
    /// The first promise that was broken.
    pub violation: Option<(u32, String)>,
    /// By session.
    pub truth: Vec<Truth>,
    held: BTreeMap<(usize, usize, Bytes, u64), Bytes>,
    /// Gateways that sent an op.
    holders: BTreeMap<(usize, Bytes, u64), BTreeSet<usize>>,
    nacked: BTreeSet<(usize, String, Bytes, u64)>,
}

fn parts(op: Option<&OpId>) -> (Bytes, u64) {
    op.map_or((Bytes::new(), 0), |o| (o.lane.clone(), o.seq))
}

impl Oracle {
    /// Nothing has happened.
    pub fn new(sessions: usize) -> Self {
        let truth = std::iter::repeat_with(Truth::default).take(sessions).collect();
        Self { violation: None, truth, held: BTreeMap::new(), holders: BTreeMap::new(), nacked: BTreeSet::new() }
    }

    /// Invariant `number` of design 15 is broken (0 = a contract of the code). The first one counts.
    pub fn violate(&mut self, number: u32, what: String) {
        self.violation.get_or_insert((number, what));
    }

    fn must(&mut self, number: u32, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violate(number, what());
        }
    }

    /// Ops that two gateways sent.
    pub fn two_holders(&self) -> usize {
        self.holders.values().filter(|g| g.len() > 1).count()
    }

    /// The chain over all events up to `ver`.
    pub fn chain(&self, session: usize, ver: u64) -> Option<u64> {
        if ver == 0 { Some(0) } else { self.truth[session].chains.get(ver as usize - 1).copied() }
    }

    /// A write succeeds: dense versions, growing epochs (2 at most once, 6 lane order, 7 dead stays dead).
    pub fn written(&mut self, session: usize, record: &Record, set: &WriteSet) {
        let (epoch, ver) = (set.header.epoch, set.header.ver);
        self.must(0, epoch >= record.epoch(), || format!("s{session}: epoch falls to {epoch}"));
        let dense = ver == record.ver() + set.entries.len() as u64;
        self.must(0, dense, || format!("s{session}: ver {ver} after {} + {}", record.ver(), set.entries.len()));
        for (i, entry) in set.entries.iter().enumerate() {
            let expected = record.ver() + 1 + i as u64;
            self.must(0, entry.ver == expected, || format!("s{session}: entry {} is not {expected}", entry.ver));
            self.must(0, entry.epoch == epoch, || format!("s{session}: entry {expected} of epoch {}", entry.epoch));
            self.entry(session, entry);
        }
    }

    fn entry(&mut self, session: usize, entry: &Entry) {
        let key = (entry.lane.clone(), entry.seq);
        let name = format!("s{session} op {}:{} at ver {}", show::lane(&key.0), key.1, entry.ver);
        let truth = &mut self.truth[session];
        let chain = link(truth.chains.last().copied().unwrap_or(0), entry.ver, &entry.payload);
        truth.chains.push(chain);
        truth.log.push(entry.clone());
        if key.0.is_empty() || !entry.op_end {
            return;
        }
        let before = truth.ops.insert(key.clone(), entry.ver);
        let last = truth.last.insert(key.0.clone(), key.1).unwrap_or(0);
        let dead = truth.dead.contains(&key);
        let own = entry.payload.get(2..10) == Some(&key.1.to_le_bytes()[..]);
        self.must(2, before.is_none(), || format!("{name} is in the record twice, first at {before:?}"));
        self.must(6, key.1 > last, || format!("{name} comes after seq {last}"));
        self.must(7, !dead, || format!("{name}: its client was told that it is not applied"));
        self.must(13, own, || format!("{name} has the payload of another op"));
    }

    /// A message leaves an owner (3: nothing before its write; duty 1: nothing of an unclaimed epoch).
    pub fn leaves_owner(&mut self, session: usize, record: &Record, msg: &owner_msg::M) {
        use owner_msg::M;
        let pos = |p: &Option<Pos>| p.unwrap_or_default();
        let (epoch, ver) = match msg {
            M::Event(m) => (pos(&m.at).epoch, pos(&m.at).ver.max(m.skip_to)),
            M::Committed(m) => (m.epoch, m.ver),
            M::Nack(m) if (m.code as u32) >= 400 => (m.epoch, 0),
            M::Joined(m) => (pos(&m.head).epoch, pos(&m.head).ver),
            M::Attached(m) => (m.epoch, pos(&m.head).ver),
            M::State(m) => (pos(&m.at).epoch, pos(&m.at).ver),
            _ => return,
        };
        let claimed = record.epoch();
        self.must(3, epoch <= claimed, || {
            format!("s{session}: epoch {epoch} speaks, {claimed} is claimed: {}", show::down(msg))
        });
        let head = self.truth[session].log.len() as u64;
        self.must(3, ver <= head, || {
            format!("s{session}: ver {ver} leaves the owner, {head} is written: {}", show::down(msg))
        });
        match msg {
            M::Event(m) if m.skip_to == 0 => self.is_event(session, pos(&m.at).ver, &m.payload),
            M::Committed(m) => self.is_committed(session, &parts(m.op.as_ref()), m.ver, "Committed"),
            M::Nack(m) => self.is_refusal(session, record, m),
            M::State(m) => self.is_state(session, pos(&m.at).ver, &m.payload),
            _ => {}
        }
    }

    /// The event at `ver` has this payload.
    pub fn is_event(&mut self, session: usize, ver: u64, payload: &Bytes) {
        let truth = self.truth[session].log.get((ver as usize).wrapping_sub(1)).map(|e| e.payload.clone());
        self.must(3, truth.as_ref() == Some(payload), || format!("s{session}: event {ver} is not the record's"));
    }

    /// The state at `ver` is this.
    pub fn is_state(&mut self, session: usize, ver: u64, payload: &Bytes) {
        let truth = self.chain(session, ver).map(u64::to_le_bytes);
        self.must(4, truth.as_ref().map(|t| &t[..]) == Some(payload), || {
            format!("s{session}: state at {ver} is wrong")
        });
    }

    /// 1: the op is in the record, at `ver` (0 = anywhere).
    pub fn is_committed(&mut self, session: usize, key: &(Bytes, u64), ver: u64, who: &str) {
        let truth = self.truth[session].ops.get(key).copied();
        let holds = truth.is_some_and(|t| ver == 0 || t == ver);
        self.must(1, holds, || {
            format!(
                "s{session} {who}: op {}:{} at ver {ver}; the record has it at {truth:?}",
                show::lane(&key.0),
                key.1
            )
        });
    }

    fn is_refusal(&mut self, session: usize, record: &Record, nack: &owner_msg::Nack) {
        let key = parts(nack.op.as_ref());
        if nack.applied() == Applied::No {
            let there = self.truth[session].ops.contains_key(&key);
            let final_word = (nack.code as u32) >= 400 && nack.code() != Code::OpIdReused;
            self.must(7, !(there && final_word), || {
                format!("s{session}: {} is in the record", show::down(&owner_msg::M::Nack(nack.clone())))
            });
        }
        if matches!(nack.code(), Code::Rejected | Code::BaseConflict | Code::Forbidden) {
            let mut lanes = record.lanes.iter().filter(|((_, l), _)| l.as_bytes() == key.0).map(|(_, v)| v);
            let stored = lanes.any(|l| l.outcomes.iter().any(|o| o.seq == key.1 && o.ver == 0));
            self.must(3, stored, || format!("s{session}: refusal of {}:{} is not stored", show::lane(&key.0), key.1));
        }
    }

    /// 7: a client was told that this op is finally refused and not applied.
    pub fn is_dead(&mut self, session: usize, key: (Bytes, u64)) {
        let there = self.truth[session].ops.contains_key(&key);
        self.must(7, !there, || {
            format!("s{session} op {}:{} was refused, and is in the record", show::lane(&key.0), key.1)
        });
        self.truth[session].dead.insert(key);
    }

    /// A message leaves a gateway (9: a held op's bytes never change).
    pub fn leaves_gateway(&mut self, gw: usize, session: usize, msg: &gateway_msg::M) {
        let gateway_msg::M::Op(envelope) = msg else { return };
        let (lane, seq) = parts(show::held(envelope).op.as_ref());
        self.holders.entry((session, lane.clone(), seq)).or_default().insert(gw);
        self.nacked.remove(&(gw, format!("s{session}"), lane.clone(), seq));
        let key = (gw, session, lane, seq);
        if envelope.attempt <= 1 {
            self.held.insert(key, envelope.held.clone());
            return;
        }
        let same = self.held.get(&key) == Some(&envelope.held);
        self.must(9, same, || {
            format!(
                "gateway {gw} s{session} op {}:{}: other bytes on attempt {}",
                show::lane(&key.2),
                seq,
                envelope.attempt
            )
        });
    }

    /// A message reaches a gateway: a nack is a reason to let an op go.
    pub fn reaches_gateway(&mut self, gw: usize, msg: &owner_msg::M) {
        if let owner_msg::M::Nack(m) = msg {
            let (lane, seq) = parts(m.op.as_ref());
            self.nacked.insert((gw, m.session.clone(), lane, seq));
        }
    }

    /// Whether an owner's nack of this op has reached this gateway.
    pub fn was_nacked(&self, gw: usize, session: usize, key: &(Vec<u8>, u64)) -> bool {
        self.nacked.contains(&(gw, format!("s{session}"), Bytes::copy_from_slice(&key.0), key.1))
    }

    /// Whether the op is in the record or finally refused in it.
    pub fn is_decided(&self, session: usize, record: &Record, key: &(Vec<u8>, u64)) -> bool {
        let lanes = record.lanes.iter().filter(|((_, l), _)| l.as_bytes() == key.0).map(|(_, v)| v);
        self.truth[session].ops.contains_key(&(Bytes::copy_from_slice(&key.0), key.1))
            || lanes.into_iter().any(|l| l.last_decided >= key.1)
    }
}
