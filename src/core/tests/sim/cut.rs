//! How streams break, and how backlogs of slow clients are dropped.

use holdfast_core::{
    id::ConnId,
    proto::{OpId, server_frame},
};

use crate::{
    event::Event,
    world::{World, trace},
};

/// Close code of a connection that was not closed (TCP reset, timeout).
pub const LOST: u16 = 1006;

/// Frames that wait for a slow client.
#[derive(Debug, Default)]
pub struct Outbox {
    /// In order.
    pub frames: Vec<server_frame::F>,
}

impl World {
    /// A connection breaks at `at`; the client notices `client_us` later, the gateway `gw_us` later.
    pub fn cut_conn(&mut self, conn: usize, at: u64, client_us: u64, gw_us: u64) {
        let c = &mut self.net.conns[conn];
        c.up.cut_at(at);
        c.down.cut_at(at);
        let (client, gw) = (c.client, c.gw);
        trace!(self, "conn {conn} of client {client} to gateway {gw} breaks");
        self.at(at + client_us, Event::ClientLost { client, conn, close: LOST });
        self.at(at + gw_us, Event::GatewayLost { gw, conn });
    }

    /// A link breaks: each side keeps what has arrived by then, and notices on its own.
    pub fn cut_link(&mut self, link: usize) {
        let (up, down) = (self.rng.below(self.cfg.link_us), self.rng.below(self.cfg.link_us));
        let (gw_us, owner_us) = (self.rng.range(0, 3_000_000), self.rng.range(0, 3_000_000));
        let quick = self.healed || self.rng.per_mille(600);
        let scale = if quick { 1_000 } else { 1 };
        let l = &mut self.net.links[link];
        l.up.cut_at(self.now + up);
        l.down.cut_at(self.now + down);
        let (gw, owner) = (l.gw, l.owner);
        trace!(self, "link {link} of gateway {gw} to owner {owner} breaks");
        self.after(down + gw_us / scale + 1, Event::GatewayLinkLost { gw, link });
        self.after(up + owner_us / scale + 1, Event::OwnerLinkLost { owner, link });
    }

    /// A client stops reading for a while.
    pub fn block_client(&mut self, conn: usize, us: u64) {
        let gw = self.net.conns[conn].gw;
        self.gws[gw].slow.entry(conn).or_default();
        self.after(us, Event::Unblock { gw, conn });
    }

    /// It reads again: either everything was kept, or events were dropped and a snapshot is asked for (4.3 rule 6).
    pub fn gw_unblock(&mut self, conn: usize) {
        let (gw, client) = (self.net.conns[conn].gw, self.net.conns[conn].client);
        let Some(outbox) = self.gws[gw].slow.remove(&conn) else { return };
        let attached =
            outbox.frames.iter().any(|f| matches!(f, server_frame::F::Attached(_) | server_frame::F::Snapshot(_)));
        let overflowed = !attached && !outbox.frames.is_empty() && self.rng.per_mille(700);
        if !overflowed {
            outbox.frames.into_iter().for_each(|f| self.push_frame(conn, f));
            return;
        }
        trace!(self, "gateway {gw}: backlog of client {client} is dropped");
        self.clients[client].lossy = true;
        for frame in outbox.frames {
            match frame {
                server_frame::F::Event(e) => {
                    if let Some(op) = e.op.filter(|o: &OpId| o.lane.is_empty()) {
                        let ack =
                            server_frame::Ack { session: e.session, op: Some(op), at: e.at, dup: false, held_us: 0 };
                        self.push_frame(conn, server_frame::F::Ack(ack));
                    }
                }
                server_frame::F::Reaction(_) => {}
                kept => self.push_frame(conn, kept),
            }
        }
        let session = self.clients[client].session;
        self.with_session(gw, session, |s, now, out| s.handle_slow(now, ConnId(conn as u64), out));
    }

    /// The connection is gone.
    pub fn gw_conn_lost(&mut self, conn: usize) {
        let (gw, client) = (self.net.conns[conn].gw, self.net.conns[conn].client);
        if std::mem::replace(&mut self.net.conns[conn].open, false) {
            self.gws[gw].slow.remove(&conn);
            let session = self.clients[client].session;
            self.with_session(gw, session, |s, now, out| s.handle_detach(now, ConnId(conn as u64), 2, out));
        }
    }

    /// The first byte of a stamped event left.
    pub fn gw_delivered(&mut self, gw: usize, session: usize, conn: usize, ver: u64) {
        if self.net.conns[conn].open && self.gws[gw].sessions.contains_key(&session) {
            self.with_session(gw, session, |s, now, out| {
                s.handle_delivered(now, ConnId(conn as u64), ver, now.wall, out);
            });
        }
    }
}
