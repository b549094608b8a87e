//! Clients, by the rules of design 4.3: what they send.

use std::collections::BTreeMap;

use bytes::Bytes;
use holdfast_core::proto::{Content, OpId, Pos, client_frame};

use crate::{
    app::{KINDS, Kind},
    counts::Seen,
    event::Event,
    net::{Conn, Pipe},
    world::{World, trace},
};

/// Ops a client has unsettled at most; below the gateway's limit of 32, so that its refusals are rare but there.
const INFLIGHT_MAX: usize = 12;

/// Something a client meant to do.
#[derive(Clone, Copy, Debug)]
pub enum Wake {
    /// Connect, if it has no connection.
    Connect,
    /// Attach again on this connection.
    Attach(usize),
    /// Resend refused ops on this connection.
    Retry(usize),
}

/// An op whose fate the client does not know.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Its payload.
    pub payload: Bytes,
    /// `base_ver`.
    pub base: u64,
    /// Times it was sent.
    pub attempt: u32,
    /// Refused for now; to be sent again.
    pub nacked: bool,
}

/// One client: a page load with one lane, attached to one session.
#[derive(Debug)]
pub struct Client {
    /// Its session.
    pub session: usize,
    /// `sub`.
    pub principal: String,
    /// Seat.
    pub participant: String,
    /// 1 participant, 2 spectator.
    pub role: u32,
    /// Its lane.
    pub lane: Bytes,
    /// Its connection.
    pub conn: Option<usize>,
    /// All its connections, oldest first: the index + 1 is `conn_seq`.
    pub conns: Vec<usize>,
    /// Last `Attach.n`.
    pub n: u32,
    /// `attached` for that n has come.
    pub attached: bool,
    /// Highest epoch and newest ver delivered.
    pub seen: Pos,
    /// Next seq.
    pub next: u64,
    /// Unsettled ops.
    pub pending: BTreeMap<u64, Pending>,
    /// A snapshot is on its way in place of dropped events.
    pub lossy: bool,
    /// A reply to a resync is on its way.
    pub resyncing: bool,
    /// The next `attached` follows a `detached` on the same connection.
    pub resend_all: bool,
    /// It never comes back.
    pub gone: bool,
    /// A retry is planned.
    pub retrying: bool,
}

impl Client {
    /// `conn_seq` of one of its connections.
    pub fn conn_seq_of(&self, conn: usize) -> u32 {
        self.conns.iter().position(|c| *c == conn).map_or(0, |i| i as u32 + 1)
    }

    /// Lowest seq not yet settled.
    pub fn settled(&self) -> u64 {
        self.pending.keys().next().copied().unwrap_or(self.next)
    }
}

impl World {
    /// A client appears and connects.
    pub fn start_client(&mut self) {
        let i = self.clients.len();
        let session = i % self.cfg.sessions;
        let role = if i > 1 && self.rng.per_mille(200) { 2 } else { 1 };
        // some principals have two pages open
        let who = if i > 2 && self.rng.per_mille(300) { i - self.cfg.sessions.min(i) } else { i };
        self.clients.push(Client {
            session,
            principal: format!("p{who}"),
            participant: format!("p{who}"),
            role,
            lane: Bytes::from(format!("lane-{i:04}")),
            conn: None,
            conns: Vec::new(),
            n: 0,
            attached: false,
            seen: Pos::default(),
            next: 1,
            pending: BTreeMap::new(),
            lossy: false,
            resyncing: false,
            resend_all: false,
            gone: false,
            retrying: false,
        });
        let us = self.rng.below(50_000);
        self.after(us, Event::ClientWake { client: i, wake: Wake::Connect });
    }

    /// A client does what it meant to do.
    pub fn client_wake(&mut self, client: usize, wake: Wake) {
        if self.clients[client].gone {
            return;
        }
        match wake {
            Wake::Connect => self.client_connect(client),
            Wake::Attach(conn) if self.clients[client].conn == Some(conn) && !self.clients[client].attached => {
                self.client_attach(client);
            }
            Wake::Retry(conn) => {
                self.clients[client].retrying = false;
                if self.clients[client].conn == Some(conn) && self.clients[client].attached {
                    self.client_resend(client, |p| p.nacked);
                }
            }
            Wake::Attach(_) => {}
        }
    }

    fn client_connect(&mut self, client: usize) {
        if self.clients[client].conn.is_some() {
            return;
        }
        let alive: Vec<_> = (0..self.gws.len()).filter(|g| self.gws[*g].runs()).collect();
        let Some(gw) = self.rng.pick(&alive) else {
            self.after(300_000, Event::ClientWake { client, wake: Wake::Connect });
            return;
        };
        self.client_connect_to(client, gw);
    }

