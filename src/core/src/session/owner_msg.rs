//! What the owner says: fenced first, then acted upon (design 6.5).

use crate::{
    id::LinkId,
    mutant::{self, Mutant},
    proto::{
        owner_msg::{self, M},
        server_frame::status::State,
    },
    session::{
        Action, Observation, Session, Store,
        attachment::{Answer, Attachment, Why},
    },
    time::Now,
};

/// What the fence says of a message.
enum Fence {
    Pass,
    Drop,
    /// The owner on this very link lives in a later epoch: join it there.
    Ahead(u64),
}

impl Session {
    /// A message of the owner about this session (`Health` and `Draining` are given to every session of the link).
    pub fn handle_owner_msg(&mut self, now: Now, link: LinkId, msg: M, out: &mut Vec<Action>) {
        let epoch = epoch_of(&msg);
        match self.fence(link, epoch) {
            Fence::Pass => {}
            Fence::Drop if mutant::on(Mutant::StaleEpochDelivered) => {}
            Fence::Drop => {
                out.push(Action::Observe(Observation::StaleDropped { epoch: epoch.unwrap_or(0) }));
                return;
            }
            Fence::Ahead(epoch) => {
                self.follow(now, epoch, out);
                return;
            }
        }
        match msg {
            M::Event(event) => self.event(now, event, out),
            M::Committed(msg) => self.committed(now, &msg, out),
            M::Nack(msg) => self.owner_nack(now, &msg, out),
            M::Reaction(msg) => self.reaction_down(now, msg, out),
            M::Joined(msg) => self.joined(now, &msg, out),
            M::Attached(msg) => self.attached_by_owner(msg, out),
            M::State(msg) => {
                self.state(msg, out);
                self.answer_spectators(out);
            }
            M::NotOwner(msg) => self.not_owner(now, &msg, out),
            M::Health(msg) => self.health(now, &msg, out),
            M::Kick(msg) => self.kicked(now, &msg, out),
            M::Closed(_) => {
                if let Some(r) = &mut self.route {
                    r.ended = true;
                }
                self.status_to_all(State::Ended, out);
            }
            M::ArmDeadline(msg) => self.armed.handle(&msg),
            // the link's own
            M::Hello(_) | M::Draining(_) | M::Ping(_) | M::Pong(_) | M::Credit(_) => {}
        }
    }

    fn fence(&self, link: LinkId, epoch: Option<u64>) -> Fence {
        let Some(b) = self.binding.as_ref().filter(|b| b.link == Some(link)) else { return Fence::Drop };
        match epoch {
            Some(e) if e < b.epoch => Fence::Drop,
            Some(e) if e > b.epoch => Fence::Ahead(e),
            _ => Fence::Pass,
        }
    }

    /// The owner we are linked to has claimed a later epoch before the directory's word reached us. A record's claim
    /// is as good as the directory's: same boot, new join.
    fn follow(&mut self, now: Now, epoch: u64, out: &mut Vec<Action>) {
        if let Some(r) = self.route.clone() {
            self.handle_route(now, &super::Route { epoch, ended: false, revision: 0, ..r }, out);
        }
    }

    fn event(&mut self, now: Now, event: owner_msg::Event, out: &mut Vec<Action>) {
        let at = event.at.unwrap_or_default().ver;
        self.echo(now, &event, out);
        if event.to_att != 0 {
            self.catch_up(&event, out);
            return;
        }
        if super::ring::last_ver(&event) <= self.ver {
            return;
        }
        if at > self.ver + 1 {
            // a hole in a FIFO stream: something was lost; join again with what we have
            self.retry_later(now, 0, false, out);
            return;
        }
        self.ver = super::ring::last_ver(&event);
        self.broadcast(event, out);
    }

    /// The owner has claimed the epoch and knows what we have.
    fn joined(&mut self, now: Now, msg: &owner_msg::Joined, out: &mut Vec<Action>) {
        let Some(b) = &mut self.binding else { return };
        if !b.replayed {
            // refusals of an earlier join overtook this one, so what came since has not been said: say it all once more
            self.replay(now, out);
            return;
        }
        b.joined = true;
        b.moved_at = None;
        b.head = msg.head.unwrap_or_default().ver;
        // an earlier authority on this link may have said otherwise; this one does so right after `Joined`
        self.store = Store::Ok;
        b.retry_at = None;
        b.retries = 0;
        b.redirects = 0;
        self.epoch = b.epoch;
        self.moving_at = None;
        if self.hold.is_empty() {
            self.lost_at = None;
        }
        if msg.resume == 3 && msg.head.unwrap_or_default().ver != self.ver {
            self.ring.clear();
            self.ver = msg.head.unwrap_or_default().ver;
        }
        let ver = self.ver;
        self.ver = msg.head.unwrap_or_default().ver.max(ver);
        self.status_to_all(State::Live, out);
        self.ver = ver;
        if msg.max_payload_bytes > 0 {
            let max = usize::try_from(msg.max_payload_bytes).unwrap_or(usize::MAX);
            self.limits.payload_bytes_max = self.limits.payload_bytes_max.min(max);
        }
        if msg.resume != 2 {
            self.answer_spectators(out);
            self.pull_cut_short(out);
        }
        self.flush_pending(now, out);
    }

    /// A catch-up that the last link or epoch did not finish is asked for again.
    fn pull_cut_short(&mut self, out: &mut Vec<Action>) {
        let behind: Vec<_> =
            self.atts.values().filter(|a| a.is_live() && a.ver < self.ver).map(Attachment::conn).collect();
        for conn in behind {
            self.pull(conn, Why::Behind, out);
        }
    }

    pub(super) fn answer_spectators(&mut self, out: &mut Vec<Action>) {
        let waiting: Vec<_> =
            self.atts.values().filter(|a| !a.is_participant() && !a.is_answered()).map(Attachment::conn).collect();
        for conn in waiting {
            self.answer_spectator(conn, out);
        }
    }

    fn attached_by_owner(&mut self, msg: owner_msg::Attached, out: &mut Vec<Action>) {
        let Some(conn) = self.conn_of(msg.att) else { return };
        let head_ver = msg.head.unwrap_or_default().ver;
        self.answer(conn, Answer { lane_seq: msg.lane_seq, rejected: msg.rejected, head_ver }, out);
    }
}

/// The epoch a message speaks in; `None` = it has none.
fn epoch_of(msg: &M) -> Option<u64> {
    match msg {
        M::Event(m) => Some(m.at.unwrap_or_default().epoch),
        M::Committed(m) => Some(m.epoch),
        M::Nack(m) => Some(m.epoch),
        M::Reaction(m) => Some(m.epoch),
        M::Joined(m) => Some(m.head.unwrap_or_default().epoch),
        M::Attached(m) => Some(m.epoch),
        M::State(m) => Some(m.at.unwrap_or_default().epoch),
        M::Closed(m) => Some(m.at.unwrap_or_default().epoch),
        _ => None,
    }
}
