//! Which owner the session talks to, and what happens when that changes (design 6.2 to 6.4, 8.3).

use std::{sync::Arc, time::Duration};

use crate::{
    id::{Boot, LinkId},
    mutant::{self, Mutant},
    proto::{
        self,
        gateway_msg::{self, Origin},
        server_frame::status::State,
    },
    session::{Action, Limits, Observation, Route, Session, Store, attachment::Phase},
    time::{Mono, Now, Wall},
};

/// First wait before a refused join is tried again, and the longest (design 8.3: 50 ms..1 s jittered).
const RETRY_US: std::ops::RangeInclusive<u64> = 50_000..=1_000_000;
/// A join not answered by then is sent again: the owner lost it.
const JOIN_ANSWER_US: u64 = 5_000_000;
/// Clients are told `moving` after this long without an owner: most link losses are over by then.
const MOVING_US: u64 = 1_000_000;

/// The owner's life and epoch this session is bound to.
#[derive(Debug)]
pub(super) struct Binding {
    pub boot: Boot,
    pub epoch: u64,
    pub revision: i64,
    pub link: Option<LinkId>,
    /// Join, attaches and held ops have been written to `link`.
    pub replayed: bool,
    /// The owner has answered the join.
    pub joined: bool,
    /// The owner's version when it answered: what lies between ours and this is on its way.
    pub head: u64,
    /// When to join again.
    pub retry_at: Option<Mono>,
    pub retries: u32,
    pub redirects: u32,
    /// When the move to this binding was heard of, until the owner has answered the join; `None` = the first binding.
    pub moved_at: Option<Wall>,
}

impl Session {
    /// The directory's word (or a hint): a larger epoch wins, an equal one refreshes, a smaller one is dropped.
    pub fn handle_route(&mut self, now: Now, route: &Route, out: &mut Vec<Action>) {
        let known = self.route.as_ref().map_or(0, |r| r.epoch);
        let unused = self.atts.is_empty() && self.hold.is_empty() && self.linger_until.is_none();
        if unused || route.epoch < known {
            return;
        }
        if self.kind != route.kind && !route.kind.is_empty() {
            self.kind = route.kind.clone();
            self.limits = Limits::for_kind(&route.kind).with_rates(&route.kind, &self.rates);
        }
        let ended = route.ended && !self.route.as_ref().is_some_and(|r| r.ended);
        if route.epoch > known || self.route.is_none() {
            self.route = Some(route.clone());
            self.rebind(now, route, out);
        } else if let Some(r) = &mut self.route
            && r.boot == route.boot
        {
            *r = Route { kind: r.kind.clone(), ..route.clone() };
            if let Some(b) = &mut self.binding {
                b.revision = b.revision.max(route.revision);
            }
        }
        if ended {
            self.status_to_all(State::Ended, out);
        }
    }

    /// A linearizable read found no placement. One that was known is not thereby ended: it is read again.
    pub fn handle_absent(&mut self, now: Now, out: &mut Vec<Action>) {
        if self.route.is_some() {
            return;
        }
        for (lane, seq) in self.hold.select(|_| true) {
            self.expire(lane, seq, out);
        }
        let conns: Vec<_> = self.atts.keys().copied().collect();
        for conn in conns {
            self.refuse_attach(conn, proto::Code::NoSession, 0, out);
        }
        self.maybe_linger(now);
    }

    /// A link to this life of a node is up.
    pub fn handle_link_up(&mut self, now: Now, boot: Boot, link: LinkId, out: &mut Vec<Action>) {
        let Some(b) = self.binding.as_mut().filter(|b| b.boot == boot) else { return };
        if b.link == Some(link) && b.replayed {
            return;
        }
        b.link = Some(link);
        b.retries = 0;
        self.store = Store::Ok;
        self.replay(now, out);
    }

    /// The link broke; the placement may or may not have changed.
    pub fn handle_link_down(&mut self, now: Now, link: LinkId, out: &mut Vec<Action>) {
        let Some(b) = self.binding.as_mut().filter(|b| b.link == Some(link)) else { return };
        b.link = None;
        b.replayed = false;
        b.joined = false;
        b.retry_at = None;
        let boot = b.boot;
        self.lose(now);
        if let Some(r) = self.route.as_ref().filter(|r| r.boot == boot) {
            out.push(Action::Connect { boot, node: r.node.clone(), addr: r.addr.clone() });
        }
    }

