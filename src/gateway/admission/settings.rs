//! Every limit of the admission, its default and the arithmetic behind it (design 9.4). `config/gateway.toml` says the
//! same to operators, `GET /limits` what holds now.

use std::time::Duration;

use holdfast_core::session::OpRates;

/// What the gate decides by. One for the whole process, exchanged as a whole while it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Connections at once, handshakes included. Default 0.9 x the descriptor limit; each costs < 8 KiB plain,
    /// < 16 KiB TLS when idle.
    pub connections_max: usize,
    /// Handshakes under way at once, from the first bytes of the client to the end of the upgrade. Default 1,250:
    /// 250 ms of 5,000/s. Each costs about 30 KiB, so 37 MiB.
    pub handshakes_max: usize,
    /// Handshakes that compute at once. Default 16: at 0.3 ms each they delay an established session by 5 ms at most.
    pub handshake_turns: usize,
    /// Longest wait for such a turn. Default 250 ms: what waits longer is given up by its client when it is done.
    pub handshake_queue: Duration,
    /// TLS handshake and HTTP header together. Default 3 s.
    pub handshake_timeout: Duration,
    /// Connections per second from one IPv4 address or IPv6 /64. Default 50.
    pub prefix_per_s: u32,
    /// The same at once. Default 200: an office or a school behind one address comes back in 4 s.
    pub prefix_burst: u32,
    /// An IPv6 /48 may do this many times as much. Default 8.
    pub prefix_wide_factor: u32,
    /// Limit private and loopback addresses too. Default off: balancers and proxies are there.
    pub prefix_private: bool,
    /// Admissions per second, R. Default 5,000.
    pub admit_per_s: u32,
    /// Admissions at once, in time at R. Default 20 ms, so 100.
    pub admit_burst: Duration,
    /// Shares of R when contended, in percent: tickets in their slot, resuming, known, anonymous. Default 45 30 15 10.
    pub shares: [u32; 4],
    /// Latest slot given. Default 30 s; beyond it `full`.
    pub horizon: Duration,
    /// How much before its slot a ticket is honoured. Default 50 ms.
    pub ticket_early: Duration,
    /// How long after its slot. Default 5 s.
    pub ticket_late: Duration,
    /// Most admissions in a second, tickets included, in percent of R. Default 105.
    pub guard_percent: u32,
    /// What is added at random to the horizon for those that get no slot. Default 15 s.
    pub plain_spread: Duration,
    /// Tokens that do not verify, per minute and prefix. Default 5.
    pub token_failures_per_min: u32,
    /// Attaches per second and owner. Default 1,000.
    pub attach_per_s: u32,
    /// Attaches of one owner that it has not answered. Default 256: what an owner does in 250 ms.
    pub attach_inflight: u32,
    /// Longest wait of an attach for its turn. Default 1 s, within which it is to be answered (4.3).
    pub attach_wait: Duration,
    /// Rates of ops and reactions by kind of session.
    pub ops: OpRates,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections_max: descriptors() / 10 * 9,
            handshakes_max: 1250,
            handshake_turns: 16,
            handshake_queue: Duration::from_millis(250),
            handshake_timeout: Duration::from_secs(3),
            prefix_per_s: 50,
            prefix_burst: 200,
            prefix_wide_factor: 8,
            prefix_private: false,
            admit_per_s: 5000,
            admit_burst: Duration::from_millis(20),
            shares: [45, 30, 15, 10],
            horizon: Duration::from_secs(30),
            ticket_early: Duration::from_millis(50),
            ticket_late: Duration::from_secs(5),
            guard_percent: 105,
            plain_spread: Duration::from_secs(15),
            token_failures_per_min: 5,
            attach_per_s: 1000,
            attach_inflight: 256,
            attach_wait: Duration::from_secs(1),
            ops: OpRates::default(),
        }
    }
}

/// Nine tenths of the descriptors this process may have: the rest is for links, files and the admin server.
#[must_use]
pub fn descriptors_for_clients() -> usize {
    descriptors() / 10 * 9
}

/// The soft limit of open descriptors of this process; 1024 if it cannot be told.
fn descriptors() -> usize {
    rlimit::Resource::NOFILE.get().ok().and_then(|(soft, _)| usize::try_from(soft).ok()).unwrap_or(1024)
}
