//! Connections by id: where their frames go, what they joined, and what is held for them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use dashmap::DashMap;
use holdfast_core::{
    id::{ConnId, SessionId},
    proto::{OpId, server_frame::F},
};

use crate::{
    gateway::{port::Downstream, run::HeldBudget},
    transport::outgoing::Outgoing,
};

/// All registered connections.
#[derive(Default)]
pub(super) struct Conns(DashMap<ConnId, Arc<Conn>, foldhash::fast::RandomState>);

struct Conn {
    down: Arc<dyn Downstream>,
    state: Mutex<State>,
}

/// Bytes of the ops held for the connection, by session and seq. An op counts until the client was told of its end, in
/// whatever form; a connection that is gone counts for nothing here (its ops still do for session and gateway).
#[derive(Default)]
struct State {
    sessions: HashMap<SessionId, BTreeMap<u64, u64>>,
    ops: u64,
    bytes: u64,
}

/// Whether a connection has a place for an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is at its limit.
    None,
    /// It has now; to be released if the op is not held after all.
    Taken,
    /// It had already (the op is sent again), or needs none (the session will refuse the op).
    Kept,
}

impl Conns {
    pub fn insert(&self, conn: ConnId, down: Arc<dyn Downstream>) {
        self.0.insert(conn, Arc::new(Conn { down, state: Mutex::default() }));
    }

    /// Forgets the connection; what it had joined.
    pub fn remove(&self, conn: ConnId) -> Vec<SessionId> {
        let Some((_, conn)) = self.0.remove(&conn) else { return Vec::new() };
        let state = std::mem::take(&mut *conn.lock());
        state.sessions.into_keys().collect()
    }

    /// Notes that it joined a session. False: there is no such connection.
    pub fn joined(&self, conn: ConnId, session: &SessionId) -> bool {
        let Some(conn) = self.get(conn) else { return false };
        conn.lock().sessions.entry(session.clone()).or_default();
        true
    }

    /// What it has joined.
    pub fn joined_by(&self, conn: ConnId) -> Vec<SessionId> {
        self.get(conn).map(|c| c.lock().sessions.keys().cloned().collect()).unwrap_or_default()
    }

    pub fn left(&self, conn: ConnId, session: &SessionId) {
        if let Some(conn) = self.get(conn) {
            let mut state = conn.lock();
            state.settle_through(session, u64::MAX);
            state.sessions.remove(session);
        }
    }

    /// Takes a place for an op, if the connection has one.
    pub fn hold(&self, conn: ConnId, session: &SessionId, seq: u64, bytes: u64, limits: &HeldBudget) -> Place {
        let Some(conn) = self.get(conn) else { return Place::None };
        let mut state = conn.lock();
        if state.sessions.get(session).is_some_and(|ops| ops.contains_key(&seq)) {
            return Place::Kept;
        }
        if state.ops >= u64::from(limits.conn_ops_max) || state.bytes + bytes > limits.conn_bytes_max {
            return Place::None;
        }
        let Some(ops) = state.sessions.get_mut(session) else { return Place::Kept };
        ops.insert(seq, bytes);
        state.ops += 1;
        state.bytes += bytes;
        Place::Taken
    }

    pub fn release(&self, conn: ConnId, session: &SessionId, seq: u64) {
        if let Some(conn) = self.get(conn) {
            conn.lock().settle(session.as_str(), seq);
        }
    }

    pub fn deliver(&self, conn: ConnId, frame: &Outgoing) {
        if let Some(conn) = self.get(conn) {
            conn.lock().note(frame.frame());
            conn.down.deliver(frame.clone());
        }
    }

    pub fn close(&self, conn: ConnId, code: u16, reason: &str) {
        if let Some(conn) = self.get(conn) {
            conn.down.close(code, reason);
        }
    }

    fn get(&self, conn: ConnId) -> Option<Arc<Conn>> {
        self.0.get(&conn).map(|c| c.value().clone())
    }
}

impl Conn {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A frame tells the client the end of an op, or of all up to one.
    fn note(&mut self, frame: &F) {
        if self.ops == 0 {
            return;
        }
        let own = |op: &Option<OpId>| op.as_ref().filter(|op| op.lane.is_empty()).map(|op| op.seq);
        match frame {
            F::Event(e) => own(&e.op).into_iter().for_each(|seq| self.settle(&e.session, seq)),
            F::Ack(a) => a.op.iter().for_each(|op| self.settle(&a.session, op.seq)),
            F::Nack(n) => n.op.iter().for_each(|op| self.settle(&n.session, op.seq)),
            F::Attached(a) => self.through(&a.session, a.lane_seq),
            F::Snapshot(s) => self.through(&s.session, s.lane_seq),
            F::Detached(d) => self.through(&d.session, u64::MAX),
            _ => {}
        }
    }

    fn settle(&mut self, session: &str, seq: u64) {
        let Ok(session) = SessionId::parse(session) else { return };
        if let Some(bytes) = self.sessions.get_mut(&session).and_then(|ops| ops.remove(&seq)) {
            self.ops -= 1;
            self.bytes -= bytes;
        }
    }

    fn through(&mut self, session: &str, seq: u64) {
        if let Ok(session) = SessionId::parse(session) {
            self.settle_through(&session, seq);
        }
    }

    fn settle_through(&mut self, session: &SessionId, seq: u64) {
        let Some(ops) = self.sessions.get_mut(session) else { return };
        let rest = if seq == u64::MAX { BTreeMap::new() } else { ops.split_off(&(seq + 1)) };
        for bytes in std::mem::replace(ops, rest).into_values() {
            self.ops -= 1;
            self.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::proto::server_frame::{Ack, Attached};

    use super::*;

    struct Nowhere;
    impl Downstream for Nowhere {
        fn deliver(&self, _frame: Outgoing) {}
        fn close(&self, _code: u16, _reason: &str) {}
    }

    #[test]
    fn a_connection_holds_up_to_its_budget_and_gets_places_back() {
        let (conns, conn, id) = (Conns::default(), ConnId(1), SessionId::parse("g").unwrap());
        let limits = HeldBudget { conn_ops_max: 3, conn_bytes_max: 1000, ..HeldBudget::default() };
        conns.insert(conn, Arc::new(Nowhere));
        assert!(conns.joined(conn, &id) && !conns.joined(ConnId(2), &id));
        for seq in 1..=3 {
            assert_eq!(conns.hold(conn, &id, seq, 100, &limits), Place::Taken);
        }
        assert_eq!(conns.hold(conn, &id, 4, 100, &limits), Place::None, "ops");
        assert_eq!(conns.hold(conn, &id, 3, 100, &limits), Place::Kept, "a resend");
        let op = OpId { seq: 2, ..OpId::default() };
        conns.deliver(conn, &F::Ack(Ack { session: "g".into(), op: Some(op), ..Ack::default() }).into());
        assert_eq!(conns.hold(conn, &id, 4, 900, &limits), Place::None, "bytes");
        assert_eq!(conns.hold(conn, &id, 4, 100, &limits), Place::Taken);
        conns.deliver(conn, &F::Attached(Attached { session: "g".into(), lane_seq: 3, ..Attached::default() }).into());
        let state = std::mem::take(&mut *conns.get(conn).unwrap().lock());
        assert_eq!((state.ops, state.bytes), (1, 100));
    }
}
