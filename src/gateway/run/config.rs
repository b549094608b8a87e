//! What a gateway is told.

use std::{path::PathBuf, time::Duration};

use crate::gateway::admission::Settings;
use crate::upstream::security::Security;

/// Everything a gateway is told; validated. `config` maps TOML to it.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Stable name, in `welcome.gateway`, in the directory and in owners' logs.
    pub id: String,
    /// `host:port` clients (or a balancer) reach it at; published in the directory.
    pub advertise: String,
    /// Limits of the admission; R is published in the directory for spreads and forecasts.
    pub admission: Settings,
    /// File with the fleet's keys; `None` = keys of this process alone.
    pub keys_file: Option<PathBuf>,
    /// What is shown to owners and placement.
    pub link: Security,
    /// Report refused connections to placement (the fast path of design 8.2).
    pub fast_path: bool,
    /// Placement services to report to, `host:port`; empty = the leader the directory names.
    pub placement: Vec<String>,
    /// Budgets for held ops.
    pub held: HeldBudget,
    /// How it stops.
    pub drain: DrainConfig,
}

/// How a gateway drains, unless an operator says otherwise (design 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainConfig {
    /// From the moment it is not ready to the last accept: balancers must see the one before the other.
    pub notice: Duration,
    /// Clients sent away per second; `None` = as many as the other gateways admit.
    pub rate_per_s: Option<u32>,
    /// Longest drain; `None` = the last client's slot + the longest hold TTL + 5 s. Zero: everything stops at once.
    pub max: Option<Duration>,
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
