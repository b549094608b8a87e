//! etcd and the placement service: leases, epochs, watches; out of reach at times.

use holdfast_core::{id::Boot, session::Route};

use crate::{
    counts::Seen,
    event::{Event, Proc},
    world::{World, trace},
};

/// The owners' lease, µs.
pub const LEASE_US: u64 = 3_000_000;

/// A registered life of a node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Which node.
    pub node: usize,
    /// Which life.
    pub boot: u64,
    /// Its lease runs out then.
    pub until: u64,
    /// It takes no new sessions.
    pub draining: bool,
}

/// Placement, leases and what watchers have been told.
#[derive(Debug)]
pub struct Directory {
    /// Out of reach: nothing is read, written, renewed or told.
    pub frozen: bool,
    /// Watches of this life of the directory; grows when they break.
    pub life: u32,
    /// Extra delay of watches, µs.
    pub lag_us: u64,
    /// Lives under a lease.
    pub nodes: Vec<Node>,
    /// By session.
    pub routes: Vec<Route>,
    /// Bindings that must not change while it is out of reach: (gateway, session, boot, epoch).
    pub pinned: Vec<(usize, usize, Boot, u64)>,
    revision: i64,
}

impl Directory {
    /// Nothing is placed yet.
    pub fn new(sessions: usize) -> Self {
        let nowhere = Route {
            epoch: 0,
            boot: Boot(0),
            node: "".into(),
            addr: "".into(),
            kind: "".into(),
            ended: false,
            revision: 0,
            unowned_from_ms: 0,
        };
        Self {
            frozen: false,
            life: 0,
            lag_us: 0,
            nodes: Vec::new(),
            routes: vec![nowhere; sessions],
            pinned: Vec::new(),
            revision: 1,
        }
    }
}

impl World {
    /// Gives every session its first owner.
    pub fn place_all(&mut self) {
        for session in 0..self.cfg.sessions {
            self.place(session, 1);
        }
    }

    /// Writes a new placement, `jump` epochs on, for a session without a good one; parks it if nobody has room.
    pub fn place(&mut self, session: usize, jump: u64) {
        let old = self.dir.routes[session].clone();
        let candidates: Vec<_> = self.dir.nodes.iter().filter(|n| !n.draining).map(|n| (n.node, n.boot)).collect();
        let others: Vec<_> = candidates.iter().copied().filter(|(_, b)| *b != old.boot.0).collect();
        let same_again = jump > 1 && self.rng.per_mille(300);
        let chosen = if same_again || others.is_empty() { self.rng.pick(&candidates) } else { self.rng.pick(&others) };
        if chosen.is_none() && old.boot.0 == 0 && old.epoch > 0 {
            return; // parked already
        }
        self.dir.revision += 1;
        if chosen.is_none() {
            self.counts.seen(Seen::Parked);
        }
        let (node, boot) = chosen.unwrap_or((0, 0));
        let name = if boot == 0 { String::new() } else { format!("n{node}") };
        let route = Route {
            epoch: old.epoch + jump,
            boot: Boot(boot),
            addr: name.as_str().into(),
            node: name.into(),
            kind: self.cfg.kind.into(),
            ended: false,
            revision: self.dir.revision,
            unowned_from_ms: 0,
        };
        trace!(self, "directory: s{session} epoch {} -> {} {:?}", route.epoch, route.node, route.boot);
        self.dir.routes[session] = route.clone();
        self.tell_all(session, &route);
    }

    fn tell_all(&mut self, session: usize, route: &Route) {
        let gws = (0..self.gws.len()).filter(|g| self.gws[*g].alive).map(Proc::Gateway);
        let owners = (0..self.owners.len()).filter(|o| self.owners[*o].alive).map(Proc::Owner);
        for proc in gws.chain(owners).collect::<Vec<_>>() {
            self.tell(proc, session, route.clone());
        }
    }

    /// Tells one watcher, some time later.
    pub fn tell(&mut self, proc: Proc, session: usize, route: Route) {
        let us = self.rng.range(200, 5_000 + self.dir.lag_us);
        let life = self.dir.life;
        self.after(us, Event::Watch { proc, session, route, life });
    }

