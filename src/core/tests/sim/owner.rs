//! Owner processes: one life of a node each, with an `Authority` per session; the driver does what `src/owner` does.

use std::{collections::BTreeMap, sync::Arc};

use holdfast_core::{
    id::{Boot, LinkId},
    proto::{gateway_msg, owner_msg},
    record::{Authority, AuthorityConfig, Effect},
    session::Route,
    time::Now,
};

use crate::{
    app::TestApp,
    counts::Seen,
    directory::LEASE_US,
    event::{Event, Proc},
    store::Answer,
    world::{World, trace},
};

/// How often a lease is renewed, µs.
const RENEW_US: u64 = 1_000_000;

/// One session at one owner.
pub struct Held {
    /// The pure half under test.
    pub core: Authority<TestApp>,
    /// When it wants to be woken.
    pub wake: Option<u64>,
    /// Answers of the store to an earlier one are not for this one.
    pub incarnation: u64,
}

/// One life of a node.
pub struct Owner {
    /// Which node.
    pub node: usize,
    /// Which life.
    pub boot: u64,
    /// Not dead.
    pub alive: bool,
    /// Stopped (SIGSTOP).
    pub paused: bool,
    /// What waits while it is stopped.
    pub backlog: Vec<Event>,
    /// By session.
    pub auths: BTreeMap<usize, Held>,
    /// What the directory said.
    pub cache: BTreeMap<usize, Route>,
    /// Registered, as far as it knows.
    pub registered: bool,
    /// Its lease by its own clock.
    pub lease_until: u64,
    /// What it last told its sessions about that.
    pub lease_held: bool,
    /// It is being drained.
    pub draining: bool,
}

impl Owner {
    /// Neither dead nor stopped.
    pub fn runs(&self) -> bool {
        self.alive && !self.paused
    }
}

impl World {
    /// A life of `node` starts.
    pub fn start_owner(&mut self, node: usize) {
        if self.owners.iter().any(|o| o.node == node && o.alive) {
            return;
        }
        let boot = self.rng.word();
        let owner = self.owners.len();
        trace!(self, "owner {owner} starts: n{node} boot {boot:016x}");
        self.owners.push(Owner {
            node,
            boot,
            alive: true,
            paused: false,
            backlog: Vec::new(),
            auths: BTreeMap::new(),
            cache: BTreeMap::new(),
            registered: false,
            lease_until: self.now + LEASE_US,
            lease_held: true,
            draining: false,
        });
        for session in 0..self.cfg.sessions {
            let route = self.dir.routes[session].clone();
            if route.epoch > 0 {
                self.tell(Proc::Owner(owner), session, route);
            }
        }
        self.lease_tick(owner);
    }

    /// It ends: streams break, what it had in memory is lost.
    pub fn kill_owner(&mut self, owner: usize) {
        trace!(self, "owner {owner} dies");
        let o = &mut self.owners[owner];
        o.alive = false;
        o.auths.clear();
        o.backlog.clear();
        for link in 0..self.net.links.len() {
            if self.net.links[link].owner == owner && self.net.links[link].down.is_whole() {
                self.cut_link(link);
            }
        }
    }

    /// Registers or renews, and looks at the own clock.
    pub fn lease_tick(&mut self, owner: usize) {
        let (node, boot) = (self.owners[owner].node, self.owners[owner].boot);
        let now = self.now;
        if !self.owners[owner].registered {
            self.owners[owner].registered = self.register(node, boot);
            if self.owners[owner].registered {
                self.owners[owner].lease_until = now + LEASE_US;
            }
        } else if !self.dir.frozen {
            match self.dir.nodes.iter_mut().find(|n| n.boot == boot) {
                Some(n) => {
                    n.until = now + LEASE_US;
                    self.owners[owner].lease_until = now + LEASE_US;
                }
                None => {
                    // the lease is gone: register again, as another life
                    self.kill_owner(owner);
                    self.after(50_000, Event::StartOwner { node });
                    return;
                }
            }
        }
        let held = now < self.owners[owner].lease_until;
        if held != self.owners[owner].lease_held {
            self.owners[owner].lease_held = held;
            for session in self.owners[owner].auths.keys().copied().collect::<Vec<_>>() {
                self.with_authority(owner, session, |a, now, out| a.handle_lease(now, held, out));
            }
        }
        self.after(RENEW_US, Event::Lease { owner });
    }

    /// Its own watch tells it of a placement.
    pub fn owner_route(&mut self, owner: usize, session: usize, route: Route) {
        let o = &mut self.owners[owner];
        if o.cache.get(&session).is_some_and(|r| r.epoch > route.epoch) {
            return;
        }
        o.cache.insert(session, route.clone());
        let epoch = o.auths.get(&session).map(|a| a.core.epoch());
        match epoch {
            Some(known) if route.boot == Boot(o.boot) && route.epoch > known => {
                self.with_authority(owner, session, |a, now, out| a.handle_assigned(now, route.epoch, out));
            }
            None if route.boot == Boot(o.boot) => self.start_authority(owner, session, route.epoch),
            // It could let go now; while it does not know better than its watch, the record fences it.
            Some(_) if route.boot != Boot(o.boot) && self.rng.per_mille(500) => {
                self.owners[owner].auths.remove(&session);
            }
            _ => {}
        }
    }

