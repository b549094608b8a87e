//! How large a world is and what goes wrong in it.

use crate::{counts::Fault, rng::Chance};

/// Size and faults of one world, drawn from its seed.
#[derive(Clone, Debug)]
pub struct Config {
    /// Gateway processes.
    pub gateways: usize,
    /// Owner nodes.
    pub owners: usize,
    /// Sessions.
    pub sessions: usize,
    /// Clients.
    pub clients: usize,
    /// Kind of every session (decides limits and TTLs).
    pub kind: &'static str,
    /// Faults per 1000 steps.
    pub fault_per_mille: u64,
    /// Which faults there are (swarm testing: never all, so that each can go far).
    pub faults: Vec<Fault>,
    /// Longest usual delay on owner links, µs.
    pub link_us: u64,
    /// Longest usual delay to clients, µs.
    pub client_us: u64,
    /// Events between checkpoints at the owners.
    pub checkpoint_every: u64,
    /// Events that stay stored after a checkpoint.
    pub tail_events: usize,
    /// Writes with an ambiguous outcome, per 1000.
    pub ambiguous_per_mille: u64,
}

impl Config {
    /// One of three sizes, with a random subset of the faults.
    pub fn draw(rng: &mut Chance) -> Self {
        let (gateways, owners, sessions, clients) = match rng.below(10) {
            0..4 => (2, 2, 1, 2),
            4..8 => (2, 3, 2, 5),
            _ => (3, 4, 3, 9),
        };
        let keep = rng.range(250, 1000);
        let faults = Fault::ALL.iter().copied().filter(|_| rng.per_mille(keep)).collect();
        Self {
            gateways,
            owners,
            sessions,
            clients,
            kind: rng.pick(&["game", "meeting", "document"]).unwrap_or("game"),
            fault_per_mille: rng.pick(&[50, 150, 300]).unwrap_or(100),
            faults,
            link_us: rng.pick(&[500, 5_000, 50_000]).unwrap_or(500),
            client_us: rng.pick(&[2_000, 30_000, 200_000]).unwrap_or(2_000),
            checkpoint_every: rng.pick(&[3, 16, 256]).unwrap_or(16),
            tail_events: rng.pick(&[4, 32, 512]).unwrap_or(32),
            ambiguous_per_mille: rng.pick(&[0, 30, 150]).unwrap_or(0),
        }
    }
}