    /// A watcher hears of a placement.
    pub fn watched(&mut self, proc: Proc, session: usize, route: Route, life: u32) {
        if life != self.dir.life || self.dir.frozen {
            return; // that watch broke; the list after the outage says it again
        }
        match proc {
            Proc::Gateway(g) => self.gw_route(g, session, route),
            Proc::Owner(o) => self.owner_route(o, session, route),
        }
    }

    /// A linearizable read: answered at once, or after the outage.
    pub fn dir_resolve(&mut self, gw: usize, session: usize) {
        if self.dir.frozen {
            self.after(500_000, Event::Resolve { gw, session });
            return;
        }
        let route = self.dir.routes[session].clone();
        let us = self.rng.range(200, 3_000);
        self.after(us, Event::Resolved { gw, session, route });
    }

    /// A life registers: watch for its end, place what is parked.
    pub fn register(&mut self, node: usize, boot: u64) -> bool {
        if self.dir.frozen {
            return false;
        }
        if let Some(old) = self.dir.nodes.iter().find(|n| n.node == node).map(|n| n.boot) {
            // the node is back under another life: the old one's sessions are orphans
            self.dir.nodes.retain(|n| n.node != node);
            self.after(200_000, Event::Rehome { boot: old });
        }
        self.dir.nodes.push(Node { node, boot, until: self.now + LEASE_US, draining: false });
        self.after(LEASE_US, Event::Expiry { node, boot });
        for session in 0..self.cfg.sessions {
            let route = self.dir.routes[session].clone();
            if route.boot.0 == 0 && route.epoch > 0 {
                self.place(session, 1);
            }
        }
        true
    }

    /// A lease may have run out.
    pub fn lease_expiry(&mut self, node: usize, boot: u64) {
        let Some(n) = self.dir.nodes.iter_mut().find(|n| n.boot == boot) else { return };
        if self.dir.frozen || n.until > self.now {
            let next = n.until.max(self.now + 100_000);
            self.at(next, Event::Expiry { node, boot });
            return;
        }
        self.lease_gone(boot);
    }

    /// A lease is gone: its sessions are given away soon.
    pub fn lease_gone(&mut self, boot: u64) {
        trace!(self, "directory: lease of {boot:016x} is gone");
        self.dir.nodes.retain(|n| n.boot != boot);
        let us = self.rng.range(1_000, 500_000);
        self.after(us, Event::Rehome { boot });
    }

    /// Gives away the sessions of a life that is gone.
    pub fn rehome(&mut self, boot: u64) {
        if self.dir.frozen {
            self.after(100_000, Event::Rehome { boot });
            return;
        }
        if self.dir.nodes.iter().any(|n| n.boot == boot) {
            return;
        }
        for session in 0..self.cfg.sessions {
            if self.dir.routes[session].boot.0 == boot {
                let jump = if self.rng.per_mille(150) { 2 } else { 1 };
                self.place(session, jump);
            }
        }
    }

    /// A planned move of a session that is still at `epoch`.
    pub fn dir_move(&mut self, session: usize, epoch: u64) {
        if self.dir.frozen {
            self.after(100_000, Event::Moved { session, epoch });
        } else if self.dir.routes[session].epoch == epoch {
            self.place(session, 1);
        }
    }

    /// The directory goes out of reach.
    pub fn freeze(&mut self, us: u64) {
        trace!(self, "directory: out of reach for {us} us");
        self.dir.frozen = true;
        self.dir.life += 1;
        self.dir.pinned = self
            .bindings()
            .filter(|(_, s, b, e)| {
                let route = &self.dir.routes[*s];
                route.boot == *b && route.epoch == *e
            })
            .collect();
        self.after(us, Event::Thaw);
    }

    /// It is reachable again: leases start anew (etcd extends them after a leader change), everybody lists.
    pub fn thaw(&mut self) {
        if !self.dir.frozen {
            return;
        }
        trace!(self, "directory: reachable again");
        self.dir.frozen = false;
        self.dir.pinned.clear();
        for n in &mut self.dir.nodes {
            n.until = self.now + LEASE_US;
        }
        for session in 0..self.cfg.sessions {
            let route = self.dir.routes[session].clone();
            self.tell_all(session, &route);
        }
    }
}
