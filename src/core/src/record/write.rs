//! Deciding ops and writing what was decided: group commit of up to 32 ops, one write in flight (design 7.1, duties 2 and 3).

use prost::Message;

use super::{
    App, Authority, Deadline, Draft, Effect, OpView, Reject, WriteSet,
    authority::Phase,
    lanes::{Key, Verdict},
    queue::Queued,
};
use crate::{
    id::{DEADLINE_LANE, Lane, LinkId},
    mutant::{self, Mutant},
    proto::{
        Applied, Code, HeldOp, Stamp,
        gateway_msg::{M, OpEnvelope, Origin},
        owner_msg,
        record::{Checkpoint, Entry, Header, Outcome},
    },
    time::Now,
};

/// Ops in one write. With their lanes and two events each: 32 x 3 + header, checkpoint, trim = 99 of etcd's 128 operations.
const BATCH_OPS: usize = 32;
/// Events in one write: 56 + 32 lanes + 16 evictions + 3 stay below 128.
const BATCH_ENTRIES: usize = 56;
/// Bytes of payload in one write: etcd takes 1.5 MiB, and a checkpoint may be beside it.
const BATCH_BYTES: usize = 256 * 1024;

/// What one write will make true, and what is said then.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub ops: Vec<Queued>,
    pub epoch: u64,
    pub header: Header,
    entries: Vec<Entry>,
    lanes: Vec<Key>,
    bytes: usize,
    checkpoint: bool,
    replies: Vec<(LinkId, owner_msg::M)>,
    told: bool,
}

impl Batch {
    pub fn new(epoch: u64, header: Header) -> Self {
        Self { epoch, header, ..Self::default() }
    }

    fn writes(&self) -> bool {
        !self.entries.is_empty() || !self.lanes.is_empty()
    }

    fn is_full(&self) -> bool {
        self.ops.len() >= BATCH_OPS || self.entries.len() >= BATCH_ENTRIES || self.bytes >= BATCH_BYTES
    }
}

/// An op, taken apart.
struct Op {
    link: LinkId,
    held: HeldOp,
    key: Key,
    seq: u64,
    envelope: OpEnvelope,
}

impl<A: App> Authority<A> {
    /// Does what waits, until a write is in flight or nothing waits.
    pub(super) fn pump(&mut self, now: Now, out: &mut Vec<Effect>) {
        while self.phase == Phase::Active && self.batch.is_none() {
            let mut batch = Batch::new(self.epoch, self.header.clone());
            if self.app_is_due(now) {
                let drafts = self.app.handle_timeout(now);
                self.take_drafts(now, drafts, None, &mut batch);
            }
            self.gather(now, &mut batch, out);
            if !batch.writes() {
                return;
            }
            self.issue(now, batch, out);
        }
    }

    fn gather(&mut self, now: Now, batch: &mut Batch, out: &mut Vec<Effect>) {
        while !batch.is_full() {
            let Some(q) = self.queue.pop_front() else { return };
            match &q.msg {
                M::Op(_) => self.take_op(now, q, batch, out),
                M::Presence(_) | M::Detach(_) | M::Delivered(_) | M::ReplayDone(_) => self.handle_quiet(q.link, &q.msg),
                _ if batch.writes() => return self.queue.push_front(q),
                _ => self.handle_read(q.link, q.msg, out),
            }
        }
    }

    /// Decides one op. What it says waits for the batch's write, if there will be one.
    fn take_op(&mut self, now: Now, q: Queued, batch: &mut Batch, out: &mut Vec<Effect>) {
        let M::Op(envelope) = &q.msg else { return };
        if envelope.epoch != self.epoch {
            return self.not_owner(q.link, envelope.epoch, out);
        }
        let Some(op) = self.take_apart(q.link, envelope) else { return };
        let claim = op.held.op.as_ref().is_some_and(|o| o.lane == DEADLINE_LANE);
        let trusted = [Origin::Deadline, Origin::Resend].map(i32::from).contains(&op.envelope.origin);
        let forged = !claim && op.key.1.as_bytes().first() == Some(&b'!') || claim && !trusted;
        let verdict = self.lanes.verdict(&op.key, &op.held, !claim && !forged, self.header.lanes_evicted > 0);
        let reply = match verdict {
            Verdict::New if forged => {
                let no = Reject { code: Code::Forbidden, app_code: 0, detail: String::new() };
                Some(self.reject(now, &op, no, batch))
            }
            Verdict::New => self.decide(now, &op, claim, batch),
            Verdict::Gap(expected) => Some(self.say_no(&op, Code::Gap, Applied::No, |n| n.expected_seq = expected)),
            Verdict::Reused => Some(self.say_no(&op, Code::OpIdReused, Applied::No, |_| {})),
            Verdict::Expired => Some(self.say_no(&op, Code::OutcomeExpired, Applied::Unknown, |_| {})),
            Verdict::Dup(o) if o.code != 0 => {
                let code = i32::try_from(o.code).unwrap_or(0);
                Some(self.say_no(&op, Code::Rejected, Applied::No, |n| (n.code, n.app_code) = (code, o.app_code)))
            }
            Verdict::Dup(o) => Some(self.say_committed(&op, o.ver, true)),
        };
        if batch.writes() {
            batch.replies.extend(reply.map(|m| (q.link, m)));
            batch.ops.push(q);
        } else if let Some(msg) = reply {
            self.send(q.link, msg, out);
        }
    }

