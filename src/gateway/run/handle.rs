//! What a running gateway shows to its operators.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use holdfast_core::{
    directory::State,
    id::{Boot, SessionId},
};

use super::drain::{Control, DrainAsk, DrainStatus};
use crate::{
    clock::{Clock, DRIFT_READY_MAX_US},
    gateway::{
        admission::{Gate, Settings},
        handle::{ConnectionView, Handle},
        sessions::Sessions,
    },
    metrics::Metrics,
    placement::watch::Watcher,
    upstream::pool::Pool,
};

/// One held op, for `holdfast held` and the dashboard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOp {
    /// Its session.
    pub session: SessionId,
    /// Who sent it.
    pub principal: String,
    /// Its lane, in hexadecimal digits.
    pub lane: String,
    /// Its seq.
    pub seq: u64,
    /// How long it has been held, in microseconds.
    pub age_us: u64,
    /// Times it was written to a link.
    pub sends: u32,
    /// Bytes held.
    pub bytes: usize,
}

/// One session on this gateway, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSummary {
    /// Its id.
    pub session: SessionId,
    /// (boot, epoch) it is bound to.
    pub binding: Option<(Boot, u64)>,
    /// Ops held.
    pub held: usize,
}

/// What the directory looks like from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryState {
    /// `cold`, `listing`, `synced` or `stale`.
    pub state: &'static str,
    /// Time since it was last known to be current.
    pub age: Duration,
}

/// Admin's view of a running gateway. Cheap to clone.
#[derive(Clone)]
pub struct GatewayHandle {
    pub(super) metrics: Arc<Metrics>,
    pub(super) gate: Arc<Gate>,
    pub(super) sessions: Arc<Sessions>,
    pub(super) watcher: Watcher,
    pub(super) pool: Pool,
    pub(super) node: Arc<str>,
    pub(super) clock: Clock,
    pub(super) listeners: Arc<[(SocketAddr, Handle)]>,
    pub(super) drain: Arc<Control>,
}

impl GatewayHandle {
    /// The instruments, for `/metrics`.
    #[must_use]
    pub fn metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
    }

    /// The limits of the admission in force.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.gate.settings()
    }

    /// Other limits, from now on: no connection ends by it, and nobody gets a new burst.
    pub fn set(&self, settings: Settings) {
        self.sessions.set_rates(settings.ops);
        self.gate.set(self.clock.now(), settings);
    }

    /// Its name.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Whether it is leaving.
    #[must_use]
    pub fn draining(&self) -> bool {
        self.drain.is_asked()
    }

    /// Addresses it listens on, in the order of its configuration.
    #[must_use]
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|(addr, _)| *addr).collect()
    }

    /// Why this gateway should get no traffic; empty = ready. A directory that was complete once is good enough.
    #[must_use]
    pub fn not_ready(&self) -> Vec<String> {
        not_ready(&self.drain, &self.watcher, &self.clock)
    }

    /// The directory, for `/readyz`.
    #[must_use]
    pub fn directory(&self) -> DirectoryState {
        let fresh = self.watcher.state();
        let state = match fresh.state {
            State::Cold => "cold",
            State::Listing => "listing",
            State::Synced => "synced",
            State::Stale => "stale",
        };
        DirectoryState { state, age: fresh.age.unwrap_or_default() }
    }

    /// Up to `limit` held ops, the oldest first.
    #[must_use]
    pub fn held(&self, limit: usize) -> Vec<HeldOp> {
        self.sessions.held(limit)
    }

    /// Up to `limit` sessions, in no order.
    #[must_use]
    pub fn sessions(&self, limit: usize) -> Vec<SessionSummary> {
        self.sessions.summaries(limit)
    }

    /// The connections now.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionView> {
        self.listeners.iter().flat_map(|(_, listener)| listener.connections()).collect()
    }

    /// An operator accepts that what the directory's last list lacked is gone.
    pub fn accept_directory(&self) {
        self.watcher.accept();
    }

    /// Starts the drain, as a first SIGTERM does, or changes its rate and deadline.
    pub fn drain(&self, ask: DrainAsk) {
        self.drain.ask(ask);
    }

    /// Closes everything at once, as a second SIGTERM does; held ops still get a few seconds.
    pub fn hurry(&self) {
        self.drain.hurry();
    }

    /// How far the drain is.
    #[must_use]
    pub fn drain_status(&self) -> DrainStatus {
        self.drain.status()
    }

    /// Admissions per second of the other gateways that are not draining themselves; 0 = there are none.
    pub(super) fn admitted_by_others(&self) -> u32 {
        let (all, own) = (self.watcher.gateways(), self.clock.boot().0);
        let others = all.iter().filter(|(_, g)| g.boot != own && !g.draining);
        others.fold(0_u32, |sum, (_, g)| sum.saturating_add(g.admit_per_s))
    }
}

/// What [`GatewayHandle::not_ready`] says, for those who have no handle yet.
pub(super) fn not_ready(drain: &Control, watcher: &Watcher, clock: &Clock) -> Vec<String> {
    let mut reasons = Vec::new();
    if drain.is_asked() {
        reasons.push("draining".into());
    }
    if watcher.state().age.is_none() {
        reasons.push("the directory was never read".into());
    }
    let drift_us = clock.drift_us().unsigned_abs();
    if drift_us > DRIFT_READY_MAX_US {
        reasons.push(format!("the system clock moved by {} ms since the start", drift_us / 1000));
    }
    reasons
}
