//! Every instrument of the gateway: name, unit, help, closed label sets, all zero from the start.
//!
//! Names start with `holdfast_`. Times are in seconds; their buckets grow by a quarter from 5 µs to 5 s, so that a
//! percentile read from them is right within 12 %.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use holdfast_core::{
    proto::Code,
    session::{Observation, ReactionDrop},
};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

pub use happenings::{Happening, Happenings, Level};

use crate::upstream::link::End;

mod happenings;

/// First bucket, growth and number of the buckets of times: 5 µs x 1.25^62 = 5.1 s.
const BUCKETS: (f64, f64, u16) = (5e-6, 1.25, 63);
/// Codes clients are told (design 4.4).
const CODES: [Code; 17] = [
    Code::StoreUnavailable,
    Code::Overloaded,
    Code::NoOwner,
    Code::Gap,
    Code::TooManyInflight,
    Code::HoldExpired,
    Code::TryAfterAttach,
    Code::BadFrame,
    Code::Unauthenticated,
    Code::Forbidden,
    Code::NoSession,
    Code::Rejected,
    Code::SessionClosed,
    Code::OpIdReused,
    Code::BaseConflict,
    Code::TooLarge,
    Code::OutcomeExpired,
];
const DROPS: [&str; 6] = ["stale", "late", "rate", "no_owner", "too_large", "queue"];
const LINK_ENDS: [&str; 4] = ["silent", "overflow", "broken", "unused"];
const DIAL_FAILURES: [&str; 3] = ["refused", "boot", "other"];
/// Why the listener refused or ended somebody; counted by `gateway::run` from the listener's numbers.
pub const REFUSALS: [&str; 8] = [
    "connections",
    "handshakes",
    "descriptors",
    "handshake_failed",
    "token",
    "proxy_untrusted",
    "proxy_missing",
    "proxy_malformed",
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByCode {
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    reason: &'static str,
}

type Reasons = Family<ByReason, Counter>;

/// The gateway's instruments. One per process, shared.
pub struct Metrics {
    registry: Registry,
    connections: Gauge,
    accepted: Counter,
    silent: Counter,
    refused: Reasons,
    ops_in: Counter,
    ops_acked: Counter,
    ops_nacked: Family<ByCode, Counter>,
    held_ops: Gauge,
    held_bytes: Gauge,
    ops_resent: Counter,
    hold_expired: Counter,
    stale_dropped: Counter,
    reactions_delivered: Counter,
    reactions_dropped: Reasons,
    resyncs: Counter,
    epochs_moved: Counter,
    redirects: Counter,
    not_owner: Counter,
    slow: Counter,
    sessions: Gauge,
    links: Gauge,
    links_ended: Reasons,
    dials_failed: Reasons,
    link_unknown: Counter,
    suspects: Counter,
    resolves: Counter,
    resolves_failed: Counter,
    directory_synced: Gauge,
    directory_age: Gauge<f64, AtomicU64>,
    clock_drift: Gauge<f64, AtomicU64>,
    resume: Histogram,
    resend_after_move: Histogram,
    last_resend: Gauge<f64, AtomicU64>,
    /// Resumed since they were last taken, and the slowest, in microseconds.
    resumed: (AtomicU64, AtomicU64),
    happenings: Happenings,
    op_to_echo: Histogram,
    gateway_up: Histogram,
    gateway_down: Histogram,
    link_rtt: Histogram,
    admission: Arc<Admission>,
}

mod admission;
pub use admission::{Admission, Point, Transport};

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn times() -> Histogram {
    Histogram::new(exponential_buckets(BUCKETS.0, BUCKETS.1, BUCKETS.2))
}

fn seconds(us: u64) -> f64 {
    std::time::Duration::from_micros(us).as_secs_f64()
}

fn reasons(names: &[&'static str]) -> Reasons {
    let family = Reasons::default();
    for reason in names {
        drop(family.get_or_create(&ByReason { reason }));
    }
    family
}

impl Metrics {
    /// All instruments, at zero.
    #[must_use]
    pub fn new() -> Self {
        let mut this = Self {
            registry: Registry::with_prefix("holdfast"),
            connections: Gauge::default(),
            accepted: Counter::default(),
            silent: Counter::default(),
            refused: reasons(&REFUSALS),
            ops_in: Counter::default(),
            ops_acked: Counter::default(),
            ops_nacked: Family::default(),
            held_ops: Gauge::default(),
            held_bytes: Gauge::default(),
            ops_resent: Counter::default(),
            hold_expired: Counter::default(),
            stale_dropped: Counter::default(),
            reactions_delivered: Counter::default(),
            reactions_dropped: reasons(&DROPS),
            resyncs: Counter::default(),
            epochs_moved: Counter::default(),
            redirects: Counter::default(),
            not_owner: Counter::default(),
            slow: Counter::default(),
            sessions: Gauge::default(),
            links: Gauge::default(),
            links_ended: reasons(&LINK_ENDS),
            dials_failed: reasons(&DIAL_FAILURES),
            link_unknown: Counter::default(),
            suspects: Counter::default(),
            resolves: Counter::default(),
            resolves_failed: Counter::default(),
            directory_synced: Gauge::default(),
            directory_age: Gauge::default(),
            clock_drift: Gauge::default(),
            resume: times(),
            resend_after_move: times(),
            last_resend: Gauge::default(),
            resumed: Default::default(),
            happenings: Happenings::default(),
            op_to_echo: times(),
            gateway_up: times(),
            gateway_down: times(),
            link_rtt: times(),
            admission: Arc::default(),
        };
        for code in CODES {
            drop(this.ops_nacked.get_or_create(&ByCode { code: code.as_str_name() }));
        }
        this.register_kept();
        this.register_shed();
        this.register_times();
        this.admission.register(&mut this.registry);
        this
    }

    /// What was kept, and what it is kept in.
    fn register_kept(&mut self) {
        let r = &mut self.registry;
        r.register("connections", "Clients connected, handshakes included", self.connections.clone());
        r.register("sessions", "Sessions with clients or held ops on this gateway", self.sessions.clone());
        r.register("links", "Links to owners that are up", self.links.clone());
        r.register("ops_in", "Ops received from clients", self.ops_in.clone());
        r.register("ops_acked", "Ops echoed or committed", self.ops_acked.clone());
        r.register("ops_nacked", "Ops answered with a nack, by code", self.ops_nacked.clone());
        r.register("held_ops", "Ops received and not yet settled", self.held_ops.clone());
        r.register_with_unit("held", "Memory of held ops", Unit::Bytes, self.held_bytes.clone());
        r.register("ops_resent", "Held ops written to an owner again", self.ops_resent.clone());
        r.register("epochs_moved", "Sessions bound to another owner or epoch", self.epochs_moved.clone());
        r.register("redirects", "Hints of another owner that were followed", self.redirects.clone());
        r.register("not_owner", "Answers of owners that a session is not theirs", self.not_owner.clone());
        r.register(
            "reactions_delivered",
            "Reactions queued to clients, one for each",
            self.reactions_delivered.clone(),
        );
        r.register("accepted", "Sockets accepted, those refused later included", self.accepted.clone());
        r.register("silent", "Of those closed by the other end before a byte: health checks", self.silent.clone());
        r.register("resolves", "Linearizable reads of the directory", self.resolves.clone());
        r.register("directory_synced", "1 = the directory's watch is current", self.directory_synced.clone());
        let age = self.directory_age.clone();
        r.register_with_unit(
            "directory_age",
            "Time since the directory was last known to be current",
            Unit::Seconds,
            age,
        );
        let drift = self.clock_drift.clone();
        r.register_with_unit("clock_drift", "Anchored clock minus the system's", Unit::Seconds, drift);
    }

    /// What was refused, dropped or lost.
    fn register_shed(&mut self) {
        let r = &mut self.registry;
        r.register("refused", "Clients refused before their hello, by reason", self.refused.clone());
        r.register("hold_expired", "Held ops that reached their TTL, outcome unknown", self.hold_expired.clone());
        let zombie = "Frames of an epoch older than the binding, dropped: a zombie speaks";
        r.register("stale_frames_dropped", zombie, self.stale_dropped.clone());
        r.register("reactions_dropped", "Reactions dropped, by reason", self.reactions_dropped.clone());
        r.register("resyncs", "Clients that found a hole; the canary", self.resyncs.clone());
        r.register("slow_backlogs", "Backlogs of slow clients replaced by a snapshot", self.slow.clone());
        r.register("links_ended", "Links that ended, by reason", self.links_ended.clone());
        r.register("dials_failed", "Dials of owners without success, by reason", self.dials_failed.clone());
        r.register("link_unknown", "Messages of owners of a kind not known here", self.link_unknown.clone());
        r.register("suspects", "Refused nodes reported to placement", self.suspects.clone());
        r.register("resolves_failed", "Reads of the directory that failed", self.resolves_failed.clone());
    }

    fn register_times(&mut self) {
        let r = &mut self.registry;
        let s = || Unit::Seconds;
        r.register_with_unit("resume", "Loss of an owner or link to the first echo after it", s(), self.resume.clone());
        let resend = "The directory's word of a move to a held op's hand-over to the new owner's stream";
        r.register_with_unit("resend_after_move", resend, s(), self.resend_after_move.clone());
        let last = "When a held op was last handed over after a move, seconds since 1970; 0 = never";
        r.register_with_unit("last_resend_timestamp", last, s(), self.last_resend.clone());
        r.register_with_unit("op_to_echo", "An op's arrival to its echo", s(), self.op_to_echo.clone());
        let up = "An op's arrival to its batch's hand-over to the link's stream, first sends";
        r.register_with_unit("gateway_up", up, s(), self.gateway_up.clone());
        let down = "A durable frame's reading from the link to its write to the client's socket";
        r.register_with_unit("gateway_down", down, s(), self.gateway_down.clone());
        r.register_with_unit("link_rtt", "Ping to pong inside a link", s(), self.link_rtt.clone());
    }

    /// The text exposition (OpenMetrics) of everything.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            text.clear(); // writing to a String does not fail
        }
        text
    }

    /// Lets another part of the process add its instruments before the metrics are shared.
    pub fn registry_mut(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// What the admission counts into.
    #[must_use]
    pub fn admission(&self) -> Arc<Admission> {
        self.admission.clone()
    }

    /// One thing a session saw.
    pub fn observe(&self, observation: &Observation) {
        match observation {
            Observation::Resent { .. } => drop(self.ops_resent.inc()),
            Observation::StaleDropped { .. } => drop(self.stale_dropped.inc()),
            Observation::ReactionDropped(why) => {
                self.reactions_dropped.get_or_create(&ByReason { reason: drop_name(*why) }).inc();
            }
            Observation::ReactionDelivered { to } => drop(self.reactions_delivered.inc_by(*to as u64)),
            Observation::Settled { op_to_echo_us } => {
                self.ops_acked.inc();
                self.op_to_echo.observe(seconds(*op_to_echo_us));
            }
            Observation::Nacked(code) => {
                self.ops_nacked.get_or_create(&ByCode { code: code.as_str_name() }).inc();
            }
            Observation::HoldExpired => drop(self.hold_expired.inc()),
            Observation::Redirected => drop(self.redirects.inc()),
            Observation::Resync => drop(self.resyncs.inc()),
            Observation::Rebound { .. } => drop(self.epochs_moved.inc()),
            Observation::Resumed { us } => {
                self.resume.observe(seconds(*us));
                self.resumed.0.fetch_add(1, Ordering::Relaxed);
                self.resumed.1.fetch_max(*us, Ordering::Relaxed);
            }
            Observation::NotOwner => drop(self.not_owner.inc()),
            // Counted where the link writes it.
            Observation::Forwarded { .. } => {}
        }
    }

    /// What happened lately, in words.
    #[must_use]
    pub fn happenings(&self) -> &Happenings {
        &self.happenings
    }

    /// Sessions that moved ever, those that resumed since the last call, and the slowest of these in microseconds.
    #[must_use]
    pub fn take_moves(&self) -> (u64, u64, u64) {
        let take = |n: &AtomicU64| n.swap(0, Ordering::Relaxed);
        (self.epochs_moved.get(), take(&self.resumed.0), take(&self.resumed.1))
    }

    /// An op came in.
    pub fn op_in(&self) {
        self.ops_in.inc();
    }

    /// A backlog was replaced by a snapshot.
    pub fn slow(&self) {
        self.slow.inc();
    }

    /// Held ops and bytes changed by this much.
    pub fn held(&self, ops: i64, bytes: i64) {
        self.held_ops.inc_by(ops);
        self.held_bytes.inc_by(bytes);
    }

    /// Sessions here now.
    pub fn sessions(&self, n: i64) {
        self.sessions.set(n);
    }

    /// Reactions dropped from the queues of connections ever.
    pub fn reactions_dropped_in_queues(&self, total: u64) {
        raise(&self.reactions_dropped.get_or_create(&ByReason { reason: "queue" }), total);
    }

    /// An op took this long from its arrival to the link, in microseconds.
    pub fn gateway_up(&self, us: u64) {
        self.gateway_up.observe(seconds(us));
    }

    /// A held op was handed to another owner's stream at `now_us`; the move was heard of at `moved_us` (wall clock).
    pub fn resent_after_move(&self, now_us: u64, moved_us: u64) {
        self.resend_after_move.observe(seconds(now_us.saturating_sub(moved_us)));
        self.last_resend.set(seconds(now_us));
    }

    /// A frame took this long from the link to the client's socket, in microseconds.
    pub fn gateway_down(&self, us: u64) {
        self.gateway_down.observe(seconds(us));
    }

    /// A link's round trip, in microseconds.
    pub fn link_rtt(&self, us: u64) {
        self.link_rtt.observe(seconds(us));
    }

    /// Links that are up changed by this much.
    pub fn links(&self, by: i64) {
        self.links.inc_by(by);
    }

    /// A link ended.
    pub fn link_ended(&self, end: &End) {
        let reason = match end {
            End::Silent => "silent",
            End::Overflow => "overflow",
            End::Broken(_) => "broken",
            End::Unused => "unused",
        };
        self.links_ended.get_or_create(&ByReason { reason }).inc();
    }

    /// A dial failed: `refused`, `boot` or `other`.
    pub fn dial_failed(&self, reason: &'static str) {
        self.dials_failed.get_or_create(&ByReason { reason }).inc();
    }

    /// An owner said something of a kind not known here.
    pub fn link_unknown(&self) {
        self.link_unknown.inc();
    }

    /// A refused node was reported.
    pub fn suspect(&self) {
        self.suspects.inc();
    }

    /// A read of the directory ended.
    pub fn resolved(&self, ok: bool) {
        self.resolves.inc();
        if !ok {
            self.resolves_failed.inc();
        }
    }

    /// The directory's state, looked at once a second.
    pub fn directory(&self, synced: bool, age: std::time::Duration) {
        self.directory_synced.set(i64::from(synced));
        self.directory_age.set(age.as_secs_f64());
    }

    /// The anchored clock's drift, in microseconds.
    pub fn drift(&self, us: i64) {
        #[allow(clippy::cast_precision_loss, reason = "a drift that large is no clock")]
        self.clock_drift.set(us as f64 / 1e6);
    }

    /// The listener's totals: connections now, sockets accepted and of those silent ever, refusals ever in the order of
    /// [`REFUSALS`].
    pub fn listener(&self, connections: u64, (accepted, silent): (u64, u64), refused: [u64; REFUSALS.len()]) {
        self.connections.set(i64::try_from(connections).unwrap_or(i64::MAX));
        raise(&self.accepted, accepted);
        raise(&self.silent, silent);
        for (reason, total) in REFUSALS.into_iter().zip(refused) {
            raise(&self.refused.get_or_create(&ByReason { reason }), total);
        }
    }

    /// Connections now, as last reported by [`Metrics::listener`].
    #[must_use]
    pub fn connections(&self) -> u64 {
        u64::try_from(self.connections.get()).unwrap_or(0)
    }
}

/// Sets a counter to a total kept elsewhere. One caller, so there is no race.
fn raise(counter: &Counter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

fn drop_name(why: ReactionDrop) -> &'static str {
    match why {
        ReactionDrop::Stale => "stale",
        ReactionDrop::Late => "late",
        ReactionDrop::Rate => "rate",
        ReactionDrop::NoOwner => "no_owner",
        ReactionDrop::TooLarge => "too_large",
    }
}

#[cfg(test)]
mod tests;
