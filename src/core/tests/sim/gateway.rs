//! Gateway processes: a `Session` per session; the driver does what the wiring does.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::{
    id::{ConnId, Lane, LinkId},
    proto::{client_frame, gateway_msg, server_frame},
    session::{Action, Arrival, Client as Attaching, Observation, Route, Session},
    time::Now,
};

use crate::{
    check::Binding,
    counts::{Fault, Seen},
    cut::Outbox,
    event::Event,
    world::{World, trace},
};

/// One session at one gateway.
pub struct GwSession {
    /// The pure half under test.
    pub core: Session,
    /// When it wants to be woken.
    pub wake: Option<u64>,
    /// What was last seen of it.
    pub before: Binding,
    /// Held ops as the driver was told, for the gauge.
    pub gauge: i64,
}

/// One life of a gateway.
#[derive(Default)]
pub struct Gateway {
    /// Which place it has.
    pub slot: usize,
    /// Not dead.
    pub alive: bool,
    /// Stopped.
    pub paused: bool,
    /// What waits while it is stopped.
    pub backlog: Vec<Event>,
    /// By session.
    pub sessions: BTreeMap<usize, GwSession>,
    /// The directory cache.
    pub cache: BTreeMap<usize, Route>,
    /// The index of sessions by the life they are bound to.
    pub bound: BTreeSet<(u64, usize)>,
    /// Links that are up, by the owner's life.
    pub links: BTreeMap<u64, usize>,
    /// Lives that are being dialled.
    pub dialling: BTreeSet<u64>,
    /// No dial succeeds before this.
    pub cut_off_until: u64,
    /// Slow clients' backlogs.
    pub slow: BTreeMap<usize, Outbox>,
    next_att: u32,
}

impl Gateway {
    /// Neither dead nor stopped.
    pub fn runs(&self) -> bool {
        self.alive && !self.paused
    }
}

impl World {
    /// A gateway starts in `slot`.
    pub fn start_gateway(&mut self, slot: usize) {
        if self.gws.iter().any(|g| g.slot == slot && g.alive) {
            return;
        }
        trace!(self, "gateway {} starts in slot {slot}", self.gws.len());
        let mut gw = Gateway { slot, alive: true, ..Gateway::default() };
        if !self.dir.frozen {
            gw.cache = self.dir.routes.iter().cloned().enumerate().collect();
        }
        self.gws.push(gw);
    }

    /// It dies: connections and links break, its holds are lost.
    pub fn kill_gateway(&mut self, gw: usize) {
        trace!(self, "gateway {gw} dies");
        self.gws[gw].alive = false;
        self.gws[gw].sessions.clear();
        self.gws[gw].backlog.clear();
        for conn in 0..self.net.conns.len() {
            if self.net.conns[conn].gw == gw && self.net.conns[conn].open {
                let silence = self.rng.range(1_000, 6_000_000);
                self.cut_conn(conn, self.now, silence, 0);
            }
        }
        for link in 0..self.net.links.len() {
            if self.net.links[link].gw == gw && self.net.links[link].down.is_whole() {
                self.cut_link(link);
            }
        }
    }

    /// Runs `f` on a session, made if there is none.
    pub fn with_session(&mut self, gw: usize, session: usize, f: impl FnOnce(&mut Session, Now, &mut Vec<Action>)) {
        let known = self.gws[gw].sessions.contains_key(&session);
        if !known {
            let core = Session::new(self.sessions[session].clone());
            let fresh = GwSession { core, wake: None, before: Binding::default(), gauge: 0 };
            self.gws[gw].sessions.insert(session, fresh);
        }
        self.run_session(gw, session, f);
        if let (false, Some(route)) = (known, self.gws[gw].cache.get(&session).cloned()) {
            self.run_session(gw, session, |s, now, out| s.handle_route(now, &route, out));
        }
    }

