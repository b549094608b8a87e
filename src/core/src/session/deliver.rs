//! From owner to clients: events and status, always with the epoch of the current binding (design 4.3 rule 1).

use crate::{
    id::ConnId,
    mutant::{self, Mutant},
    proto::{
        Pos, owner_msg,
        server_frame::{self, F, status::State},
    },
    session::{
        Action, Session,
        attach::deliver,
        attachment::{Attachment, Why},
        ring::last_ver,
    },
};

/// `OwnerMsg.Event.flags`: report when it was delivered.
const STAMP_DELIVERY: u32 = 1;

impl Session {
    /// A new event of the session: into the ring, and to everyone who is up to date.
    pub(super) fn broadcast(&mut self, event: owner_msg::Event, out: &mut Vec<Action>) {
        let live: Vec<_> = self.atts.values().filter(|a| a.is_live()).map(Attachment::conn).collect();
        let stamp = event.flags & STAMP_DELIVERY != 0;
        let mut same: Vec<ConnId> = Vec::new();
        let mut not_theirs: Vec<ConnId> = Vec::new();
        for conn in live {
            let Some(att) = self.atts.get(&conn) else { continue };
            let own = event.op.as_ref().is_some_and(|op| att.own(op).is_some());
            let at = event.at.unwrap_or_default().ver;
            match () {
                () if last_ver(&event) <= att.ver => {}
                () if own || at > att.ver + 1 => self.deliver_event(conn, &event, out),
                () if is_for(&event, &att.client.participant) => same.push(conn),
                () => not_theirs.push(conn),
            }
        }
        for (conns, skip) in [(same, false), (not_theirs, true)] {
            if conns.is_empty() {
                continue;
            }
            let frame = F::Event(self.event_frame(&event, skip));
            for conn in &conns {
                self.reached(*conn, last_ver(&event));
            }
            out.push(match conns.as_slice() {
                [conn] => Action::Deliver { conn: *conn, frame, stamp: stamp && !skip },
                _ => Action::Fanout { conns: conns.clone(), frame, stamp: stamp && !skip },
            });
            for conn in conns {
                self.flush_acks(conn, out);
            }
        }
        self.ring.push(event, self.limits.ring_events_max, self.limits.ring_bytes_max);
    }

    /// One event to one client, in order and once; a hole becomes a pull.
    pub(super) fn deliver_event(&mut self, conn: ConnId, event: &owner_msg::Event, out: &mut Vec<Action>) {
        let at = event.at.unwrap_or_default().ver;
        let Some(att) = self.atts.get(&conn) else { return };
        if last_ver(event) <= att.ver {
            return;
        }
        if at > att.ver + 1 {
            self.pull(conn, Why::Behind, out);
            return;
        }
        let skip = !is_for(event, &att.client.participant);
        let mut frame = self.event_frame(event, skip);
        frame.op = event.op.as_ref().and_then(|op| att.own(op));
        self.reached(conn, last_ver(event));
        let stamp = event.flags & STAMP_DELIVERY != 0 && !skip;
        out.push(Action::Deliver { conn, frame: F::Event(frame), stamp });
        self.flush_acks(conn, out);
    }

    fn reached(&mut self, conn: ConnId, ver: u64) {
        let epoch = self.binding.as_ref().map_or(self.epoch, |b| b.epoch);
        if let Some(att) = self.atts.get_mut(&conn) {
            att.ver = ver;
            att.epoch = att.epoch.max(epoch);
        }
    }

    /// As others see it (without an op id); `skip` = the version exists and is not for the reader.
    fn event_frame(&self, event: &owner_msg::Event, skip: bool) -> server_frame::Event {
        let at = event.at.unwrap_or_default();
        let old = mutant::on(Mutant::RingOldEpoch) || mutant::on(Mutant::StaleEpochDelivered);
        let epoch = self.binding.as_ref().filter(|_| !old).map_or(at.epoch, |b| b.epoch);
        let base = server_frame::Event {
            session: self.id.to_string(),
            at: Some(Pos { epoch, ver: at.ver }),
            skip_to: event.skip_to,
            ..Default::default()
        };
        if skip {
            return server_frame::Event { skip_to: last_ver(event), ..base };
        }
        server_frame::Event {
            actor: event.actor.clone(),
            content: event.content,
            payload: event.payload.clone(),
            at_us: event.at_us,
            ..base
        }
    }

    /// Acks that waited for the event just delivered: an ack never overtakes events up to its version.
    pub(super) fn flush_acks(&mut self, conn: ConnId, out: &mut Vec<Action>) {
        let Some(att) = self.atts.get_mut(&conn) else { return };
        for mut ack in att.due_acks() {
            if let (Some(at), Some(b)) = (&mut ack.at, &self.binding) {
                at.epoch = at.epoch.max(b.epoch);
            }
            out.push(deliver(conn, F::Ack(ack)));
        }
    }

    pub(super) fn status_to(&mut self, conn: ConnId, state: State, out: &mut Vec<Action>) {
        let ver = self.ver;
        let epoch = match (&self.binding, state) {
            (Some(b), State::Live | State::StoreDown | State::ReadOnly) => b.epoch,
            _ => self.epoch,
        };
        let session = self.id.to_string();
        let Some(att) = self.atts.get_mut(&conn) else { return };
        att.told_moving = state == State::Moving;
        att.epoch = att.epoch.max(epoch);
        let status = server_frame::Status { session, state: state.into(), epoch: att.epoch, ver };
        out.push(deliver(conn, F::Status(status)));
    }

    /// To everyone who has been answered and whose epoch allows it.
    pub(super) fn status_to_all(&mut self, state: State, out: &mut Vec<Action>) {
        let epoch = self.binding.as_ref().map_or(u64::MAX, |b| b.epoch);
        let conns: Vec<_> =
            self.atts.values().filter(|a| a.is_answered() && a.epoch <= epoch).map(Attachment::conn).collect();
        for conn in conns {
            self.status_to(conn, state, out);
        }
    }

    /// Nobody owns the session for longer than a link takes to come back.
    pub(super) fn tell_moving(&mut self, out: &mut Vec<Action>) {
        self.moving_at = None;
        let conns: Vec<_> = self.atts.values().filter(|a| !a.told_moving).map(Attachment::conn).collect();
        for conn in conns {
            self.status_to(conn, State::Moving, out);
        }
    }
}

fn is_for(event: &owner_msg::Event, participant: &str) -> bool {
    event.only.is_empty() || event.only.iter().any(|p| p == participant)
}