    /// Starts counting the time without an owner.
    fn lose(&mut self, now: Now) {
        self.lost_at.get_or_insert(now.mono);
        self.moving_at.get_or_insert(now.mono.after(Duration::from_micros(MOVING_US)));
    }

    /// Binds to another (boot, epoch); the old owner, if it still listens, need not send any more.
    pub(super) fn rebind(&mut self, now: Now, route: &Route, out: &mut Vec<Action>) {
        let old = self.binding.take();
        let moved_at = (old.is_some() || self.lost_at.is_some()).then_some(now.wall);
        let redirects = if route.revision == 0 { old.as_ref().map_or(0, |b| b.redirects) } else { 0 };
        if old.is_some() {
            self.lose(now);
            out.push(Action::Observe(Observation::Rebound { epoch: route.epoch, held: self.hold.len() }));
        }
        let same = old.as_ref().filter(|b| b.boot == route.boot).and_then(|b| b.link);
        if let Some(b) = old.filter(|b| b.boot != route.boot) {
            if let Some(link) = b.link {
                let leave = gateway_msg::Leave { session: self.id.to_string() };
                out.push(Action::Send { link, msg: gateway_msg::M::Leave(leave) });
            }
            out.push(Action::Unbound { boot: b.boot });
        }
        if route.boot.0 == 0 {
            self.tell_moving(out);
            return;
        }
        self.binding = Some(Binding {
            boot: route.boot,
            epoch: route.epoch,
            revision: route.revision,
            link: same,
            replayed: false,
            joined: false,
            head: 0,
            retry_at: None,
            retries: 0,
            redirects,
            moved_at,
        });
        if same.is_some() {
            self.replay(now, out);
        } else {
            out.push(Action::Bound { boot: route.boot });
            out.push(Action::Connect { boot: route.boot, node: route.node.clone(), addr: route.addr.clone() });
        }
    }

    /// Join, attaches, held ops in arrival order, ReplayDone: what an owner must hear before anything new.
    pub(super) fn replay(&mut self, now: Now, out: &mut Vec<Action>) {
        let Some(b) = &mut self.binding else { return };
        if b.link.is_none() {
            return;
        }
        b.replayed = true;
        b.joined = false;
        b.retry_at = Some(now.mono.after(Duration::from_micros(JOIN_ANSWER_US)));
        let (epoch, placement_rev) = (b.epoch, u64::try_from(b.revision).unwrap_or(0));
        let session = self.id.to_string();
        let have = Some(proto::Pos { epoch: if self.ver == 0 { 0 } else { self.epoch }, ver: self.ver });
        self.send(
            gateway_msg::M::Join(gateway_msg::Join { session: session.clone(), epoch, have, placement_rev }),
            out,
        );
        let conns: Vec<_> = self.atts.keys().copied().collect();
        for conn in &conns {
            self.send_attach(*conn, out);
        }
        self.joined_presence = (0, 0);
        self.send_presence(out);
        let held = self.hold.select(|_| true);
        let ops = u32::try_from(held.len()).unwrap_or(u32::MAX);
        for (lane, seq) in held {
            self.forward(now, lane, seq, out);
        }
        self.send(gateway_msg::M::ReplayDone(gateway_msg::ReplayDone { session, epoch, ops }), out);
        for conn in conns {
            if matches!(self.atts.get(&conn).map(|a| &a.phase), Some(Phase::Pulling { answer: None, .. })) {
                self.send_pull(conn, out);
            }
        }
    }