    /// Runs `f`, checks what may be seen of the session, and does what it says.
    fn run_session(&mut self, gw: usize, session: usize, f: impl FnOnce(&mut Session, Now, &mut Vec<Action>)) {
        let now = self.time();
        let mut out = Vec::new();
        let Some(gs) = self.gws[gw].sessions.get_mut(&session) else { return };
        f(&mut gs.core, now, &mut out);
        gs.wake = gs.core.poll_timeout().map(|at| at.0.max(now.mono.0));
        self.look_at_session(gw, session, &out);
        for action in out {
            if !matches!(action, Action::Deliver { .. } | Action::Fanout { .. } | Action::Held { .. }) {
                trace!(self, "gateway {gw} s{session}: {}", crate::show::action(&action));
            }
            self.gw_do(gw, session, action);
        }
        if self.gws[gw].sessions.get(&session).is_some_and(|g| g.core.is_idle() && g.core.binding().is_none()) {
            self.gws[gw].sessions.remove(&session);
            self.dir.pinned.retain(|(g, s, _, _)| (*g, *s) != (gw, session));
        }
    }

    fn gw_do(&mut self, gw: usize, session: usize, action: Action) {
        match action {
            Action::Deliver { conn, frame, stamp } => self.gw_deliver(session, conn, &frame, stamp),
            Action::Fanout { conns, frame, stamp } => {
                conns.into_iter().for_each(|conn| self.gw_deliver(session, conn, &frame, stamp));
            }
            Action::Send { link, msg } => self.gw_send(gw, session, link, msg),
            Action::Connect { boot, .. } => self.gw_connect(gw, session, boot),
            Action::Resolve => {
                let us = self.rng.range(100, 3_000);
                self.after(us, Event::Resolve { gw, session });
            }
            Action::Bound { boot } => {
                self.gws[gw].bound.insert((boot.0, session));
            }
            Action::Unbound { boot } => {
                self.gws[gw].bound.remove(&(boot.0, session));
            }
            Action::Kick { conn, close } => {
                self.counts.seen(Seen::Replaced);
                let conn = conn.0 as usize;
                let us = self.rng.range(100, self.cfg.client_us);
                let client = self.net.conns[conn].client;
                if let Some(at) = self.net.conns[conn].down.send(self.now, us) {
                    self.at(at, Event::ClientLost { client, conn, close });
                    self.net.conns[conn].down.cut_at(at);
                }
                self.net.conns[conn].up.cut_at(self.now);
                self.net.conns[conn].open = false;
            }
            Action::Held { ops, .. } => {
                if let Some(gs) = self.gws[gw].sessions.get_mut(&session) {
                    gs.gauge += i64::from(ops);
                }
            }
            Action::Observe(o) => self.observe(&o),
        }
    }

    fn observe(&mut self, observation: &Observation) {
        let seen = match observation {
            Observation::Resent { .. } => Seen::Resent,
            Observation::StaleDropped { .. } => Seen::ZombieSpoke,
            Observation::Rebound { .. } => Seen::Rebound,
            Observation::NotOwner => Seen::NotOwner,
            _ => return,
        };
        self.counts.seen(seen);
    }

    fn gw_deliver(&mut self, session: usize, conn: ConnId, frame: &server_frame::F, stamp: bool) {
        let conn = conn.0 as usize;
        let gw = self.net.conns[conn].gw;
        if stamp && let server_frame::F::Event(e) = frame {
            let ver = e.at.unwrap_or_default().ver;
            let us = self.rng.range(10, 50_000);
            self.after(us, Event::Delivered { gw, session, conn, ver });
        }
        if let Some(outbox) = self.gws[gw].slow.get_mut(&conn) {
            outbox.frames.push(frame.clone());
            return;
        }
        self.push_frame(conn, frame.clone());
    }

    /// Queues a frame for a client.
    pub fn push_frame(&mut self, conn: usize, frame: server_frame::F) {
        let us = self.rng.range(100, self.cfg.client_us);
        let client = self.net.conns[conn].client;
        let now = self.now;
        if let Some(at) = self.net.conns[conn].down.send(now, us) {
            self.at(at, Event::ToClient { client, conn, frame });
        }
    }

