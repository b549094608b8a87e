//! The command line of `storm`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::args::Transport;
use crate::client::policy::Crowd;

/// What the servers under the storm are.
#[derive(Clone, Copy, ValueEnum, PartialEq, Debug)]
pub enum Protocol {
    /// Gateways, by their own protocol.
    Holdfast,
    /// Any WebSocket server: connecting is being admitted.
    Raw,
}

#[derive(Args, Clone, Debug)]
pub struct Storm {
    /// Start everything here, on free loopback ports.
    #[arg(long)]
    pub local: bool,
    /// The first one is killed; the others are the survivors.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=16))]
    pub gateways: u16,
    /// N: clients of the gateway that is killed. One process has 20,000 descriptors.
    #[arg(long, default_value_t = 6_000, value_parser = clap::value_parser!(u64).range(1..=18_000))]
    pub clients: u64,
    /// R: admissions a second of each gateway; N clients and S survivors need N / (S R) at best.
    /// [default: 1000; wss 300; --overload 150; --churn 5000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub rate: Option<u64>,
    #[arg(long, default_value = "ws")]
    pub transport: Transport,
    /// How clients come back: slots, ranks, full-jitter, decorrelated, or hammer:P (P per cent hammer, the rest keep slots).
    #[arg(long, default_value = "slots")]
    pub policy: Crowd,
    /// Runs ranks and full jitter too, each on processes of its own, and prints them beside.
    #[arg(long)]
    pub compare: bool,
    /// Seconds without an admission before the kill.
    #[arg(long, default_value_t = 15)]
    pub idle_before: u64,
    /// Meetings at the survivors, with two participants each: the bystanders.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=5_000))]
    pub sessions: u64,
    /// Ops a second of the bystanders, and as many reactions.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub ops_per_s: u64,
    /// Instead of a kill: strangers come at X times R.
    #[arg(long, value_name = "X", conflicts_with_all = ["price", "churn", "compare"])]
    pub overload: Option<u64>,
    /// Instead of a kill: CPU of a gateway for a refusal and for an admission.
    #[arg(long, conflicts_with_all = ["churn", "compare"])]
    pub price: bool,
    /// Instead of a kill: clients that leave once they are welcome, at --rate a second, for so many seconds; then the
    /// highest rate that is sustained.
    #[arg(long, value_name = "SECONDS", conflicts_with = "compare")]
    pub churn: Option<u64>,
    #[arg(long, default_value = "holdfast")]
    pub protocol: Protocol,
    /// Servers of --protocol raw, ws://host:port/path; clients start at the first.
    #[arg(long, value_delimiter = ',')]
    pub target: Vec<String>,
    /// Raw: kills this process (SIGKILL). Without it and --kill-cmd the run asks you to do it.
    #[arg(long)]
    pub kill_pid: Option<u32>,
    /// Raw: runs this command in a shell.
    #[arg(long, conflicts_with = "kill_pid")]
    pub kill_cmd: Option<String>,
    /// Raw: allow targets that are not on this machine. A storm is an attack if they are not yours.
    #[arg(long)]
    pub remote: bool,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// JSON report; journals, record dump and logs are written beside it.
    #[arg(long)]
    pub report: Option<PathBuf>,
}

impl Storm {
    /// R.
    pub fn rate(&self) -> u64 {
        let usual = match (self.overload, self.churn, self.transport) {
            (Some(_), ..) => 150,
            (_, Some(_), _) => 5_000,
            (.., Transport::Wss) => 300,
            (.., Transport::Ws) => 1_000,
        };
        self.rate.unwrap_or(usual)
    }
}
