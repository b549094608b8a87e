//! Builds a gateway from its parts and runs it until it is told to stop.

use std::{future::Future, sync::Arc, time::Duration};

use holdfast_core::id::SessionId;

/// Everything a gateway is told; validated. `config` maps TOML to it.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Stable name, in `welcome.gateway`, in the directory and in owners' logs.
    pub id: String,
    /// `host:port` clients (or a balancer) reach it at; published in the directory.
    pub advertise: String,
    /// Admissions per second, published in the directory for spreads and forecasts.
    pub admit_per_s: u32,
    /// Shared secret of the owner links, sent as `authorization: Bearer`; `None` = none.
    pub link_token: Option<Arc<str>>,
    /// Report refused connections to placement (the fast path of design 8.2).
    pub fast_path: bool,
    /// Placement services to report to, `host:port`; empty = the leader the directory names.
    pub placement: Vec<String>,
    /// Budgets for held ops.
    pub held: HeldBudget,
    /// Longest graceful stop: held ops get this long to settle.
    pub drain_max: Duration,
}

/// Budgets for held ops (design 6.6): at a limit new ops are refused with 202, held ones are never evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBudget {
    /// Ops held by this gateway.
    pub ops_max: u32,
    /// Bytes held by this gateway.
    pub bytes_max: u64,
    /// Ops held for one connection.
    pub conn_ops_max: u32,
    /// Bytes held for one connection.
    pub conn_bytes_max: u64,
    /// Bytes held for one session.
    pub session_bytes_max: u64,
}

impl Default for HeldBudget {
    /// 262,144 ops and 256 MiB in all (20,000 connections with 13 ops each, 1 KiB on average); a connection 2,048 ops
    /// (64 sessions x 32 in flight) and 4 MiB; a session 16 MiB (1,024 ops of 16 KiB).
    fn default() -> Self {
        Self {
            ops_max: 262_144,
            bytes_max: 256 << 20,
            conn_ops_max: 2048,
            conn_bytes_max: 4 << 20,
            session_bytes_max: 16 << 20,
        }
    }
}

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
    pub binding: Option<(holdfast_core::id::Boot, u64)>,
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
pub struct GatewayHandle(());

impl GatewayHandle {
    /// The instruments, for `/metrics`.
    #[must_use]
    pub fn metrics(&self) -> Arc<crate::metrics::Metrics> {
        todo!()
    }
    /// Why this gateway should get no traffic; empty = ready.
    #[must_use]
    pub fn not_ready(&self) -> Vec<String> {
        todo!()
    }
    /// The directory, for `/readyz`.
    #[must_use]
    pub fn directory(&self) -> DirectoryState {
        todo!()
    }
    /// Up to `limit` held ops, oldest sessions first.
    #[must_use]
    pub fn held(&self, _limit: usize) -> Vec<HeldOp> {
        todo!()
    }
    /// Up to `limit` sessions.
    #[must_use]
    pub fn sessions(&self, _limit: usize) -> Vec<SessionSummary> {
        todo!()
    }
    /// Starts the drain, as a first SIGTERM does.
    pub fn drain(&self) {
        todo!()
    }
}

/// Runs a gateway on `directory` until `shutdown` completes, then drains. `started` gets the admin's handle.
///
/// # Errors
/// A listener cannot be bound, or a task of the gateway ended on its own.
pub async fn run(
    _config: GatewayConfig,
    _directory: (),
    _shutdown: impl Future<Output = ()> + Send,
    _started: impl FnOnce(GatewayHandle) + Send,
) -> anyhow::Result<()> {
    todo!()
}
