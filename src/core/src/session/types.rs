//! What goes into a [`super::Session`] and what comes out of it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    id::{Boot, ConnId, Lane, LinkId},
    proto::{self, Code, gateway_msg, server_frame},
    time::Wall,
};

/// Limits of one session at one gateway; defaults by kind of session (design 4.5 and 9.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long an op may be held: the kind's lease TTL + 10 s.
    pub hold_ttl: Duration,
    /// Unsettled ops per lane.
    pub inflight_per_lane: usize,
    /// Held ops of the session on this gateway, all lanes; times 16 KiB of payload it bounds the session's memory.
    pub held_ops_max: usize,
    /// First sends per second and attachment.
    pub op_rate_per_s: u32,
    /// First sends at once.
    pub op_burst: u32,
    /// Resends (attempt > 1) at once, beside the rate.
    pub resend_burst: u32,
    /// Reactions per second and attachment.
    pub reaction_rate_per_s: u32,
    /// Reactions at once.
    pub reaction_burst: u32,
    /// Oldest reaction that is still delivered.
    pub reaction_ttl: Duration,
    /// Events kept for those who come back, by number.
    pub ring_events_max: usize,
    /// Events kept for those who come back, by bytes of payload.
    pub ring_bytes_max: usize,
    /// Largest payload of an op or reaction.
    pub payload_bytes_max: usize,
    /// An attach is answered within this, if only by `status{moving}`.
    pub attach_answer: Duration,
    /// Hints followed without a change of the directory.
    pub redirects_max: u32,
    /// How long new ops are held while the store is down before they are refused (games 5 s, else none).
    pub store_down_hold: Duration,
}

impl Limits {
    /// Limits of a kind of session: `game`, `meeting`, `document`; parameters after `:` are ignored, unknown kinds are
    /// treated as documents (the longest lease).
    #[must_use]
    pub fn for_kind(kind: &str) -> Self {
        let base = Self {
            hold_ttl: Duration::from_secs(25),
            inflight_per_lane: 32,
            held_ops_max: 1024,
            op_rate_per_s: 30,
            op_burst: 60,
            resend_burst: 32,
            reaction_rate_per_s: 20,
            reaction_burst: 40,
            reaction_ttl: Duration::from_secs(1),
            ring_events_max: 256,
            ring_bytes_max: 64 * 1024,
            payload_bytes_max: 16 * 1024,
            attach_answer: Duration::from_secs(1),
            redirects_max: 4,
            store_down_hold: Duration::ZERO,
        };
        match kind.split(':').next() {
            Some("game") => Self {
                hold_ttl: Duration::from_secs(13),
                op_rate_per_s: 5,
                op_burst: 10,
                store_down_hold: Duration::from_secs(5),
                ..base
            },
            Some("meeting") => Self { hold_ttl: Duration::from_secs(20), op_rate_per_s: 5, op_burst: 10, ..base },
            _ => base,
        }
    }
}

/// A client that attaches: who, from where, and what it has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its connection.
    pub conn: ConnId,
    /// Attachment id, unique in this gateway process, never reused.
    pub att: u32,
    /// `sub` of the verified token.
    pub principal: Arc<str>,
    /// Seat or member; empty = none.
    pub participant: Arc<str>,
    /// 1 participant, 2 spectator.
    pub role: u32,
    /// Lane of its ops.
    pub lane: Lane,
    /// Grows with every connection of this lane; the lower one is replaced.
    pub conn_seq: u32,
    /// `Attach.n`, echoed.
    pub n: u32,
    /// Newest position it has applied.
    pub seen: proto::Pos,
    /// It was attached elsewhere before.
    pub reconnect: bool,
}

/// When the bytes of an op arrived, and what is known of the path: all of `Stamp` but `sent_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Last socket read that completed the frame.
    pub at: Wall,
    /// Own estimate of the error of `at`, µs.
    pub err_us: u32,
    /// Smoothed RTT, µs; 0 = none.
    pub srtt_us: u32,
    /// Smallest of the last samples, µs.
    pub rtt_min_us: u32,
    /// Smallest full exchange ever seen, µs.
    pub rtt_bound_us: u32,
    /// Samples taken.
    pub rtt_samples: u32,
    /// `RttSource` as its number.
    pub rtt_source: i32,
    /// Clock domain of `at`.
    pub clock_id: u64,
}

