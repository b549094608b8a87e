//! The sessions of this gateway: one pure [`Session`] each, behind one short lock, and everything around it.
//!
//! An input (a client's frame, an owner's message, a route, a timer) locks its session, is decided by
//! [`holdfast_core::session`], and what comes out is queued before the lock is let go, so the order on a link is the order
//! in the session. Locks are taken in this order and never the other way round: session, then pool, then index; session,
//! then a client's queue. Nothing here awaits under a lock, and no session has a task of its own.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use dashmap::DashMap;
use futures_util::future::BoxFuture;
use holdfast_core::{
    id::{Boot, ConnId, LinkId, SessionId},
    proto::{self, Code, client_frame, server_frame},
    session::{Action, Arrival, Client, Route, Session},
    time::{Mono, Now, Wall},
};
use tokio::sync::mpsc;

use super::{
    port::{ClientSpec, Downstream, SessionPort},
    run::HeldBudget,
};
use crate::{
    clock::Clock,
    metrics::Metrics,
    transport::outgoing::Outgoing,
    upstream::{link::LinkTx, pool::Pool},
};
use budget::Budget;
use conns::Conns;
use entry::{Entry, State};
use index::Index;
use resolve::Resolver;
use timer::Timer;

mod budget;
mod conns;
mod entry;
mod execute;
mod index;
mod links;
mod resolve;
#[cfg(test)]
mod tests;
mod timer;
mod view;

/// Bytes of an op that are not its payload, as held: ids, digest, stamp, principal.
const OP_OVERHEAD_BYTES: u64 = 256;
/// Reports of refused nodes that wait for their sender; more are dropped (they repeat).
pub const SUSPECTS_QUEUED: usize = 64;

/// The directory, as the sessions see it.
pub trait Directory: Send + Sync {
    /// What the cache says.
    fn lookup(&self, session: &SessionId) -> Option<Route>;
    /// A linearizable read; `None` = there is no such session. Single-flight is the caller's business.
    fn resolve<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<Option<Route>, String>>;
}

/// What the sessions work with.
pub struct Parts {
    /// The clock.
    pub clock: Clock,
    /// Instruments.
    pub metrics: Arc<Metrics>,
    /// Links to owners.
    pub pool: Pool,
    /// Who owns what.
    pub directory: Arc<dyn Directory>,
    /// Budgets for held ops.
    pub held: HeldBudget,
    /// Refused nodes go here; see [`SUSPECTS_QUEUED`].
    pub suspects: mpsc::Sender<(Arc<str>, Boot)>,
}

/// The sessions of one gateway.
pub struct Sessions {
    clock: Clock,
    metrics: Arc<Metrics>,
    pool: Pool,
    directory: Arc<dyn Directory>,
    suspects: mpsc::Sender<(Arc<str>, Boot)>,
    map: DashMap<SessionId, Arc<Entry>, foldhash::fast::RandomState>,
    conns: Conns,
    index: Index,
    links: ArcSwap<HashMap<LinkId, LinkTx>>,
    timer: Timer,
    resolver: Resolver,
    budget: Budget,
    /// Attachment ids: unique for the life of the process, which sees far fewer than 4 billion.
    next_att: AtomicU32,
}

impl Sessions {
    /// No sessions yet. Their timers and reads run in [`Sessions::run_timers`] and [`Sessions::run_resolver`].
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self {
            budget: Budget::new(parts.held, parts.metrics.clone()),
            clock: parts.clock,
            metrics: parts.metrics,
            pool: parts.pool,
            directory: parts.directory,
            suspects: parts.suspects,
            map: DashMap::default(),
            conns: Conns::default(),
            index: Index::default(),
            links: ArcSwap::default(),
            timer: Timer::default(),
            resolver: Resolver::default(),
            next_att: AtomicU32::new(1),
        }
    }

    /// The directory has a new word on a session. Sessions nobody is attached to are none of our business.
    pub fn route(&self, session: &SessionId, route: &Route) {
        if let Some(entry) = self.get(session) {
            self.drive(&entry, |s, now, out| s.handle_route(now, route, out));
        }
    }

    /// The directory has news of a node.
    pub fn node_changed(&self, node: &str) {
        self.pool.node_changed(node);
    }

    fn get(&self, session: &SessionId) -> Option<Arc<Entry>> {
        self.map.get(session).map(|e| e.value().clone())
    }

    /// The session, made (with the route in the cache) if it is not there.
    fn get_or_make(&self, session: &SessionId) -> Arc<Entry> {
        if let Some(entry) = self.get(session) {
            return entry;
        }
        let made = self.map.entry(session.clone()).or_insert_with(|| Arc::new(Entry::new(session.clone())));
        made.value().clone()
    }

    /// One input: decide, do, arm the timer, let go of an idle session. `None`: the session was removed meanwhile.
    fn drive(&self, entry: &Arc<Entry>, input: impl FnOnce(&mut Session, Now, &mut Vec<Action>)) -> Option<Held> {
        self.drive_at(entry, None, input)
    }

    /// [`Sessions::drive`] for what was read from a link at `read_at`.
    fn drive_at(
        &self,
        entry: &Arc<Entry>,
        read_at: Option<Mono>,
        input: impl FnOnce(&mut Session, Now, &mut Vec<Action>),
    ) -> Option<Held> {
        let mut state = entry.lock();
        if state.gone {
            return None;
        }
        // Read under the lock: time never runs backwards for a session.
        let now = self.clock.now();
        let mut out = Vec::new();
        input(&mut state.session, now, &mut out);
        let held = self.execute((entry, &mut state), (now, read_at), out);
        self.timer.arm(entry, &mut state, now.mono.after(timer::SOONEST));
        if state.session.is_idle() {
            self.remove(entry, &mut state);
        }
        Some(held)
    }

    fn remove(&self, entry: &Arc<Entry>, state: &mut State) {
        state.gone = true;
        self.map.remove(&entry.id);
        self.index.forget(&entry.id);
        self.metrics.sessions(i64::try_from(self.map.len()).unwrap_or(i64::MAX));
    }

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

/// How much an input changed what is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    ops: i64,
    bytes: i64,
}

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
        let room = self.budget.room(&entry, bytes) && self.conns.hold(conn, session, seq, bytes, self.budget.limits());
        let held = self.drive(&entry, |s, now, out| s.handle_op(now, conn, op, &arrival, room, out));
        if room && held.is_none_or(|h| h.ops <= 0) {
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
