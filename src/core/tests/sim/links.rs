//! A gateway's links to owners: dialled on demand, shared by all sessions bound to the same life of a node.

use holdfast_core::{
    id::{Boot, LinkId},
    proto::owner_msg,
};

use crate::{
    event::Event,
    net::{Link, Pipe},
    world::{World, trace},
};

impl World {
    /// A session wants a link to this life of a node.
    pub fn gw_connect(&mut self, gw: usize, session: usize, boot: Boot) {
        self.gws[gw].bound.insert((boot.0, session));
        if let Some(link) = self.gws[gw].links.get(&boot.0).copied() {
            self.after(0, Event::LinkUp { gw, boot: boot.0, link });
        } else if self.gws[gw].dialling.insert(boot.0) {
            let us = self.rng.range(200, 2_000 + self.cfg.link_us);
            self.after(us, Event::Dial { gw, boot: boot.0 });
        }
    }

    /// A dial reaches the node: refused, or a link.
    pub fn gw_dial(&mut self, gw: usize, boot: u64) {
        if !self.gws[gw].bound.iter().any(|(b, _)| *b == boot) {
            self.gws[gw].dialling.remove(&boot);
            return;
        }
        let owner = self.owners.iter().position(|o| o.boot == boot && o.runs());
        let Some(owner) = owner.filter(|_| self.now >= self.gws[gw].cut_off_until) else {
            let us = self.rng.range(50_000, 400_000);
            self.after(us, Event::Dial { gw, boot });
            return;
        };
        self.gws[gw].dialling.remove(&boot);
        let link = self.net.links.len();
        self.net.links.push(Link { gw, owner, up: Pipe::default(), down: Pipe::default() });
        self.gws[gw].links.insert(boot, link);
        self.handle_link_up(gw, boot, link);
    }

    /// A link that is up is told to sessions that asked for it.
    pub fn gw_link_up(&mut self, gw: usize, boot: u64, link: usize) {
        if self.gws[gw].links.get(&boot) == Some(&link) {
            self.handle_link_up(gw, boot, link);
            return;
        }
        // it broke before anybody was told: whoever still wants it gets another
        for (b, session) in self.gws[gw].bound.clone() {
            if b == boot {
                self.gw_connect(gw, session, Boot(boot));
            }
        }
    }

    fn handle_link_up(&mut self, gw: usize, boot: u64, link: usize) {
        trace!(self, "gateway {gw}: link {link} to {boot:016x} is up");
        let bound: Vec<_> = self.gws[gw].bound.iter().filter(|(b, _)| *b == boot).map(|(_, s)| *s).collect();
        for session in bound {
            self.with_session(gw, session, |s, now, out| {
                s.handle_link_up(now, Boot(boot), LinkId(link as u64), out);
            });
        }
    }

    /// The link broke.
    pub fn gw_link_lost(&mut self, gw: usize, link: usize) {
        self.gws[gw].links.retain(|_, l| *l != link);
        for session in self.gws[gw].sessions.keys().copied().collect::<Vec<_>>() {
            self.with_session(gw, session, |s, now, out| s.handle_link_down(now, LinkId(link as u64), out));
        }
    }

    /// A message of an owner arrives.
    pub fn gw_owner_msg(&mut self, gw: usize, link: usize, msg: owner_msg::M) {
        trace!(self, "gateway {gw} <- link {link}: {}", crate::show::down(&msg));
        self.oracle.reaches_gateway(gw, &msg);
        let name = crate::show::spoken_of(&msg).map(str::to_owned);
        for session in self.gws[gw].sessions.keys().copied().collect::<Vec<_>>() {
            if name.as_deref().is_none_or(|n| n == self.sessions[session].as_str()) {
                let msg = msg.clone();
                self.with_session(gw, session, |s, now, out| s.handle_owner_msg(now, LinkId(link as u64), msg, out));
            }
        }
    }

    /// An owner notices that a link is gone.
    pub fn owner_link_lost(&mut self, owner: usize, link: usize) {
        for session in self.owners[owner].auths.keys().copied().collect::<Vec<_>>() {
            self.with_authority(owner, session, |a, now, out| a.handle_link_down(now, LinkId(link as u64), out));
        }
    }
}