/// What the directory says of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Ownership generation.
    pub epoch: u64,
    /// The owner's life; 0 = parked, nobody has room.
    pub boot: Boot,
    /// The owner's node.
    pub node: Arc<str>,
    /// `host:port` of its Owner service; empty if the node is not known (yet): the pool asks the directory.
    pub addr: Arc<str>,
    /// Kind of session, with parameters after `:`.
    pub kind: Arc<str>,
    /// The session has ended.
    pub ended: bool,
    /// etcd revision that says so; 0 = a hint.
    pub revision: i64,
    /// When the last owner's end was seen, ms since 1970; 0 = a planned move, or not known (`Placement.unowned_from_ms`).
    pub unowned_from_ms: u64,
}

/// What the driver has to do, in order, before it lets go of the session's lock.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Queue `frame` for one client. `stamp` = report the first write with `handle_delivered` (STAMP_DELIVERY).
    Deliver { conn: ConnId, frame: server_frame::F, stamp: bool },
    /// The same frame for many; encode it once.
    Fanout { conns: Vec<ConnId>, frame: server_frame::F, stamp: bool },
    /// Queue `msg` on the link.
    Send { link: LinkId, msg: gateway_msg::M },
    /// A link to this life of a node is wanted; `handle_link_up` when there is one (at once if there already is).
    Connect { boot: Boot, node: Arc<str>, addr: Arc<str> },
    /// A linearizable read of the placement is wanted; `handle_route` or `handle_absent` with the result, whatever it is.
    Resolve,
    /// The session is bound to this life of a node from now on: keep it in that index.
    Bound { boot: Boot },
    /// It no longer is.
    Unbound { boot: Boot },
    /// Close this connection with this code (design 4.4); it is detached here already.
    Kick { conn: ConnId, close: u16 },
    /// Held ops and bytes changed by this much (budgets and gauges).
    Held { ops: i32, bytes: i64 },
    /// For metrics and logs.
    Observe(Observation),
}

/// Things worth counting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// A held op left for an owner again. `moved_at`: when a new binding was heard of, if that is why.
    Resent { moved_at: Option<Wall> },
    /// An op was forwarded for the first time; arrival to here, µs.
    Forwarded { queued_us: u64 },
    /// A frame of an older epoch (or a link that is not ours) was dropped: a zombie speaks.
    StaleDropped { epoch: u64 },
    /// A reaction was dropped.
    ReactionDropped(ReactionDrop),
    /// A reaction went out to this many.
    ReactionDelivered { to: usize },
    /// An op was echoed or committed: arrival to echo, µs.
    Settled { op_to_echo_us: u64 },
    /// A client was told no.
    Nacked(Code),
    /// A held op reached its TTL.
    HoldExpired,
    /// The owner named another one.
    Redirected,
    /// A client asked to be caught up (the canary).
    Resync,
    /// A new binding; held ops wait for it.
    Rebound { epoch: u64, held: usize },
    /// The first held op was echoed after a lost owner or link, µs since the loss.
    Resumed { us: u64 },
    /// The owner refuses a session the directory gives it.
    NotOwner,
}

/// Why a reaction was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReactionDrop {
    /// Its epoch is not the current one.
    Stale,
    /// Older than the TTL.
    Late,
    /// Over its rate.
    Rate,
    /// Nobody to send it to.
    NoOwner,
    /// Over the payload limit.
    TooLarge,
}

/// One held op, for the inspector and the simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldView<'a> {
    /// Who sent it.
    pub principal: &'a str,
    /// Its lane.
    pub lane: Lane,
    /// Its seq.
    pub seq: u64,
    /// When it arrived.
    pub arrived_at: Wall,
    /// Times it was written to a link.
    pub sends: u32,
    /// Its identity's digest.
    pub digest: &'a [u8],
    /// The bytes that go to every owner.
    pub held: &'a Bytes,
}
