//! One run: 300 steps with faults, then everything is healed and must converge (design 15.8).

use std::panic::{AssertUnwindSafe, catch_unwind};

use holdfast_core::mutant::{self, Mutant};

use crate::{
    client::Wake,
    counts::{Counts, Seen},
    event::{Event, Proc},
    world::{World, trace},
};

/// Steps of the fault phase.
pub const STEPS: u32 = 300;
/// Steps of the liveness phase, each of `HEAL_STEP_US`: 90 s cover two hold TTLs, the longest waits and retries there are.
const HEAL_STEPS: u32 = 900;
const HEAL_STEP_US: u64 = 100_000;

/// How a run ended.
pub struct Outcome {
    /// The broken promise: number in design 15 and what was seen.
    pub violation: Option<(u32, String)>,
    /// What happened.
    pub counts: Counts,
}

/// Runs one seed, with a defect or without.
pub fn run(seed: u64, defect: Option<Mutant>, traced: bool) -> Outcome {
    mutant::activate(defect);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed, traced);
        for _ in 0..STEPS {
            world.step();
            if world.oracle.violation.is_some() {
                break;
            }
        }
        world.heal();
        Outcome { violation: world.oracle.violation.take(), counts: world.counts }
    }));
    mutant::activate(None);
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default();
        Outcome { violation: Some((0, format!("panic: {text}"))), counts: Counts::default() }
    })
}

impl World {
    /// Ends all faults, then waits until everything has settled.
    fn heal(&mut self) {
        if self.oracle.violation.is_some() {
            return;
        }
        trace!(self, "healed");
        self.healed = true;
        self.thaw();
        self.dir.lag_us = 0;
        self.store.down = false;
        for g in 0..self.gws.len() {
            self.gws[g].cut_off_until = 0;
            if self.gws[g].alive && self.gws[g].paused {
                self.resume(Proc::Gateway(g));
            }
        }
        for o in 0..self.owners.len() {
            if self.owners[o].alive && self.owners[o].paused {
                self.resume(Proc::Owner(o));
            }
            if self.owners[o].alive && self.owners[o].draining {
                self.retire(o);
            }
        }
        for node in 0..self.cfg.owners {
            self.after(100_000, Event::StartOwner { node });
        }
        for slot in 0..self.cfg.gateways {
            self.after(100_000, Event::StartGateway { slot });
        }
        for client in 0..self.clients.len() {
            self.after(200_000, Event::ClientWake { client, wake: Wake::Connect });
        }
        for _ in 0..HEAL_STEPS {
            self.run_until(self.now + HEAL_STEP_US);
            if self.oracle.violation.is_some() {
                return;
            }
            if self.unsettled().is_none() {
                (0..self.oracle.two_holders()).for_each(|_| self.counts.seen(Seen::TwoHolders));
                return;
            }
        }
        if let Some(what) = self.unsettled() {
            self.oracle.violate(8, what);
        }
    }

    /// A drained life ends.
    pub fn retire(&mut self, owner: usize) {
        if self.owners[owner].alive {
            let boot = self.owners[owner].boot;
            self.kill_owner(owner);
            self.lease_gone(boot);
        }
    }

    /// What has not settled yet, if anything.
    fn unsettled(&self) -> Option<String> {
        for (i, c) in self.clients.iter().enumerate().filter(|(_, c)| !c.gone) {
            if !c.attached {
                return Some(format!("client {i} is not attached (conn {:?})", c.conn));
            }
            if let Some((seq, p)) = c.pending.iter().next() {
                return Some(format!("client {i}: op {seq} is pending: {p:?}"));
            }
            let head = self.store.records[c.session].ver();
            if c.seen.ver != head {
                return Some(format!("client {i} is at ver {}, the record of s{} at {head}", c.seen.ver, c.session));
            }
        }
        for (g, gw) in self.gws.iter().enumerate().filter(|(_, g)| g.alive) {
            for (s, gs) in &gw.sessions {
                if let Some(h) = gs.core.held().next() {
                    let lane = crate::show::lane(h.lane.as_bytes());
                    return Some(format!("gateway {g} s{s} still holds {lane}:{}", h.seq));
                }
            }
        }
        None
    }
}
