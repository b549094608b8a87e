//! Clients, by the rules of design 4.3: what they hear, and what must be true of it (15.1, 15.4, 15.5, 15.7).

use bytes::Bytes;
use holdfast_core::proto::{Applied, Code, OpId, Rejected, client_frame, server_frame};

use crate::{
    client::Wake,
    counts::Seen,
    event::Event,
    world::{World, trace},
};

impl World {
    /// A frame reaches a client.
    pub fn client_frame(&mut self, client: usize, conn: usize, frame: server_frame::F) {
        use server_frame::F;
        if self.clients[client].conn != Some(conn) || self.clients[client].gone {
            return;
        }
        trace!(self, "client {client} <- conn {conn}: {}", crate::show::frame(&frame));
        let attached = self.clients[client].attached;
        match frame {
            F::Attached(a) if a.n == self.clients[client].n => self.hear_attached(client, &a),
            F::Detached(d) if d.n == self.clients[client].n => self.hear_detached(client, conn, &d),
            F::Status(s) if s.state == server_frame::status::State::Moving as i32 => self.counts.seen(Seen::Moving),
            // an op's id and attempt say what a nack is about, whatever the attachment
            F::Nack(n) => self.hear_nack(client, &n),
            _ if !attached => {}
            F::Event(e) => self.hear_event(client, &e),
            F::Snapshot(s) => self.hear_snapshot(client, &s),
            F::Ack(a) => self.hear_ack(client, &a),
            F::Status(s) => self.raise(client, s.epoch, "status"),
            F::Reaction(r) => {
                self.counts.seen(Seen::Reaction);
                self.raise(client, r.epoch, "reaction");
            }
            _ => {}
        }
    }

    /// 5: nothing of an epoch below the highest.
    fn raise(&mut self, client: usize, epoch: u64, what: &str) {
        let highest = self.clients[client].seen.epoch;
        if epoch < highest {
            self.oracle.violate(5, format!("client {client}: {what} of epoch {epoch} after {highest}"));
        }
        self.clients[client].seen.epoch = epoch.max(highest);
    }

    fn hear_attached(&mut self, client: usize, a: &server_frame::Attached) {
        let head = a.head.unwrap_or_default();
        self.clients[client].attached = true;
        self.raise(client, head.epoch, "attached");
        match a.resume {
            1 => self.counts.seen(Seen::EventsResumed),
            3 => self.counts.seen(Seen::NothingMissed),
            _ => {}
        }
        self.settle_lane(client, a.lane_seq, &a.rejected);
        if std::mem::replace(&mut self.clients[client].resend_all, false) {
            self.client_resend(client, |_| true);
        } else {
            self.client_resend(client, |p| p.nacked || p.attempt == 0);
        }
    }

    fn hear_detached(&mut self, client: usize, conn: usize, d: &server_frame::Detached) {
        if !matches!(d.code(), Code::NoOwner | Code::Overloaded | Code::NotAttached | Code::StoreUnavailable) {
            self.oracle.violate(0, format!("client {client} was detached: {:?}", d.code()));
        }
        self.clients[client].attached = false;
        self.clients[client].resend_all = true;
        let us = u64::from(d.retry_after_ms.clamp(50, 5_000)) * 1_000;
        self.after(us, Event::ClientWake { client, wake: Wake::Attach(conn) });
    }

    /// Everything up to `lane_seq` is decided: committed, except what is named.
    fn settle_lane(&mut self, client: usize, lane_seq: u64, rejected: &[Rejected]) {
        let c = &self.clients[client];
        if lane_seq >= c.next {
            let what = format!("client {client}: lane_seq {lane_seq}, but it sent only {}", c.next - 1);
            self.oracle.violate(0, what);
        }
        let decided: Vec<_> = c.pending.range(..=lane_seq).map(|(s, _)| *s).collect();
        let (session, lane) = (c.session, c.lane.clone());
        for seq in decided {
            self.clients[client].pending.remove(&seq);
            if rejected.iter().any(|r| r.seq == seq) {
                self.counts.seen(Seen::Rejected);
                self.oracle.is_dead(session, (lane.clone(), seq));
            } else {
                self.oracle.is_committed(session, &(lane.clone(), seq), 0, "lane_seq");
            }
        }
    }

    fn hear_event(&mut self, client: usize, e: &server_frame::Event) {
        let at = e.at.unwrap_or_default();
        self.raise(client, at.epoch, "event");
        let last = at.ver.max(e.skip_to);
        let ver = self.clients[client].seen.ver;
        if self.clients[client].lossy && at.ver > ver + 1 {
            self.client_resync(client, false); // rule 1; a snapshot is coming anyway
        } else if at.ver > ver + 1 {
            self.oracle.violate(4, format!("client {client}: event {} after {ver}", at.ver));
        } else if last > ver {
            self.apply(client, e, at.ver, last);
        }
        if let Some(op) = &e.op {
            if e.skip_to == 0 || !op.lane.is_empty() || op.seq > 0 {
                self.counts.seen(Seen::EchoHeard);
            }
            self.settle(client, op, last, "event");
        }
    }

    fn apply(&mut self, client: usize, e: &server_frame::Event, from: u64, to: u64) {
        let c = &mut self.clients[client];
        c.seen.ver = to;
        let (session, me) = (c.session, c.participant.clone());
        if e.skip_to == 0 {
            self.oracle.is_event(session, from, &e.payload);
            return;
        }
        self.counts.seen(Seen::Skip);
        let log = &self.oracle.truth[session].log;
        let mine = log.iter().find(|l| (from..=to).contains(&l.ver) && (l.only.is_empty() || l.only.contains(&me)));
        if let (Some(l), 1) = (mine, self.clients[client].role) {
            let what = format!("client {client}: {from}..{to} was skipped, but {} is for it", l.ver);
            self.oracle.violate(4, what);
        }
    }