    fn gw_send(&mut self, gw: usize, session: usize, link: LinkId, msg: gateway_msg::M) {
        let Ok(link) = usize::try_from(link.0) else { return };
        if self.net.links.get(link).is_none_or(|l| l.gw != gw) {
            self.oracle.violate(0, format!("gateway {gw} sends on link {link}, which is not its own"));
            return;
        }
        self.oracle.leaves_gateway(gw, session, &msg);
        let us = self.rng.range(50, self.cfg.link_us);
        let (now, owner) = (self.now, self.net.links[link].owner);
        if let Some(at) = self.net.links[link].up.send(now, us) {
            self.at(at, Event::ToOwner { owner, link, msg });
        }
    }

    /// The watch says so: merge, then tell the session.
    pub fn gw_route(&mut self, gw: usize, session: usize, route: Route) {
        let cache = &mut self.gws[gw].cache;
        if cache.get(&session).is_some_and(|r| r.epoch > route.epoch) {
            return;
        }
        cache.insert(session, route.clone());
        if self.gws[gw].sessions.contains_key(&session) {
            self.with_session(gw, session, |s, now, out| s.handle_route(now, &route, out));
        }
    }

    /// The answer to a linearizable read: whatever it is, the session hears it.
    pub fn gw_resolved(&mut self, gw: usize, session: usize, route: Route) {
        let known = self.gws[gw].cache.get(&session).map_or(0, |r| r.epoch);
        if route.epoch >= known {
            self.gws[gw].cache.insert(session, route.clone());
        }
        if self.gws[gw].sessions.contains_key(&session) {
            self.with_session(gw, session, |s, now, out| s.handle_route(now, &route, out));
        }
    }

    /// A frame of a client arrives.
    pub fn gw_frame(&mut self, conn: usize, frame: client_frame::F) {
        let (gw, client) = (self.net.conns[conn].gw, self.net.conns[conn].client);
        if !self.net.conns[conn].open {
            return;
        }
        trace!(self, "gateway {gw} <- client {client} conn {conn}: {frame:?}");
        let session = self.clients[client].session;
        let id = ConnId(conn as u64);
        match frame {
            client_frame::F::Attach(a) => self.gw_attach(gw, conn, &a),
            client_frame::F::Op(op) => {
                let arrival = Arrival { at: self.time().wall, clock_id: gw as u64 + 1, ..Arrival::default() };
                let room = self.healed || !self.has(Fault::NoRoom) || !self.rng.per_mille(30);
                if !room {
                    self.counts.fault(Fault::NoRoom);
                }
                self.with_session(gw, session, |s, now, out| s.handle_op(now, id, op, &arrival, room, out));
            }
            client_frame::F::Resync(r) => {
                self.with_session(gw, session, |s, now, out| s.handle_resync(now, id, r, out))
            }
            client_frame::F::Reaction(r) => {
                self.with_session(gw, session, |s, now, out| s.handle_reaction(now, id, r, out));
            }
            _ => {}
        }
    }

    fn gw_attach(&mut self, gw: usize, conn: usize, attach: &client_frame::Attach) {
        let c = &self.clients[self.net.conns[conn].client];
        let Ok(lane) = Lane::parse(&attach.lane) else { return };
        self.gws[gw].next_att += 1;
        let attaching = Attaching {
            conn: ConnId(conn as u64),
            att: self.gws[gw].next_att,
            principal: c.principal.as_str().into(),
            participant: c.participant.as_str().into(),
            role: attach.role,
            lane,
            conn_seq: c.conn_seq_of(conn),
            n: attach.n,
            seen: attach.last_seen.unwrap_or_default(),
            reconnect: attach.n > 1,
        };
        let session = c.session;
        self.with_session(gw, session, |s, now, out| s.handle_attach(now, attaching, out));
    }
}
