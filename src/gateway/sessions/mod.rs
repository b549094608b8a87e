//! The sessions of this gateway: one pure [`Session`] each, behind one short lock, and everything around it.
//!
//! An input (a client's frame, an owner's message, a route, a timer) locks its session, is decided by
//! [`holdfast_core::session`], and what comes out is queued before the lock is let go, so the order on a link is the order
//! in the session. Locks are taken in this order and never the other way round: session, then pool, then index; session,
//! then a client's queue. Nothing here awaits under a lock, and no session has a task of its own.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU32},
};

use arc_swap::ArcSwap;
use dashmap::DashMap;
use futures_util::future::BoxFuture;
use holdfast_core::{
    id::{Boot, LinkId, SessionId},
    session::{Action, OpRates, Route, Session},
    time::{Mono, Now},
};
use tokio::sync::mpsc;

use super::run::HeldBudget;
use crate::{
    clock::Clock,
    metrics::Metrics,
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
mod port;
mod resolve;
#[cfg(test)]
mod tests;
mod timer;
mod view;

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
    rates: ArcSwap<OpRates>,
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
            rates: ArcSwap::default(),
            next_att: AtomicU32::new(1),
        }
    }

    /// The directory has a new word on a session. Sessions nobody is attached to are none of our business.
    pub fn route(&self, session: &SessionId, route: &Route) {
        if let Some(entry) = self.get(session) {
            self.drive(&entry, |s, now, out| s.handle_route(now, route, out));
        }
    }

    /// Rates of ops and reactions, for every session from its next input on.
    pub fn set_rates(&self, rates: OpRates) {
        self.rates.store(Arc::new(rates));
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
        state.session.set_rates(&self.rates.load());
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
}

/// How much an input changed what is held, and what else its source should know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    ops: i64,
    bytes: i64,
    /// A frame of an old epoch was dropped.
    stale: bool,
}
