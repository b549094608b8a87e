//! Attaching and detaching.

use std::time::Duration;

use crate::{
    id::ConnId,
    proto::{
        Code, Pos,
        gateway_msg::{self},
        server_frame::{self, F, status::State},
    },
    session::{
        Action, Client, LINGER_US, Session,
        attachment::{Answer, Attachment, Phase, Why},
    },
    time::Now,
};

/// Close code for a connection whose place a newer one took (design 4.4).
const CLOSE_REPLACED: u16 = 4006;
/// `Detach.reason`: kicked.
const KICKED: u32 = 3;
/// Presence goes out at most this often.
const PRESENCE_US: u64 = 100_000;

impl Session {
    /// A client attaches. It is answered by `attached`, `detached` or `status{moving}` within a second (4.3 rule 3).
    pub fn handle_attach(&mut self, now: Now, client: Client, out: &mut Vec<Action>) {
        if !self.take_lane(now, &client, out) {
            return;
        }
        let conn = client.conn;
        if let Some(old) = self.atts.remove(&conn) {
            self.send_detach(&old, KICKED, out);
            let n = old.client.n;
            out.push(deliver(conn, F::Detached(self.detached(Code::NotAttached, 0, n))));
        }
        if self.route.as_ref().is_some_and(|r| r.ended) {
            out.push(deliver(conn, F::Detached(self.detached(Code::SessionClosed, 0, client.n))));
            return;
        }
        self.linger_until = None;
        self.resume_at.remove(&client.lane);
        for h in self.hold.iter_mut().filter(|h| h.lane == client.lane && h.principal == client.principal) {
            h.conn = conn;
        }
        let stale = self.binding.as_ref().is_none_or(|b| b.epoch < client.seen.epoch);
        self.atts.insert(conn, Attachment::new(client, now.mono));
        if stale {
            out.push(Action::Resolve);
        }
        self.touch_presence(now);
        if self.is_open() {
            self.send_attach(conn, out);
            if self.is_live() {
                self.answer_spectator(conn, out);
            }
        }
    }

    /// A client leaves; what it asked for stays held. `reason` as in `GatewayMsg.Detach`.
    pub fn handle_detach(&mut self, now: Now, conn: ConnId, reason: u32, out: &mut Vec<Action>) {
        let Some(att) = self.atts.remove(&conn) else { return };
        self.send_detach(&att, reason, out);
        self.resume_at.remove(&att.lane());
        self.touch_presence(now);
        self.maybe_linger(now);
    }

    /// Of two connections of one principal and lane the higher `conn_seq` stays. False: the new one is the loser.
    fn take_lane(&mut self, now: Now, client: &Client, out: &mut Vec<Action>) -> bool {
        let other = self
            .atts
            .values()
            .find(|a| a.lane() == client.lane && a.client.principal == client.principal && a.conn() != client.conn);
        let Some((conn, seq)) = other.map(|a| (a.conn(), a.client.conn_seq)) else { return true };
        let loser = if seq > client.conn_seq { client.conn } else { conn };
        if loser == conn {
            self.handle_detach(now, conn, KICKED, out);
        }
        out.push(Action::Kick { conn: loser, close: CLOSE_REPLACED });
        loser == conn
    }

    /// Tells the owner of a participant. Not before the client's epoch is reached: it must never hear an older one.
    pub(super) fn send_attach(&mut self, conn: ConnId, out: &mut Vec<Action>) {
        let Some(epoch) = self.binding.as_ref().map(|b| b.epoch) else { return };
        let Some(att) = self.atts.get_mut(&conn) else { return };
        if matches!(att.phase, Phase::Pulling { answer: Some(_), .. }) {
            att.phase = Phase::Waiting; // the answer was an earlier owner's, or an earlier link's
        }
        if !att.is_participant() || att.epoch > epoch {
            return;
        }
        let c = &att.client;
        let msg = gateway_msg::Attach {
            session: self.id.to_string(),
            epoch,
            att: c.att,
            principal: c.principal.to_string(),
            participant: c.participant.to_string(),
            role: c.role,
            lane: bytes::Bytes::copy_from_slice(c.lane.as_bytes()),
            have: Some(Pos { epoch: att.epoch, ver: att.ver }),
            reconnect: c.reconnect,
        };
        self.send(gateway_msg::M::Attach(msg), out);
    }

    fn send_detach(&self, att: &Attachment, reason: u32, out: &mut Vec<Action>) {
        if att.is_participant() {
            let msg = gateway_msg::Detach { session: self.id.to_string(), att: att.client.att, reason };
            self.send(gateway_msg::M::Detach(msg), out);
        }
    }