    /// Opens a connection to `gw` and attaches in the same flight.
    pub fn client_connect_to(&mut self, client: usize, gw: usize) {
        let conn = self.net.conns.len();
        trace!(self, "client {client} connects to gateway {gw} as conn {conn}");
        self.net.conns.push(Conn { client, gw, up: Pipe::default(), down: Pipe::default(), open: true });
        let c = &mut self.clients[client];
        c.conn = Some(conn);
        c.conns.push(conn);
        c.resend_all = true;
        self.client_attach(client);
    }

    /// Attaches (again): what comes before `attached` is ignored.
    pub fn client_attach(&mut self, client: usize) {
        let c = &mut self.clients[client];
        c.n += 1;
        c.attached = false;
        c.lossy = false;
        c.resyncing = false;
        let attach = client_frame::Attach {
            session: self.sessions[c.session].to_string(),
            n: c.n,
            last_seen: Some(c.seen),
            lane: c.lane.clone(),
            role: c.role,
            ..Default::default()
        };
        self.client_send(client, client_frame::F::Attach(attach));
    }

    /// Queues a frame of a client, if it has a connection.
    pub fn client_send(&mut self, client: usize, frame: client_frame::F) {
        let Some(conn) = self.clients[client].conn else { return };
        let us = self.rng.range(100, self.cfg.client_us);
        let now = self.now;
        let gw = self.net.conns[conn].gw;
        if let Some(at) = self.net.conns[conn].up.send(now, us) {
            self.at(at, Event::ToGateway { gw, conn, frame });
        }
    }

    /// A new op, unless too many are unsettled. `hold_back`: it is noted, but only the next one will push it out.
    pub fn client_op(&mut self, client: usize, hold_back: bool) {
        let kind = self.rng.pick(&KINDS).unwrap_or(Kind::Plain);
        let c = &mut self.clients[client];
        let refused = c.pending.values().any(|p| p.nacked);
        if c.role != 1 || c.gone || c.pending.len() >= INFLIGHT_MAX || (refused && self.rng.per_mille(900)) {
            return;
        }
        let seq = c.next;
        c.next += 1;
        let mut payload = vec![kind as u8];
        payload.extend_from_slice(&seq.to_le_bytes());
        payload.push(client as u8);
        let pending = Pending { payload: payload.into(), base: c.seen.ver, attempt: 0, nacked: hold_back };
        c.pending.insert(seq, pending);
        self.counts.ops += 1;
        if self.clients[client].attached && !hold_back {
            self.client_send_op(client, seq);
        }
        if hold_back {
            self.plan_retry(client, 50);
        }
    }

    fn client_send_op(&mut self, client: usize, seq: u64) {
        let c = &mut self.clients[client];
        let settled = c.settled();
        let Some(p) = c.pending.get_mut(&seq) else { return };
        p.attempt += 1;
        p.nacked = false;
        let attempt = p.attempt;
        let op = client_frame::Op {
            session: self.sessions[c.session].to_string(),
            op: Some(OpId { lane: c.lane.clone(), seq }),
            settled,
            base_ver: p.base,
            op_kind: 0,
            content: Content::Bytes.into(),
            payload: p.payload.clone(),
            receipt: Bytes::new(),
            attempt,
        };
        if attempt > 1 {
            self.counts.seen(Seen::ResentByClient);
        }
        self.client_send(client, client_frame::F::Op(op));
    }

    /// Sends pending ops again, in seq order.
    pub fn client_resend(&mut self, client: usize, which: impl Fn(&Pending) -> bool) {
        let seqs: Vec<_> = self.clients[client].pending.iter().filter(|(_, p)| which(p)).map(|(s, _)| *s).collect();
        for seq in seqs {
            self.client_send_op(client, seq);
        }
    }

    /// Refused ops are sent again in a while.
    pub fn plan_retry(&mut self, client: usize, ms: u32) {
        let Some(conn) = self.clients[client].conn else { return };
        if !std::mem::replace(&mut self.clients[client].retrying, true) {
            let us = u64::from(ms.clamp(20, 5_000)) * 1_000 + self.rng.below(20_000);
            self.after(us, Event::ClientWake { client, wake: Wake::Retry(conn) });
        }
    }

    /// The client's connection is gone.
    pub fn client_lost(&mut self, client: usize, conn: usize, close: u16) {
        let c = &mut self.clients[client];
        if c.conn != Some(conn) {
            return;
        }
        if close == 4006 {
            self.oracle.violate(0, format!("client {client}: its newest connection {conn} was closed as replaced"));
        }
        self.client_drop(client);
        let us = self.rng.range(10_000, 600_000);
        self.after(us, Event::ClientWake { client, wake: Wake::Connect });
    }

    /// Forgets the connection.
    pub fn client_drop(&mut self, client: usize) {
        let c = &mut self.clients[client];
        c.conn = None;
        c.attached = false;
        c.lossy = false;
        c.resyncing = false;
        c.retrying = false;
    }
}
