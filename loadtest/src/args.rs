//! The command line (design section 12).

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::client::policy::Crowd;
use crate::client::traffic::Kind;
use crate::scenario::storm::args::Storm;

/// Load, faults and the verifier for Holdfast.
///
/// Exit status: 0 every promise kept, 1 a promise broken, 2 could not run.
#[derive(Parser)]
#[command(version)]
pub struct Cli {
    #[command(subcommand)]
    pub what: What,
}

#[derive(Subcommand)]
pub enum What {
    /// Load without a fault: latency, CPU, memory per idle connection.
    Steady(Run),
    /// An owner is killed (SIGKILL) under load.
    Crash(Run),
    /// An owner is stopped past its lease, in mid-write, and continued.
    Zombie(Run),
    /// The directory is stopped for 20 s, killed and restarted, and its history compacted.
    EtcdOutage(Run),
    /// The store hangs for 10 s.
    StoreSick(Run),
    /// A gateway is killed (SIGKILL) under load: its clients resend elsewhere, games first.
    GatewayCrash(Run),
    /// A gateway is told to go (SIGTERM) under load: its clients go elsewhere at a pace.
    Drain(Run),
    /// An owner is told to go (SIGTERM) under load: its sessions move to the others.
    OwnerDrain(Run),
    /// The store is lost and restored as it was 5 s ago: clients are told what to check.
    Restore(Run),
    /// A gateway is killed (SIGKILL) and its clients come back at once.
    Storm(Storm),
    /// Judges journals against a dump of the store.
    Verify {
        /// JSON Lines, one client's lines in its own order.
        #[arg(required = true)]
        journals: Vec<PathBuf>,
        /// Written by `--report` as `<report>.record.jsonl`.
        #[arg(long)]
        record: PathBuf,
    },
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Debug)]
pub enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Debug)]
pub enum Transport {
    Ws,
    Wss,
}

#[derive(Args, Clone, Debug)]
pub struct Run {
    /// Start everything here, on free loopback ports.
    #[arg(long)]
    pub local: bool,
    /// [default: 1; gateway-crash, drain: 3]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub gateways: Option<u16>,
    /// [default: 6; steady, store-sick: 3]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub owners: Option<u16>,
    /// Sessions of the owner that dies: the run makes this many for each owner.
    #[arg(long)]
    pub victim_sessions: Option<usize>,
    /// One op held in each of so many sessions of the owner that dies (crash): it is stopped, these are sent, then it is
    /// killed. Implies as many --victim-sessions and --fast-path off.
    #[arg(long)]
    pub held: Option<usize>,
    /// An owner is killed (SIGKILL) in the middle of the drain (drain).
    #[arg(long)]
    pub kill_owner: bool,
    /// Sessions in all. [default: 1000, or owners x victim-sessions]
    #[arg(long)]
    pub sessions: Option<usize>,
    /// Sessions a connection multiplexes. [default: 16; gateway-crash, drain: 2]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub sessions_per_conn: Option<u16>,
    /// Ops a second over all sessions, at intended times that wait for nobody.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub ops_per_s: u64,
    /// Reactions a second over all sessions. [default: 0; meetings 100; zombie 400]
    #[arg(long)]
    pub reactions_per_s: Option<u64>,
    /// Kind of session, and with it the owners' lease. [default: game; zombie, store-sick: meeting]
    #[arg(long)]
    pub lease: Option<Kind>,
    #[arg(long, default_value = "on")]
    pub fast_path: Switch,
    #[arg(long, default_value = "ws")]
    pub transport: Transport,
    /// How clients come back: ranks, slots, full-jitter, decorrelated, or hammer:P (P per cent hammer, the rest keep slots).
    #[arg(long, default_value = "ranks")]
    pub policy: Crowd,
    /// Admissions a second of each gateway. [default: the gateway's own; gateway-crash, drain: 50]
    #[arg(long)]
    pub admit_per_s: Option<u64>,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Seconds of load; the fault comes 5 s after its start. [default: long enough for the fault]
    #[arg(long)]
    pub duration: Option<u64>,
    /// Most sessions an owner accepts.
    #[arg(long, default_value_t = 10_000)]
    pub cap: u32,
    /// Idle connections to measure memory by (steady).
    #[arg(long, default_value_t = 5_000)]
    pub idle: usize,
    /// JSON report; journals, record dump and logs are written beside it.
    #[arg(long)]
    pub report: Option<PathBuf>,
}

impl Run {
    /// Gateways, where a scenario starts so many by itself.
    pub fn gateways_or(&self, usual: u16) -> u16 {
        self.gateways.unwrap_or(usual)
    }

    /// Sessions of one connection.
    pub fn per_conn(&self) -> usize {
        self.sessions_per_conn.unwrap_or(16).into()
    }
}