    /// Writes a held op to the link, as it is; only the envelope counts.
    pub(super) fn forward(&mut self, now: Now, lane: crate::id::Lane, seq: u64, out: &mut Vec<Action>) {
        let Some(b) = &self.binding else { return };
        let Some(link) = b.link else { return };
        let Some(h) = self.hold.get_mut(lane, seq) else { return };
        h.sends += 1;
        h.pending = false;
        let resend = h.sends > 1;
        if resend && mutant::on(Mutant::StampRemade) {
            h.bytes = restamped(&h.bytes, now);
        }
        let att = self.atts.get(&h.conn).map_or(0, |a| a.client.att);
        let envelope = gateway_msg::OpEnvelope {
            epoch: b.epoch,
            held: h.bytes.clone(),
            attempt: h.sends,
            origin: if resend { Origin::Resend } else { Origin::Live }.into(),
            att,
            ..Default::default()
        };
        out.push(Action::Send { link, msg: gateway_msg::M::Op(envelope) });
        out.push(Action::Observe(if resend {
            Observation::Resent { moved_at: b.moved_at }
        } else {
            Observation::Forwarded { queued_us: now.wall.0.saturating_sub(h.arrived_at.0) }
        }));
    }

    /// A link on which new ops may follow: everything held before them has been written.
    pub(super) fn is_open(&self) -> bool {
        self.binding.as_ref().is_some_and(|b| b.link.is_some() && b.replayed)
    }

    /// Sends `msg` to the owner, if the session has been replayed to it (or is being).
    pub(super) fn send(&self, msg: gateway_msg::M, out: &mut Vec<Action>) {
        if let Some(link) = self.binding.as_ref().filter(|b| b.replayed).and_then(|b| b.link) {
            out.push(Action::Send { link, msg });
        }
    }

    /// The owner will not have the session yet (or any more): everything stays held, and is replayed later.
    pub(super) fn retry_later(&mut self, now: Now, at_least_ms: u32, resolve: bool, out: &mut Vec<Action>) {
        let draw = self.id.as_str().bytes().fold(now.mono.0, |x, b| (x ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        self.lose(now);
        let Some(b) = &mut self.binding else { return };
        if !b.replayed {
            return; // already waiting for its turn
        }
        let base = (RETRY_US.start() << b.retries.min(5)).min(*RETRY_US.end());
        let wait = (base / 2 + draw % (base / 2 + 1)).max(u64::from(at_least_ms) * 1000);
        b.retries += 1;
        b.replayed = false;
        b.joined = false;
        b.retry_at = Some(now.mono.after(Duration::from_micros(wait)));
        if resolve {
            out.push(Action::Resolve);
        }
    }

    /// `NotOwner`: believe a newer hint at once, otherwise hold, wait and read the directory.
    pub(super) fn not_owner(&mut self, now: Now, msg: &proto::owner_msg::NotOwner, out: &mut Vec<Action>) {
        let Some(b) = &mut self.binding else { return };
        if msg.your_epoch != 0 && msg.your_epoch < b.epoch {
            return; // speaks of an earlier binding
        }
        out.push(Action::Observe(Observation::NotOwner));
        let hint = msg.hint.as_ref().filter(|h| h.epoch > b.epoch && h.boot != 0 && !h.addr.is_empty());
        if let Some(hint) = hint
            && b.redirects < self.limits.redirects_max
        {
            b.redirects += 1;
            out.push(Action::Observe(Observation::Redirected));
            let route = Route {
                epoch: hint.epoch,
                boot: Boot(hint.boot),
                node: Arc::from(hint.owner_id.as_str()),
                addr: Arc::from(hint.addr.as_str()),
                kind: self.kind.clone(),
                ended: false,
                revision: 0,
                unowned_from_ms: 0,
            };
            self.handle_route(now, &route, out);
            return;
        }
        self.retry_later(now, 0, true, out);
    }

    /// When the binding wants to be woken.
    pub(super) fn retry_due(&self) -> Option<Mono> {
        self.binding.as_ref().filter(|b| !b.joined && b.link.is_some()).and_then(|b| b.retry_at)
    }
}

/// The defect `StampRemade`: the op as if it had arrived now.
fn restamped(held: &bytes::Bytes, now: Now) -> bytes::Bytes {
    use prost::Message;
    let Ok(mut op) = proto::HeldOp::decode(held.clone()) else { return held.clone() };
    let Ok(mut stamp) = proto::Stamp::decode(op.stamp.clone()) else { return held.clone() };
    stamp.arrived_at_us = now.wall.0;
    op.stamp = stamp.encode_to_vec().into();
    op.encode_to_vec().into()
}
