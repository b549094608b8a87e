//! One client: dials, says hello, lives on a connection, and comes back by the rules when it breaks.

use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, OnceLock};

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use tokio::sync::watch;

use super::dial::Dial;
use super::life::Life;
use super::policy::Policy;
use super::reconnect::{End, Next, Rules};
use super::seat::Seat;
use super::wire;
use crate::clock::{instant, now_us};
use crate::journal::{Line, What};

/// What all clients are doing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Phase {
    /// Connect and attach; no ops.
    Setup,
    /// Ops are due from `start_us` until `until_us`.
    Run { start_us: u64, until_us: u64 },
    /// Hang up and hand the journals over.
    Stop,
}

/// Counters shared by all clients, for progress and for knowing when everything has settled.
#[derive(Default)]
pub struct Live {
    pub connected: AtomicI64,
    /// Connections that were welcomed.
    pub welcomed: AtomicI64,
    /// Welcomes so far.
    pub welcomes: AtomicU64,
    pub attached: AtomicI64,
    pub open_ops: AtomicI64,
    pub ops: AtomicU64,
    pub failed_dials: AtomicU64,
    /// Frames the server called wrong.
    pub errors: AtomicU64,
    /// Sessions whose next op is due as soon as the phase is told again.
    pub parked: OnceLock<HashSet<Arc<str>>>,
    /// Clients that were sent away for good.
    pub stopped: AtomicU64,
}

/// A seat and when its ops are due after the start.
pub struct Placed {
    pub seat: Seat,
    pub offset_us: u64,
    pub every_us: u64,
}

/// One client: a principal with one lane.
pub struct Client {
    pub index: usize,
    pub sub: Arc<str>,
    pub token: String,
    pub lane: Vec<u8>,
    pub seats: Vec<Placed>,
    /// Time between reactions of this client (0: none), which go round its seats.
    pub reaction_every_us: u64,
    pub dial: Dial,
    /// Gateway it dials first.
    pub first: usize,
    pub policy: Policy,
    /// Stays once it is welcomed, or else leaves for good.
    pub stay: bool,
    pub live: Arc<Live>,
}

impl Client {
    /// A client without seats.
    pub fn idle(index: usize, sub: Arc<str>, token: String, dial: Dial, live: Arc<Live>) -> Self {
        let lane = lane();
        Client {
            index,
            sub,
            token,
            lane,
            seats: Vec::new(),
            reaction_every_us: 0,
            first: index,
            dial,
            policy: Policy::Ranks,
            stay: true,
            live,
        }
    }

    /// Runs until `Phase::Stop`; returns the journal.
    pub async fn run(self, mut phase: watch::Receiver<Phase>) -> Vec<Line> {
        let mut rules = Rules::new(self.policy, order(self.index, self.first, self.dial.addrs.len()));
        let (index, dial, token, lane) = (self.index, self.dial.clone(), self.token.clone(), self.lane.clone());
        let mut life = Life::new(self);
        let (mut conn_seq, mut tries) = (0, 0);
        while *phase.borrow() != Phase::Stop {
            let gateway = rules.gateway();
            let turn = dial.turn().await;
            life.note(What::Dial, &dial.names[gateway]);
            let opened = dial.open(gateway, index, &rules.query()).await;
            drop(turn);
            let end = match opened {
                Ok(mut socket) => {
                    conn_seq += 1;
                    let hello = (!dial.raw).then(|| wire::hello(&token, &lane, conn_seq, tries));
                    life.serve(&mut socket, hello, (&mut rules, &mut phase)).await
                }
                Err(end) => end,
            };
            tries += 1;
            life.handle_end(&end);
            match rules.handle_end(now_us(), &end, rand::random()) {
                Next::Stop if end == End::Over => break,
                Next::Stop => {
                    life.handle_stop(&end);
                    let _ = phase.wait_for(|p| *p == Phase::Stop).await;
                }
                Next::Dial { wait_us } => {
                    let pause = tokio::time::sleep_until(instant(now_us() + wait_us));
                    tokio::select! { () = pause => {}, _ = phase.wait_for(|p| *p == Phase::Stop) => {} }
                }
            }
        }
        life.lines()
    }
}

/// A new lane. '!' is not a lane's first byte.
pub fn lane() -> Vec<u8> {
    let lane: [u8; 8] = rand::random();
    [&[lane[0] | 0x80], &lane[1..]].concat()
}

/// The order in which a client goes through the gateways: its first one, then the others in an order of its own, so that
/// the clients of one gateway spread evenly over the rest.
fn order(index: usize, first: usize, gateways: usize) -> Vec<usize> {
    let first = first % gateways.max(1);
    let mut rest: Vec<usize> = (0..gateways).filter(|g| *g != first).collect();
    // an even split of consecutive clients over who comes second, and chance for the rest
    let second = index / gateways.max(1) % rest.len().max(1);
    if !rest.is_empty() {
        rest.swap(0, second);
        rest[1..].shuffle(&mut SmallRng::seed_from_u64(index as u64));
    }
    [&[first], &rest[..]].concat()
}

#[cfg(test)]
#[path = "conn_tests.rs"]
mod tests;