    fn hear_snapshot(&mut self, client: usize, s: &server_frame::Snapshot) {
        let at = s.at.unwrap_or_default();
        self.raise(client, at.epoch, "snapshot");
        let c = &mut self.clients[client];
        let fell = at.ver < c.seen.ver;
        c.seen.ver = at.ver;
        c.lossy = false;
        c.resyncing = false;
        let (session, ver) = (c.session, c.seen.ver);
        match s.reason {
            1 => self.counts.seen(Seen::SnapshotFirst),
            2 => self.counts.seen(Seen::SnapshotBehind),
            4 => self.counts.seen(Seen::SnapshotAsked),
            5 => self.counts.seen(Seen::SnapshotSlow),
            _ => self.oracle.violate(4, format!("client {client}: snapshot with reason {}", s.reason)),
        }
        if fell {
            self.oracle.violate(4, format!("client {client}: a snapshot takes it back to {ver}"));
        }
        self.oracle.is_state(session, at.ver, &s.payload);
        self.settle_lane(client, s.lane_seq, &s.rejected);
    }

    fn hear_ack(&mut self, client: usize, a: &server_frame::Ack) {
        let at = a.at.unwrap_or_default();
        self.raise(client, at.epoch, "ack");
        let c = &self.clients[client];
        if at.ver > c.seen.ver && !c.lossy && !c.resyncing {
            let what = format!("client {client}: ack of ver {} overtakes {}", at.ver, c.seen.ver);
            self.oracle.violate(4, what);
        }
        if a.dup {
            self.counts.seen(Seen::Dup);
        }
        let op = a.op.clone().unwrap_or_default();
        self.settle(client, &op, at.ver, "ack");
    }

    /// Its own op, if it is that, is done.
    fn settle(&mut self, client: usize, op: &OpId, ver: u64, how: &str) {
        let c = &mut self.clients[client];
        if !op.lane.is_empty() && op.lane != c.lane {
            return;
        }
        let key = (c.lane.clone(), op.seq);
        let session = c.session;
        if c.pending.remove(&op.seq).is_some() {
            self.counts.seen(Seen::Acked);
        }
        self.oracle.is_committed(session, &key, if how == "ack" { ver } else { 0 }, how);
    }

    fn hear_nack(&mut self, client: usize, n: &server_frame::Nack) {
        let op = n.op.clone().unwrap_or_default();
        let c = &mut self.clients[client];
        let (session, lane) = (c.session, c.lane.clone());
        let Some(p) = c.pending.get_mut(&op.seq) else { return };
        let code = n.code as u32;
        if code < 200 {
            self.oracle.violate(0, format!("client {client} hears {:?}", n.code()));
        } else if code < 400 {
            self.hear_not_yet(client, op.seq, n);
        } else if n.attempt == 0 || n.attempt == p.attempt {
            let resend = p.attempt > 1 && !matches!(n.code(), Code::BadFrame | Code::TooLarge);
            let gw = c.conn.map_or(0, |conn| self.net.conns[conn].gw);
            let owners = self.oracle.was_nacked(gw, session, &(lane.to_vec(), op.seq));
            if resend && !owners {
                let what =
                    format!("client {client}: op {} resent, and its gateway says {:?} by itself", op.seq, n.code());
                self.oracle.violate(7, what);
            }
            self.counts.seen(Seen::FinalNack);
            self.clients[client].pending.remove(&op.seq);
            if n.applied() == Applied::No {
                self.oracle.is_dead(session, (lane, op.seq));
            }
        }
    }

    /// A 2xx: the same op again, and what came after it too.
    fn hear_not_yet(&mut self, client: usize, seq: u64, n: &server_frame::Nack) {
        self.counts.seen(Seen::Nacked2xx);
        if n.code() == Code::Gap {
            self.counts.seen(Seen::Gap);
        }
        let c = &mut self.clients[client];
        let from = if n.code() == Code::Gap && n.expected_seq > 0 { n.expected_seq.min(seq) } else { seq };
        if let Some(p) = c.pending.get_mut(&seq).filter(|p| n.attempt == 0 || n.attempt == p.attempt) {
            p.nacked = true;
            // what the gateway expects was refused before, or never got there
            if let Some(first) = c.pending.get_mut(&from).filter(|_| from < seq) {
                first.nacked = true;
            }
            self.plan_retry(client, n.retry_after_ms);
        }
    }

    /// Asks to be caught up.
    pub fn client_resync(&mut self, client: usize, snapshot: bool) {
        let c = &mut self.clients[client];
        if !c.attached || c.resyncing {
            return;
        }
        c.resyncing = true;
        let last_seen = Some(c.seen);
        let session = self.sessions[c.session].to_string();
        self.client_send(client, client_frame::F::Resync(client_frame::Resync { session, last_seen, snapshot }));
    }

    /// Sends a reaction.
    pub fn client_react(&mut self, client: usize) {
        let c = &self.clients[client];
        let reaction = client_frame::Reaction {
            session: self.sessions[c.session].to_string(),
            epoch: c.seen.epoch,
            class: "applause".to_owned(),
            payload: Bytes::new(),
            ..Default::default()
        };
        if c.attached {
            self.client_send(client, client_frame::F::Reaction(reaction));
        }
    }
}