    fn start_authority(&mut self, owner: usize, session: usize, epoch: u64) {
        trace!(self, "owner {owner}: s{session} starts at epoch {epoch}");
        let config = Arc::new(AuthorityConfig {
            node: format!("n{}", self.owners[owner].node),
            boot: Boot(self.owners[owner].boot),
            addr: format!("n{}", self.owners[owner].node),
            checkpoint_events: self.cfg.checkpoint_every,
            tail_events: self.cfg.tail_events,
            ..AuthorityConfig::default()
        });
        let core = Authority::new(self.sessions[session].clone(), self.cfg.kind, epoch, config, TestApp::default());
        let incarnation = self.rng.word();
        self.owners[owner].auths.insert(session, Held { core, wake: None, incarnation });
        self.with_authority(owner, session, |a, now, out| a.start(now, out));
        if !self.owners[owner].lease_held {
            self.with_authority(owner, session, |a, now, out| a.handle_lease(now, false, out));
        }
        if self.owners[owner].draining {
            self.with_authority(owner, session, |a, now, out| a.handle_drain(now, out));
        }
    }

    /// Runs `f` on an authority and does what it says.
    pub fn with_authority(
        &mut self,
        owner: usize,
        session: usize,
        f: impl FnOnce(&mut Authority<TestApp>, Now, &mut Vec<Effect>),
    ) {
        let now = self.time();
        let mut out = Vec::new();
        let Some(held) = self.owners[owner].auths.get_mut(&session) else { return };
        f(&mut held.core, now, &mut out);
        held.wake = held.core.poll_timeout().map(|at| at.0.max(now.mono.0));
        let incarnation = held.incarnation;
        for effect in out {
            self.owner_do(owner, session, incarnation, effect);
        }
    }

    fn owner_do(&mut self, owner: usize, session: usize, incarnation: u64, effect: Effect) {
        match effect {
            Effect::Load => self.store_load(owner, session, incarnation),
            Effect::Write(set) => self.store_write(owner, session, incarnation, set),
            Effect::Send { link, msg } => self.owner_send(owner, session, link, msg),
            Effect::Deposed { by_epoch } => {
                trace!(self, "owner {owner}: s{session} deposed by epoch {by_epoch}");
                self.counts.seen(Seen::Deposed);
                self.owners[owner].auths.remove(&session);
            }
            Effect::Handed { ver } => {
                trace!(self, "owner {owner}: s{session} handed over at ver {ver}");
                self.counts.seen(Seen::Handed);
                if let Some(epoch) = self.owners[owner].auths.remove(&session).map(|a| a.core.epoch()) {
                    self.after(1_000, Event::Moved { session, epoch });
                }
            }
            Effect::Behind { record_epoch } => {
                if !self.dir.frozen && self.dir.routes[session].epoch < record_epoch {
                    let jump = record_epoch + 1 - self.dir.routes[session].epoch;
                    self.place(session, jump);
                }
            }
        }
    }

    fn owner_send(&mut self, owner: usize, session: usize, link: LinkId, msg: owner_msg::M) {
        let Some(link) = self.net.links.get(usize::try_from(link.0).unwrap_or(usize::MAX)).map(|_| link.0 as usize)
        else {
            self.oracle.violate(0, format!("owner {owner} sends on link {link:?}, which never was"));
            return;
        };
        if self.net.links[link].owner != owner {
            self.oracle.violate(0, format!("owner {owner} sends on link {link}, which is not its own"));
            return;
        }
        self.oracle.leaves_owner(session, &self.store.records[session], &msg);
        if self.oracle.violation.is_some() {
            trace!(self, "owner {owner} -> link {link}: {msg:?}");
        }
        self.owner_to_link(link, msg);
    }

    /// Queues a message of an owner.
    pub fn owner_to_link(&mut self, link: usize, msg: owner_msg::M) {
        let us = self.rng.range(50, self.cfg.link_us);
        let gw = self.net.links[link].gw;
        let now = self.now;
        if let Some(at) = self.net.links[link].down.send(now, us) {
            self.at(at, Event::FromOwner { gw, link, msg });
        }
    }

    /// A message of a gateway arrives.
    pub fn owner_msg(&mut self, owner: usize, link: usize, msg: gateway_msg::M) {
        trace!(self, "owner {owner} <- link {link}: {}", crate::show::up(&msg));
        let Some((name, epoch)) = crate::show::addressed(&msg) else { return };
        let Some(session) = self.sessions.iter().position(|s| s.as_str() == name) else { return };
        if self.owners[owner].auths.contains_key(&session) {
            self.with_authority(owner, session, |a, now, out| {
                a.handle_link_msg(now, LinkId(link as u64), msg, out);
            });
            return;
        }
        if let Some(your_epoch) = epoch {
            let hint = self.owners[owner].cache.get(&session).filter(|r| r.epoch > your_epoch && r.boot.0 != 0);
            let hint = hint.map(|r| owner_msg::Hint {
                owner_id: r.node.to_string(),
                boot: r.boot.0,
                addr: r.addr.to_string(),
                epoch: r.epoch,
            });
            let hint = hint.filter(|h| h.boot != self.owners[owner].boot);
            self.owner_to_link(link, owner_msg::M::NotOwner(owner_msg::NotOwner { session: name, your_epoch, hint }));
        }
    }

    /// The store's answer arrives.
    pub fn store_answer(&mut self, owner: usize, session: usize, incarnation: u64, answer: Answer) {
        if self.owners[owner].auths.get(&session).is_none_or(|a| a.incarnation != incarnation) {
            return;
        }
        trace!(self, "owner {owner} <- store s{session}: {}", crate::show::answer(&answer));
        self.with_authority(owner, session, |a, now, out| match answer {
            Answer::Loaded(loaded) => a.handle_loaded(now, loaded, out),
            Answer::Written(written) => a.handle_written(now, written, out),
        });
    }
}
