//! What a listener is told: limits with their units in the names, and the numbers it counts.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use holdfast_core::{proto::server_frame, session::OpRate};

use super::jwks::Jwks;
use crate::{
    metrics::Transport,
    transport::{
        tls::Tls,
        trust::Trust,
        websocket::{Pages, Ready},
    },
};

/// Everything a listener needs, validated. No config file format is known here.
#[derive(Clone)]
pub struct ListenerConfig {
    /// Address to listen on; port 0 = any free one.
    pub listen: SocketAddr,
    /// `None` = plain (behind a balancer that terminates TLS, or in tests).
    pub tls: Option<Tls>,
    /// Keys that tokens are verified with.
    pub keys: Jwks,
    /// Origins browsers may come from; empty or `*` = any.
    pub origins: Vec<String>,
    /// Opaque label of this gateway in `welcome`.
    pub gateway: String,
    /// Features offered; `welcome` names those the client asked for too.
    pub features: Vec<String>,
    /// Static pages served beside the endpoint (demo page, client library); `None` = none.
    pub pages: Option<Pages>,
    /// Whether `/readyz` says so here; `None` = always.
    pub ready: Option<Ready>,
    /// Whose word about a client's address is taken.
    pub trust: Trust,
    /// Limits.
    pub limits: Limits,
}

impl ListenerConfig {
    /// What clients come over.
    #[must_use]
    pub fn transport(&self) -> Transport {
        if self.tls.is_some() { Transport::Wss } else { Transport::Ws }
    }
}

/// Limits of one listener and of each of its connections (design 4.5, 9.4).
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Kernel queue of connections not yet accepted. Default 1280: 250 ms at 5,000/s.
    pub backlog: u32,
    /// From the upgrade to a valid hello. Default 5 s.
    pub hello_timeout: Duration,
    /// The server says something at least this often, in milliseconds. Default 2500.
    pub ping_ms: u32,
    /// Silence after which either side gives up, in milliseconds. Default 6000.
    pub dead_ms: u32,
    /// Between WebSocket pings with a nonce, in milliseconds. Default 10,000.
    pub rtt_ping_ms: u32,
    /// Largest frame of a client, in bytes. Default 64 KiB.
    pub frame_bytes_max: usize,
    /// Largest message (one or more frames), in bytes. Default 1 MiB.
    pub message_bytes_max: usize,
    /// Largest payload of an op or reaction, in bytes. Default 16 KiB.
    pub payload_bytes_max: usize,
    /// Sessions per connection. Default 64.
    pub sessions_max: usize,
    /// Unsettled ops per session and lane, told to the client (the session enforces it). Default 32.
    pub inflight_max: u32,
    /// Downstream queue per connection, in bytes. Default 256 KiB.
    pub queue_bytes_max: usize,
    /// Reactions in that queue, in bytes. Default 64 KiB.
    pub queue_reaction_bytes_max: usize,
    /// Oldest reaction that is written, in milliseconds. Default 1000.
    pub reaction_ttl_ms: u32,
    /// Over the downstream queue for this long: close 4102. Default 5 s.
    pub slow_timeout: Duration,
    /// After `exp` of the token. Default 30 s.
    pub token_grace: Duration,
    /// `BAD_FRAME`s within a minute that end a connection. Default 10.
    pub bad_frames_per_min: u32,
    /// How long a close frame may take to be written and answered. Default 2 s.
    pub close_timeout: Duration,
    /// What clients are told about coming back; the rank is drawn per connection.
    pub reconnect: server_frame::Reconnect,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            backlog: 1280,
            hello_timeout: Duration::from_secs(5),
            ping_ms: 2500,
            dead_ms: 6000,
            rtt_ping_ms: 10_000,
            frame_bytes_max: 64 * 1024,
            message_bytes_max: 1024 * 1024,
            payload_bytes_max: 16 * 1024,
            sessions_max: 64,
            inflight_max: 32,
            queue_bytes_max: 256 * 1024,
            queue_reaction_bytes_max: 64 * 1024,
            reaction_ttl_ms: 1000,
            slow_timeout: Duration::from_secs(5),
            token_grace: Duration::from_secs(30),
            bad_frames_per_min: 10,
            close_timeout: Duration::from_secs(2),
            reconnect: server_frame::Reconnect { spread_ms: 4000, rank_ppm: 0, base_ms: 250, cap_ms: 8000 },
        }
    }
}

