//! How an op leaves the hold: echo, `Committed`, a nack, or its time (design 6.1).

use crate::{
    id::Lane,
    proto::{
        self, Applied, Code, Pos, gateway_msg, owner_msg,
        server_frame::{self, F},
    },
    session::{Action, Observation, Session, Store, attach::deliver, hold::Held},
    time::Now,
};

impl Session {
    /// The op is in the record at `ver`. `echoed`: its client hears of it by the event itself.
    pub(super) fn settle(
        &mut self,
        now: Now,
        op: &proto::OpId,
        actor: Option<&str>,
        out: &mut Vec<Action>,
    ) -> Option<Held> {
        let lane = Lane::any(&op.lane).ok()?;
        if self.resume_at.get(&lane).is_some_and(|n| *n <= op.seq) {
            self.resume_at.remove(&lane);
        }
        let held = self.hold.get(lane, op.seq)?;
        // a lane is a secret of its sender; another's event that names it settles nothing
        if actor.is_some_and(|a| !a.is_empty() && !held.participant.is_empty() && *a != *held.participant) {
            return None;
        }
        let held = self.release(lane, op.seq, out)?;
        let op_to_echo_us = now.mono.0.saturating_sub(held.arrived.0);
        out.push(Action::Observe(Observation::Settled { op_to_echo_us }));
        if held.sends > 1
            && let Some(lost) = self.lost_at.take()
        {
            out.push(Action::Observe(Observation::Resumed { us: now.mono.0.saturating_sub(lost.0) }));
        }
        Some(held)
    }

    fn release(&mut self, lane: Lane, seq: u64, out: &mut Vec<Action>) -> Option<Held> {
        let held = self.hold.remove(lane, seq)?;
        let bytes = i64::try_from(held.bytes.len()).unwrap_or(i64::MAX);
        out.push(Action::Held { ops: -1, bytes: -bytes });
        Some(held)
    }

    /// An event of the owner names an op: settle it, and ack it where the event itself will not be seen.
    pub(super) fn echo(&mut self, now: Now, event: &owner_msg::Event, out: &mut Vec<Action>) {
        let Some(op) = &event.op else { return };
        let ver = event.at.unwrap_or_default().ver;
        let Some(held) = self.settle(now, op, Some(&event.actor), out) else { return };
        let seen = self.atts.get(&held.conn).is_none_or(|a| {
            let theirs = event.only.is_empty() || event.only.iter().any(|p| **p == *a.client.participant);
            let heard = if event.to_att == 0 { a.is_live() } else { event.to_att == a.client.att };
            a.lane() == held.lane && theirs && heard && ver > a.ver
        });
        if !seen {
            self.ack(now, &held, ver, false, out);
        }
    }

    /// `Committed`: the op is in the record, and no event of ours says so (or said so before).
    pub(super) fn committed(&mut self, now: Now, msg: &owner_msg::Committed, out: &mut Vec<Action>) {
        let Some(op) = &msg.op else { return };
        if let Some(held) = self.settle(now, op, None, out) {
            self.ack(now, &held, msg.ver, msg.dup, out);
        } else if let Some(att) = self.atts.values_mut().find(|a| a.lane().as_bytes() == op.lane) {
            // the hold had given up on it (206); the echo wins
            let ack = server_frame::Ack {
                session: self.id.to_string(),
                op: att.own(op),
                at: Some(Pos { epoch: msg.epoch, ver: msg.ver }),
                dup: true,
                held_us: 0,
            };
            let conn = att.conn();
            att.defer(ack);
            self.flush_acks(conn, out);
        }
    }

    fn ack(&mut self, now: Now, held: &Held, ver: u64, dup: bool, out: &mut Vec<Action>) {
        let epoch = self.binding.as_ref().map_or(self.epoch, |b| b.epoch);
        let session = self.id.to_string();
        let Some(att) = self.atts.get_mut(&held.conn) else { return };
        let op = crate::message::op_id(held.lane.as_bytes(), held.seq);
        let ack = server_frame::Ack {
            session,
            op: att.own(&op).or(Some(op)),
            at: Some(Pos { epoch, ver }),
            dup,
            held_us: u32::try_from(now.mono.0.saturating_sub(held.arrived.0)).unwrap_or(u32::MAX),
        };
        att.defer(ack);
        self.flush_acks(held.conn, out);
    }

    /// The owner says no. 1xx stay held; 2xx and 4xx leave the hold.
    pub(super) fn owner_nack(&mut self, now: Now, nack: &owner_msg::Nack, out: &mut Vec<Action>) {
        let Some(op) = &nack.op else { return };
        let Ok(lane) = Lane::any(&op.lane) else { return };
        let game_hold = self.limits.store_down_hold;
        let Some(held) = self.hold.get_mut(lane, op.seq) else { return };
        match nack.code() {
            Code::NotOwner | Code::Fenced => self.retry_later(now, 0, true, out),
            Code::OwnerDraining | Code::OwnerNotReady => self.retry_later(now, nack.retry_after_ms, false, out),
            Code::StoreUnavailable
                if matches!(self.store, Store::Down { .. }) && now.mono.since(held.arrived) < game_hold =>
            {
                held.pending = true;
            }
            code => {
                if code as i32 / 100 == 2 {
                    let back_to = self.resume_at.entry(lane).or_insert(op.seq);
                    *back_to = (*back_to).min(if nack.expected_seq > 0 { nack.expected_seq } else { op.seq });
                } else if self.resume_at.get(&lane).is_some_and(|n| *n <= op.seq) {
                    self.resume_at.remove(&lane);
                }
                let Some(held) = self.release(lane, op.seq, out) else { return };
                let no = Said { code, applied: nack.applied(), retry_after_ms: nack.retry_after_ms, nack: Some(nack) };
                self.nack_held(&held, &no, out);
            }
        }
    }