    fn take_apart(&self, link: LinkId, envelope: &OpEnvelope) -> Option<Op> {
        let held = HeldOp::decode(envelope.held.clone()).ok()?;
        let id = held.op.as_ref()?;
        let lane = Lane::any(&id.lane).ok()?;
        let seq = id.seq;
        if held.session != self.session.as_str() {
            return None;
        }
        Some(Op { link, key: (held.principal.clone(), lane), seq, held, envelope: envelope.clone() })
    }

    fn decide(&mut self, now: Now, op: &Op, claim: bool, batch: &mut Batch) -> Option<owner_msg::M> {
        let stamp = Stamp::decode(op.held.stamp.clone()).unwrap_or_default();
        let origin = if claim { Origin::Deadline.into() } else { op.envelope.origin };
        let next_ver = batch.header.ver + 1;
        let view = OpView { held: &op.held, stamp: &stamp, epoch: self.epoch, next_ver, origin };
        match self.app.decide(&view, now) {
            Ok(drafts) => {
                let events = !drafts.is_empty();
                self.take_drafts(now, drafts, Some(op), batch);
                let ver = batch.header.ver;
                self.store_outcome(now, op, Outcome { ver, ..Outcome::default() }, batch);
                let hears = events && self.links.get(&op.link).is_some_and(|l| l.joined);
                (!hears).then(|| self.say_committed(op, ver, false))
            }
            Err(no) if (no.code as i32) < 400 => Some(self.say_no(op, no.code, Applied::No, |n| n.detail = no.detail)),
            Err(no) => Some(self.reject(now, op, no, batch)),
        }
    }

    /// A final refusal is a decision: stored in the same write, answered the same for ever.
    fn reject(&mut self, now: Now, op: &Op, no: Reject, batch: &mut Batch) -> owner_msg::M {
        if !mutant::on(Mutant::RejectionNotStored) {
            let code = u32::try_from(no.code as i32).unwrap_or(0);
            self.store_outcome(now, op, Outcome { code, app_code: no.app_code, ..Outcome::default() }, batch);
        }
        self.say_no(op, no.code, Applied::No, |n| (n.app_code, n.detail) = (no.app_code, no.detail))
    }

    fn store_outcome(&mut self, now: Now, op: &Op, outcome: Outcome, batch: &mut Batch) {
        let outcome = Outcome { seq: op.seq, digest: op.held.digest.clone(), decided_us: now.wall.0, ..outcome };
        self.lanes.decide(op.key.clone(), outcome);
        if !batch.lanes.contains(&op.key) {
            batch.lanes.push(op.key.clone());
        }
    }

    /// Entries of drafts, applied at once so that the next op of the batch is decided upon them.
    fn take_drafts(&mut self, now: Now, drafts: Vec<Draft>, op: Option<&Op>, batch: &mut Batch) {
        let last = drafts.len().saturating_sub(1);
        for (i, draft) in drafts.into_iter().enumerate() {
            batch.header.ver += 1;
            let mut entry = Entry {
                ver: batch.header.ver,
                epoch: self.epoch,
                actor: draft.actor,
                content: u32::try_from(draft.content as i32).unwrap_or(0),
                payload: draft.payload,
                at_us: now.wall.0,
                flags: draft.flags,
                only: draft.only,
                facts: draft.facts,
                op_end: i == last,
                ..Entry::default()
            };
            if let Some(op) = op {
                entry.lane = op.held.op.as_ref().map(|o| o.lane.clone()).unwrap_or_default();
                entry.seq = op.seq;
                entry.principal.clone_from(&op.key.0);
                entry.digest = op.held.digest.clone();
                entry.stamp = op.held.stamp.clone();
                entry.attempt = op.envelope.attempt;
            }
            batch.bytes += entry.payload.len() + entry.facts.len();
            self.app.apply(&entry);
            batch.entries.push(entry);
        }
    }