    /// Spectators are not known to the owner one by one; the gateway answers them.
    pub(super) fn answer_spectator(&mut self, conn: ConnId, out: &mut Vec<Action>) {
        let head_ver = self.binding.as_ref().map_or(0, |b| b.head).max(self.ver);
        let Some(att) = self.atts.get(&conn) else { return };
        if !att.is_participant() && matches!(att.phase, Phase::Waiting) {
            self.answer(conn, Answer { lane_seq: 0, rejected: Vec::new(), head_ver }, out);
        }
    }

    /// The owner knows the attachment: say so, and catch it up from the ring or from the owner.
    pub(super) fn answer(&mut self, conn: ConnId, answer: Answer, out: &mut Vec<Action>) {
        let (Some(att), Some(b)) = (self.atts.get_mut(&conn), &self.binding) else { return };
        if !matches!(att.phase, Phase::Waiting) || att.epoch > b.epoch {
            return;
        }
        let seen = Pos { epoch: att.client.seen.epoch, ver: att.ver };
        let why = match () {
            () if seen.epoch == 0 && seen.ver == 0 => Why::First,
            // for a spectator the head is our own version, which may lag: the owner says whether it diverged
            () if seen.ver > answer.head_ver && att.is_participant() => Why::Diverged,
            () => Why::Behind,
        };
        let whole = match why {
            Why::Behind if seen.ver == answer.head_ver && self.ver <= seen.ver => Some(Vec::new()),
            Why::Behind if seen.ver <= self.ver => self.ring.after(seen.ver).filter(|_| self.ver >= answer.head_ver),
            _ => None,
        };
        let Some(events) = whole else {
            att.phase = Phase::Pulling { why, answer: Some(answer) };
            self.send_pull(conn, out);
            return;
        };
        att.phase = Phase::Live;
        let resume = if events.is_empty() { 3 } else { 1 };
        self.send_attached(conn, &answer, resume, out);
        self.replay_ring(conn, events, out);
    }

    /// The `attached` frame.
    pub(super) fn send_attached(&mut self, conn: ConnId, answer: &Answer, resume: u32, out: &mut Vec<Action>) {
        let hold_ttl_ms = u32::try_from(self.limits.hold_ttl.as_millis()).unwrap_or(u32::MAX);
        let (Some(att), Some(b)) = (self.atts.get_mut(&conn), &self.binding) else { return };
        att.epoch = b.epoch;
        att.told_moving = false;
        let frame = server_frame::Attached {
            session: self.id.to_string(),
            head: Some(Pos { epoch: b.epoch, ver: answer.head_ver }),
            resume,
            lane_seq: answer.lane_seq,
            rejected: answer.rejected.clone(),
            n: att.client.n,
            hold_ttl_ms,
            handle: 0,
            role: att.client.role,
            stamped: false,
        };
        out.push(deliver(conn, F::Attached(frame)));
        match self.store {
            super::Store::Ok => {}
            super::Store::Down { .. } => self.status_to(conn, State::StoreDown, out),
            super::Store::ReadOnly { .. } => self.status_to(conn, State::ReadOnly, out),
        }
    }

    /// Ends an attachment with a code.
    pub(super) fn refuse_attach(&mut self, conn: ConnId, code: Code, retry_after_ms: u32, out: &mut Vec<Action>) {
        let Some(att) = self.atts.remove(&conn) else { return };
        out.push(deliver(conn, F::Detached(self.detached(code, retry_after_ms, att.client.n))));
        self.send_detach(&att, KICKED, out);
    }

    fn detached(&self, code: Code, retry_after_ms: u32, n: u32) -> server_frame::Detached {
        server_frame::Detached { session: self.id.to_string(), code: code.into(), retry_after_ms, n }
    }

    pub(super) fn maybe_linger(&mut self, now: Now) {
        if self.atts.is_empty() && self.binding.is_some() {
            self.linger_until = Some(now.mono.after(Duration::from_micros(LINGER_US)));
        }
    }

    fn touch_presence(&mut self, now: Now) {
        self.presence_at.get_or_insert(now.mono.after(Duration::from_micros(PRESENCE_US)));
    }

    /// Absolute counts, if they changed.
    pub(super) fn send_presence(&mut self, out: &mut Vec<Action>) {
        self.presence_at = None;
        let participants = self.atts.values().filter(|a| a.is_participant()).count();
        let spectators = self.atts.len() - participants;
        let counts = (u32::try_from(participants).unwrap_or(u32::MAX), u32::try_from(spectators).unwrap_or(u32::MAX));
        if counts == self.joined_presence || !self.is_open() {
            return;
        }
        self.joined_presence = counts;
        let msg = gateway_msg::Presence { session: self.id.to_string(), participants: counts.0, spectators: counts.1 };
        self.send(gateway_msg::M::Presence(msg), out);
    }
}

/// A frame without a delivery stamp.
pub(super) fn deliver(conn: ConnId, frame: F) -> Action {
    Action::Deliver { conn, frame, stamp: false }
}