    /// Its time is over; the outcome is unknown if it was ever forwarded.
    pub(super) fn expire(&mut self, lane: Lane, seq: u64, out: &mut Vec<Action>) {
        let Some(held) = self.release(lane, seq, out) else { return };
        let (code, applied) =
            if held.sends > 0 { (Code::HoldExpired, Applied::Unknown) } else { (Code::NoOwner, applied_unsent(&held)) };
        self.back_to(lane, seq);
        out.push(Action::Observe(Observation::HoldExpired));
        self.nack_held(&held, &Said { code, applied, retry_after_ms: 1000, nack: None }, out);
    }

    /// The store is still down after the time a game's op may wait for it.
    pub(super) fn refuse_for_store(&mut self, lane: Lane, seq: u64, retry_after_ms: u32, out: &mut Vec<Action>) {
        let Some(held) = self.release(lane, seq, out) else { return };
        let applied = if held.sends > 0 { Applied::Unknown } else { applied_unsent(&held) };
        self.back_to(lane, seq);
        self.nack_held(&held, &Said { code: Code::StoreUnavailable, applied, retry_after_ms, nack: None }, out);
    }

    fn back_to(&mut self, lane: Lane, seq: u64) {
        let n = self.resume_at.entry(lane).or_insert(seq);
        *n = (*n).min(seq);
    }

    fn nack_held(&mut self, held: &Held, said: &Said<'_>, out: &mut Vec<Action>) {
        out.push(Action::Observe(Observation::Nacked(said.code)));
        if said.code as i32 / 100 == 2 {
            self.refused.keep_held(held.arrived, held);
        }
        let Some(att) = self.atts.get(&held.conn) else { return };
        let op = crate::message::op_id(held.lane.as_bytes(), held.seq);
        let frame = server_frame::Nack {
            session: self.id.to_string(),
            op: att.own(&op).or(Some(op)),
            code: said.code.into(),
            applied: said.applied.into(),
            retry_after_ms: said.retry_after_ms,
            expected_seq: said.nack.map_or(0, |n| n.expected_seq),
            app_code: said.nack.map_or(0, |n| n.app_code),
            detail: said.nack.map_or_else(String::new, |n| n.detail.clone()),
            attempt: held.attempt,
            ..Default::default()
        };
        out.push(deliver(held.conn, F::Nack(frame)));
    }

    /// Ops that waited for the store, in order.
    pub(super) fn flush_pending(&mut self, now: Now, out: &mut Vec<Action>) {
        if !self.is_open() || self.store != Store::Ok {
            return;
        }
        for (lane, seq) in self.hold.select(|h| h.pending) {
            self.forward(now, lane, seq, out);
        }
    }

    /// Store health as the owner sees it.
    pub(super) fn health(&mut self, now: Now, msg: &owner_msg::Health, out: &mut Vec<Action>) {
        use owner_msg::health::Store as S;
        // sessions of one owner hear of it in the same moment: their clients must not come back in step
        let base = msg.retry_after_ms.max(250);
        let draw = self.id.as_str().bytes().fold(7_u32, |x, b| x.wrapping_mul(31).wrapping_add(b.into()));
        let retry_after_ms = base.saturating_add(draw % base);
        let store = match msg.store() {
            S::Down => Store::Down { retry_after_ms },
            S::ReadOnly => Store::ReadOnly { retry_after_ms },
            S::Ok | S::Slow | S::Unspecified => Store::Ok,
        };
        if store == self.store {
            return;
        }
        self.store = store;
        let state = match store {
            Store::Ok => server_frame::status::State::Live,
            Store::Down { .. } => server_frame::status::State::StoreDown,
            Store::ReadOnly { .. } => server_frame::status::State::ReadOnly,
        };
        self.status_to_all(state, out);
        self.flush_pending(now, out);
    }

    /// Keeps the owner's word about an attachment it ends.
    pub(super) fn kicked(&mut self, now: Now, msg: &owner_msg::Kick, out: &mut Vec<Action>) {
        if let Some(conn) = self.conn_of(msg.att) {
            self.refuse_attach(conn, msg.code(), 0, out);
            self.maybe_linger(now);
        }
    }

    /// Fields of `Presence` and the like never wait: nothing held depends on them.
    pub(super) fn leave(&mut self, out: &mut Vec<Action>) {
        self.send(gateway_msg::M::Leave(gateway_msg::Leave { session: self.id.to_string() }), out);
        if let Some(b) = self.binding.take() {
            out.push(Action::Unbound { boot: b.boot });
        }
        self.route = None;
        self.ring.clear();
        self.ver = 0;
    }
}

/// What a client is told of a held op.
struct Said<'a> {
    code: Code,
    applied: Applied,
    retry_after_ms: u32,
    nack: Option<&'a owner_msg::Nack>,
}

/// Never written to a link by this gateway; an earlier copy of a resend may have gone through another.
fn applied_unsent(held: &Held) -> Applied {
    if held.attempt <= 1 { Applied::No } else { Applied::Unknown }
}