    /// Makes the write of a batch.
    fn issue(&mut self, now: Now, mut batch: Batch, out: &mut Vec<Effect>) {
        let evicted = self.lanes.evict(self.config.lanes_max);
        batch.lanes.retain(|k| !evicted.contains(k));
        let header = &mut batch.header;
        header.epoch = self.epoch;
        if header.kind.is_empty() {
            header.kind.clone_from(&self.kind);
        }
        header.lanes = self.lanes.len() as u64;
        header.lanes_evicted += evicted.len() as u64;
        batch.checkpoint = header.ver - header.checkpoint_ver >= self.config.checkpoint_events
            || self.since_checkpoint + batch.bytes >= self.config.checkpoint_bytes;
        let mut trim_below = None;
        if batch.checkpoint {
            header.checkpoint_ver = header.ver;
            let stored = header.ver + 1 - header.tail_from.min(header.ver + 1);
            let over = stored.saturating_sub(self.config.tail_events as u64);
            header.tail_from += over;
            trim_below = (over > 0).then_some(header.tail_from);
        }
        let set = WriteSet {
            expect_rev: self.rev,
            header: header.clone(),
            entries: batch.entries.clone(),
            lanes: batch.lanes.iter().filter_map(|k| Some((k.0.clone(), k.1, self.lanes.get(k)?.clone()))).collect(),
            lanes_evicted: evicted,
            checkpoint: batch.checkpoint.then(|| Checkpoint {
                ver: header.ver,
                state: self.app.checkpoint(),
                epoch: self.epoch,
            }),
            trim_below,
        };
        if mutant::on(Mutant::AckBeforeWrite) {
            self.tell(&mut batch, out);
        }
        self.batch = Some(batch);
        self.asked(now);
        out.push(Effect::Write(Box::new(set)));
    }

    /// The batch is durable: events to everybody, then what its senders have to hear.
    pub(super) fn commit(&mut self, _now: Now, mut batch: Batch, out: &mut Vec<Effect>) {
        self.header = std::mem::take(&mut batch.header);
        if batch.epoch == self.epoch {
            self.tell(&mut batch, out);
        }
        if self.phase == Phase::Active {
            self.published = self.header.ver;
        }
        self.since_checkpoint = if batch.checkpoint { 0 } else { self.since_checkpoint + batch.bytes };
        self.tail.extend(batch.entries);
        self.tail.trim(self.config.tail_events);
        if batch.epoch == self.epoch && self.phase == Phase::Active {
            self.arm(out);
        }
    }

    fn tell(&self, batch: &mut Batch, out: &mut Vec<Effect>) {
        if std::mem::replace(&mut batch.told, true) {
            return;
        }
        for entry in &batch.entries {
            let event = self.event(entry, 0);
            for (link, _) in self.links.iter().filter(|(_, l)| l.joined) {
                self.send(*link, owner_msg::M::Event(event.clone()), out);
            }
        }
        for (link, msg) in batch.replies.drain(..) {
            self.send(link, msg, out);
        }
    }

    fn say_committed(&self, op: &Op, ver: u64, dup: bool) -> owner_msg::M {
        owner_msg::M::Committed(owner_msg::Committed {
            session: self.session.to_string(),
            epoch: self.epoch,
            op: op.held.op.clone(),
            ver,
            dup,
            ..Default::default()
        })
    }

    fn say_no(&self, op: &Op, code: Code, applied: Applied, more: impl FnOnce(&mut owner_msg::Nack)) -> owner_msg::M {
        let mut nack = owner_msg::Nack {
            session: self.session.to_string(),
            epoch: self.epoch,
            op: op.held.op.clone(),
            code: code.into(),
            applied: applied.into(),
            ..Default::default()
        };
        more(&mut nack);
        owner_msg::M::Nack(nack)
    }

    /// Tells gateways of the deadline to watch, when it is another one.
    pub(super) fn arm(&mut self, out: &mut Vec<Effect>) {
        let deadline = self.app.deadline();
        if deadline == self.armed {
            return;
        }
        let old = std::mem::replace(&mut self.armed, deadline);
        let msgs: Vec<_> = match (&self.armed, &old) {
            (Some(d), _) => vec![self.arm_msg(d, false)],
            (None, Some(d)) => vec![self.arm_msg(d, true)],
            (None, None) => Vec::new(),
        };
        for (link, _) in self.links.iter().filter(|(_, l)| l.joined) {
            msgs.iter().for_each(|m| self.send(*link, m.clone(), out));
        }
    }

    pub(super) fn arm_msg(&self, d: &Deadline, cancel: bool) -> owner_msg::M {
        owner_msg::M::ArmDeadline(owner_msg::ArmDeadline {
            session: self.session.to_string(),
            epoch: self.epoch,
            deadline_id: d.after_ver,
            participant: d.participant.clone(),
            after_ver: d.after_ver,
            budget_us: d.budget_us,
            at_us: d.at_us,
            cancel,
        })
    }
}