impl Limits {
    /// As `welcome.limits`, with the rate of reactions, which the session enforces.
    #[must_use]
    pub fn told(&self, reactions: OpRate) -> server_frame::Limits {
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        server_frame::Limits {
            max_frame_bytes: small(self.frame_bytes_max),
            max_payload_bytes: small(self.payload_bytes_max),
            max_sessions: small(self.sessions_max),
            max_inflight: self.inflight_max,
            reactions_per_s: reactions.per_s,
            reactions_burst: reactions.burst,
            max_queue_bytes: small(self.queue_bytes_max),
        }
    }
}

/// What a listener and its connections count. All only grow, but `open` and `accepting`.
#[derive(Debug, Default)]
pub struct Stats {
    /// Sockets accepted, refused ones included.
    pub accepted: AtomicU64,
    /// Refused: too many connections.
    pub refused_connections: AtomicU64,
    /// Refused: too many from one address.
    pub refused_prefix: AtomicU64,
    /// Refused: too many handshakes under way, or their turn would have come too late.
    pub refused_handshakes: AtomicU64,
    /// Accepts that failed for want of descriptors (EMFILE, ENFILE).
    pub no_descriptors: AtomicU64,
    /// Reset: a PROXY header from an address that is not trusted, or one is required and the address is not trusted.
    pub proxy_untrusted: AtomicU64,
    /// Reset: no PROXY header where one is required.
    pub proxy_missing: AtomicU64,
    /// Reset: a PROXY header that is none.
    pub proxy_malformed: AtomicU64,
    /// Closed by the other end before a byte, as health checks do; no failure.
    pub silent: AtomicU64,
    /// TLS or HTTP that failed or took too long.
    pub handshakes_failed: AtomicU64,
    /// Tokens refused.
    pub tokens_refused: AtomicU64,
    /// Frames that were not frames.
    pub bad_frames: AtomicU64,
    /// Reactions dropped from a full queue, or stale or late at the write.
    pub reactions_dropped: AtomicU64,
    /// Sessions whose backlog was replaced by a snapshot.
    pub backlogs_dropped: AtomicU64,
    /// Connections that panicked.
    pub panicked: AtomicU64,
    /// Connections now, handshakes included.
    pub open: AtomicU64,
    /// 1 while the socket accepts.
    pub accepting: AtomicU64,
    /// `reconnect.spread_ms` by the gateways that could take our clients over; 0 = not known, as configured.
    pub spread_ms: AtomicU64,
    /// Newest estimate of the scheduler's lag, in microseconds: the error of an arrival time.
    pub sched_lag_us: AtomicU64,
}

impl Stats {
    /// One more.
    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Over how long clients that lose this gateway spread, in milliseconds.
    #[must_use]
    pub fn spread_ms(&self, configured: u32) -> u32 {
        match self.spread_ms.load(Ordering::Relaxed) {
            0 => configured,
            known => u32::try_from(known).unwrap_or(configured),
        }
    }

    /// A gauge raised until the guard is dropped.
    #[must_use]
    pub fn hold(self: &Arc<Self>, which: fn(&Self) -> &AtomicU64) -> Held {
        which(self).fetch_add(1, Ordering::Relaxed);
        Held { stats: self.clone(), which }
    }
}

/// Lowers a gauge when dropped.
#[derive(Debug)]
pub struct Held {
    stats: Arc<Stats>,
    which: fn(&Stats) -> &AtomicU64,
}

impl Drop for Held {
    fn drop(&mut self) {
        (self.which)(&self.stats).fetch_sub(1, Ordering::Relaxed);
    }
}
