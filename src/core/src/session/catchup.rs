//! Catching one attachment up: from the ring, or with a pull from the owner.

use crate::{
    id::ConnId,
    proto::{self, Pos, client_frame, gateway_msg, owner_msg, server_frame, server_frame::F},
    session::{
        Action, Observation, Session,
        attach::deliver,
        attachment::{Phase, Why},
    },
    time::Now,
};

/// A client may ask to be caught up this often, and this often at once.
const RESYNCS: (u32, u32) = (2, 10);

impl Session {
    /// A client saw a hole (or wants a fresh state).
    pub fn handle_resync(&mut self, now: Now, conn: ConnId, resync: client_frame::Resync, out: &mut Vec<Action>) {
        out.push(Action::Observe(Observation::Resync));
        let Some(att) = self.atts.get_mut(&conn) else { return };
        if let Err(wait_ms) = att.resyncs.take(now.mono, RESYNCS.0, RESYNCS.1) {
            self.refuse_attach(conn, proto::Code::Overloaded, wait_ms, out);
            self.maybe_linger(now);
            return;
        }
        if !att.is_live() {
            return; // a catch-up is under way already
        }
        let seen = resync.last_seen.unwrap_or_default();
        att.ver = seen.ver;
        let why = match () {
            () if resync.snapshot => Why::Asked,
            () if seen.ver > self.ver => Why::Diverged,
            () => Why::Behind,
        };
        match self.ring.after(seen.ver).filter(|_| why == Why::Behind) {
            Some(events) => self.replay_ring(conn, events, out),
            None => self.pull(conn, why, out),
        }
    }

    /// The connection's queue overflowed and this session's backlog in it was dropped: it gets a snapshot.
    pub fn handle_slow(&mut self, _now: Now, conn: ConnId, out: &mut Vec<Action>) {
        if self.atts.get(&conn).is_some_and(super::attachment::Attachment::is_live) {
            self.pull(conn, Why::Slow, out);
        }
    }

    pub(super) fn pull(&mut self, conn: ConnId, why: Why, out: &mut Vec<Action>) {
        let Some(att) = self.atts.get_mut(&conn) else { return };
        att.phase = Phase::Pulling { why, answer: None };
        self.send_pull(conn, out);
    }

    /// Asks the owner for what `conn` misses; said again after a replay.
    pub(super) fn send_pull(&self, conn: ConnId, out: &mut Vec<Action>) {
        let (Some(att), Some(b)) = (self.atts.get(&conn), &self.binding) else { return };
        let Phase::Pulling { why, .. } = att.phase else { return };
        let msg = gateway_msg::Pull {
            session: self.id.to_string(),
            epoch: b.epoch,
            att: att.client.att,
            have: Some(Pos { epoch: att.epoch, ver: att.ver }),
            snapshot: why != Why::Behind,
        };
        self.send(gateway_msg::M::Pull(msg), out);
    }

    /// A state for one attachment (or, after a join, for all that had another version).
    pub(super) fn state(&mut self, state: owner_msg::State, out: &mut Vec<Action>) {
        let at = state.at.unwrap_or_default();
        if state.to_att != 0 {
            if let Some(conn) = self.conn_of(state.to_att) {
                self.snapshot(conn, state, out);
            }
            return;
        }
        self.ring.clear();
        self.ver = at.ver;
        let behind: Vec<_> = self
            .atts
            .values()
            .filter(|a| a.is_live() && a.ver != at.ver)
            .map(|a| (a.conn(), if a.ver > at.ver { Why::Diverged } else { Why::Behind }))
            .collect();
        for (conn, why) in behind {
            self.pull(conn, if why == Why::Behind { Why::Slow } else { why }, out);
        }
    }

    fn snapshot(&mut self, conn: ConnId, state: owner_msg::State, out: &mut Vec<Action>) {
        let at = state.at.unwrap_or_default();
        let Some(att) = self.atts.get_mut(&conn) else { return };
        let Phase::Pulling { why, answer } = std::mem::replace(&mut att.phase, Phase::Live) else { return };
        let why = if at.ver < att.ver && why != Why::First { Why::Diverged } else { why };
        if let Some(answer) = answer {
            self.send_attached(conn, &answer, 2, out);
        }
        let (Some(att), Some(b)) = (self.atts.get_mut(&conn), &self.binding) else { return };
        att.ver = at.ver;
        att.epoch = b.epoch;
        let frame = server_frame::Snapshot {
            session: self.id.to_string(),
            at: Some(Pos { epoch: b.epoch, ver: at.ver }),
            content: state.content,
            payload: state.payload,
            lane_seq: state.lane_seq,
            rejected: state.rejected,
            reason: why as u32,
        };
        out.push(deliver(conn, F::Snapshot(frame)));
        self.flush_acks(conn, out);
    }

    /// An event for one attachment: part of the answer to a pull.
    pub(super) fn catch_up(&mut self, event: &owner_msg::Event, out: &mut Vec<Action>) {
        let Some(conn) = self.conn_of(event.to_att) else { return };
        let Some(att) = self.atts.get_mut(&conn) else { return };
        if let Phase::Pulling { answer, .. } = std::mem::replace(&mut att.phase, Phase::Live)
            && let Some(answer) = answer
        {
            self.send_attached(conn, &answer, 1, out);
        }
        self.deliver_event(conn, event, out);
    }

    /// Events of the ring, with the epoch of the current binding.
    pub(super) fn replay_ring(&mut self, conn: ConnId, events: Vec<owner_msg::Event>, out: &mut Vec<Action>) {
        for event in &events {
            self.deliver_event(conn, event, out);
        }
    }

    pub(super) fn conn_of(&self, att: u32) -> Option<ConnId> {
        self.atts.values().find(|a| a.client.att == att).map(|a| a.client.conn)
    }
}
