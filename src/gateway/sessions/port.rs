//! What connections ask of the sessions.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use holdfast_core::{
    id::{ConnId, SessionId},
    proto::{self, Code, client_frame, server_frame},
    session::{Action, Arrival, Client},
    time::Wall,
};

use super::{Sessions, conns::Place};
use crate::{
    gateway::port::{ClientSpec, Downstream, SessionPort},
    transport::outgoing::Outgoing,
};

/// Bytes of an op that are not its payload, as held: ids, digest, stamp, principal.
const OP_OVERHEAD_BYTES: u64 = 256;

impl SessionPort for Sessions {
    fn register(&self, conn: ConnId, down: Arc<dyn Downstream>, _principal: Arc<str>) {
        self.conns.insert(conn, down);
    }

    fn unregister(&self, conn: ConnId, reason: u32) {
        for session in self.conns.remove(conn) {
            if let Some(entry) = self.get(&session) {
                self.drive(&entry, |s, now, out| s.handle_detach(now, conn, reason, out));
            }
        }
    }

    fn attach(&self, session: &SessionId, spec: ClientSpec) {
        let att = self.next_att.fetch_add(1, Ordering::Relaxed);
        if !self.conns.joined(spec.conn, session) {
            return; // never registered, or gone already
        }
        let seen = spec.seen.epoch;
        let mut client = Some(client(spec, att));
        // Once is enough, unless the session is removed between finding and locking it.
        while client.is_some() {
            let entry = self.get_or_make(session);
            let cached = self.directory.lookup(session);
            self.drive(&entry, |s, now, out| {
                if let Some(client) = client.take() {
                    s.handle_attach(now, client, out);
                }
                if let Some(route) = &cached {
                    s.handle_route(now, route, out);
                }
                // The cache had the answer to what the attach wanted to read.
                if s.binding().is_some_and(|(_, epoch)| epoch >= seen) {
                    out.retain(|a| !matches!(a, Action::Resolve));
                }
            });
        }
        self.metrics.sessions(i64::try_from(self.map.len()).unwrap_or(i64::MAX));
    }

    fn place(&self, session: &SessionId) -> Option<(Arc<str>, Arc<str>)> {
        self.directory.lookup(session).map(|route| (route.node, route.kind))
    }

    fn detach(&self, session: &SessionId, conn: ConnId, reason: u32) {
        self.conns.left(conn, session);
        if let Some(entry) = self.get(session) {
            self.drive(&entry, |s, now, out| s.handle_detach(now, conn, reason, out));
        }
    }

    fn op(&self, session: &SessionId, conn: ConnId, op: client_frame::Op, arrival: Arrival) {
        self.metrics.op_in();
        let Some(entry) = self.get(session) else {
            return self.nack_unattached(conn, session, op);
        };
        let seq = op.op.as_ref().map_or(0, |id| id.seq);
        let bytes = op.payload.len() as u64 + OP_OVERHEAD_BYTES;
        let place = self.conns.hold(conn, session, seq, bytes, self.budget.limits());
        let room = place != Place::None && self.budget.room(&entry, bytes);
        let held = self.drive(&entry, |s, now, out| s.handle_op(now, conn, op, &arrival, room, out));
        if place == Place::Taken && held.is_none_or(|h| h.ops <= 0) {
            self.conns.release(conn, session, seq);
        }
    }

    fn reaction(&self, session: &SessionId, conn: ConnId, reaction: client_frame::Reaction) {
        if let Some(entry) = self.get(session) {
            self.drive(&entry, |s, now, out| s.handle_reaction(now, conn, reaction, out));
        }
    }

    fn resync(&self, session: &SessionId, conn: ConnId, resync: client_frame::Resync) {
        if let Some(entry) = self.get(session) {
            self.drive(&entry, |s, now, out| s.handle_resync(now, conn, resync, out));
        }
    }

    fn slow(&self, session: &SessionId, conn: ConnId) {
        self.metrics.slow();
        if let Some(entry) = self.get(session) {
            self.drive(&entry, |s, now, out| s.handle_slow(now, conn, out));
        }
    }

    fn delivered(&self, session: &SessionId, conn: ConnId, ver: u64, sent_at: Wall) {
        if let Some(entry) = self.get(session) {
            self.drive(&entry, |s, now, out| s.handle_delivered(now, conn, ver, sent_at, out));
        }
    }

    fn is_on_the_move(&self, conn: ConnId) -> bool {
        let on_the_move =
            |session: &SessionId| self.get(session).is_some_and(|e| e.lock().session.is_on_the_move(conn));
        self.conns.joined_by(conn).iter().any(on_the_move)
    }

    fn relayed(&self, took: Duration) {
        self.metrics.gateway_down(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }
}

fn client(spec: ClientSpec, att: u32) -> Client {
    Client {
        conn: spec.conn,
        att,
        principal: spec.principal,
        participant: spec.participant,
        role: spec.role,
        lane: spec.lane,
        conn_seq: spec.conn_seq,
        n: spec.n,
        seen: spec.seen,
        reconnect: spec.reconnect,
    }
}

impl Sessions {
    fn nack_unattached(&self, conn: ConnId, session: &SessionId, op: client_frame::Op) {
        let nack = server_frame::Nack {
            session: session.to_string(),
            op: op.op,
            code: Code::TryAfterAttach.into(),
            applied: proto::Applied::No.into(),
            attempt: op.attempt.max(1),
            ..Default::default()
        };
        self.conns.deliver(conn, &Outgoing::new(server_frame::F::Nack(nack)));
    }
}
