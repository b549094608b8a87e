//! What gateways say of a session, and what they are told: joins, attachments, catch-ups, events.

use std::collections::BTreeMap;

use super::{
    App, Authority, Effect,
    authority::Phase,
    lanes::{Key, rejected},
    queue::{QUEUE_MAX, Queued, epoch_of},
    tail::Resume,
};
use crate::{
    id::{Lane, LinkId},
    message::op_id,
    proto::{
        Code, OpId, Pos, Rejected,
        gateway_msg::{self, M},
        owner_msg,
        record::Entry,
    },
    time::Now,
};

/// Attachments kept per link; a gateway serves at most 10,000 individuals of one session.
const ATTS_MAX: usize = 10_000;

/// One gateway's stream, as far as this session goes.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// It gets the events of this epoch.
    pub joined: bool,
    pub atts: BTreeMap<u32, Att>,
    /// Participants and spectators there.
    pub presence: (u32, u32),
}

/// One individual.
#[derive(Debug)]
pub(super) struct Att {
    pub participant: String,
    pub lane: Option<Key>,
}

impl<A: App> Authority<A> {
    /// A gateway says something of this session.
    pub fn handle_link_msg(&mut self, now: Now, link: LinkId, msg: M, out: &mut Vec<Effect>) {
        if let M::Reaction(reaction) = msg {
            return self.handle_reaction(now, link, &reaction, out);
        }
        if let Some(epoch) = epoch_of(&msg) {
            let read = !matches!(msg, M::Op(_));
            let draining = self.draining && !read;
            if (self.phase == Phase::Over && !draining) || (read && (!self.lease || self.draining)) {
                return self.not_owner(link, epoch, out);
            }
        }
        if matches!(msg, M::Join(_)) {
            self.links.entry(link).or_default();
        }
        let q = Queued { link, msg, tried: false };
        let is_op = matches!(q.msg, M::Op(_));
        if is_op && self.refuses() {
            return self.refuse(&q, out);
        }
        if self.queue.len() >= QUEUE_MAX {
            return match epoch_of(&q.msg) {
                Some(_) if is_op => self.nack(&q, Code::Overloaded, out),
                Some(epoch) => self.not_owner(link, epoch, out),
                None => {}
            };
        }
        if self.down && matches!(q.msg, M::Join(_)) {
            self.send(link, owner_msg::M::Health(self.health_msg()), out);
        }
        self.queue.push_back(q);
        self.pump(now, out);
    }

    /// A gateway's stream is gone. Its ops that wait are decided nevertheless: the moves were made.
    pub fn handle_link_down(&mut self, _now: Now, link: LinkId, _out: &mut Vec<Effect>) {
        self.links.remove(&link);
        self.queue.retain(|q| q.link != link || matches!(q.msg, M::Op(_)));
    }

    /// Participants and spectators over all gateways.
    pub fn presence(&self) -> (u32, u32) {
        self.links.values().fold((0, 0), |sum, l| (sum.0 + l.presence.0, sum.1 + l.presence.1))
    }

    /// Messages that neither write nor wait for a write.
    pub(super) fn handle_quiet(&mut self, link: LinkId, msg: &M) {
        match msg {
            M::Presence(m) => {
                if let Some(l) = self.links.get_mut(&link) {
                    l.presence = (m.participants, m.spectators);
                }
            }
            M::Detach(m) => {
                if let Some(l) = self.links.get_mut(&link) {
                    l.atts.remove(&m.att);
                }
            }
            M::Delivered(m) => {
                let att = self.links.get(&link).and_then(|l| l.atts.get(&m.att));
                if let Some(participant) = att.map(|a| a.participant.clone()) {
                    self.app.handle_delivered(&participant, m.ver, m.sent_at_us);
                }
            }
            _ => {}
        }
    }

    /// Messages answered from the durable state: no write is in flight.
    pub(super) fn handle_read(&mut self, link: LinkId, msg: M, out: &mut Vec<Effect>) {
        let have = match &msg {
            M::Join(m) => m.have.unwrap_or_default().epoch,
            M::Pull(m) => m.have.unwrap_or_default().epoch,
            _ => 0,
        };
        if let Some(epoch) = epoch_of(&msg)
            && (epoch != self.epoch || have > self.epoch)
        {
            return self.not_owner(link, epoch, out);
        }
        match msg {
            M::Join(m) => self.join(link, &m, out),
            M::Attach(m) => self.attach(link, m, out),
            M::Pull(m) => self.pull(link, &m, out),
            M::Leave(_) => {
                self.links.remove(&link);
            }
            _ => {}
        }
    }

    fn join(&mut self, link: LinkId, m: &gateway_msg::Join, out: &mut Vec<Effect>) {
        self.links.entry(link).or_default().joined = true;
        let resume = self.tail.resume(m.have.unwrap_or_default(), self.header.ver);
        let joined = owner_msg::Joined {
            session: self.session.to_string(),
            head: Some(self.head()),
            resume: match resume {
                Resume::Events(_) => 1,
                Resume::State => 2,
                Resume::Nothing => 3,
            },
            stamped: self.app.stamped(),
            reaction_ttl_ms: self.app.reaction_ttl_ms(),
            max_payload_bytes: self.config.max_payload_bytes,
            hold_ttl_ms: self.config.hold_ttl_ms,
        };
        self.send(link, owner_msg::M::Joined(joined), out);
        match resume {
            Resume::Events(after) => self.send_after(link, after, 0, out),
            Resume::State => self.send(link, owner_msg::M::State(self.state(0, None)), out),
            Resume::Nothing => {}
        }
        if let Some(d) = &self.armed {
            self.send(link, self.arm_msg(d, false), out);
        }
        if self.health() != owner_msg::health::Store::Ok {
            self.send(link, owner_msg::M::Health(self.health_msg()), out);
        }
    }

    fn attach(&mut self, link: LinkId, m: gateway_msg::Attach, out: &mut Vec<Effect>) {
        let lane = Lane::any(&m.lane).ok().map(|l| (m.principal, l));
        let (lane_seq, rejected) = self.lane_words(lane.as_ref());
        let atts = &mut self.links.entry(link).or_default().atts;
        if atts.len() < ATTS_MAX {
            atts.insert(m.att, Att { participant: m.participant, lane });
        }
        let attached = owner_msg::Attached {
            session: self.session.to_string(),
            epoch: self.epoch,
            att: m.att,
            lane_seq,
            head: Some(self.head()),
            rejected,
        };
        self.send(link, owner_msg::M::Attached(attached), out);
    }

    fn pull(&mut self, link: LinkId, m: &gateway_msg::Pull, out: &mut Vec<Effect>) {
        let resume = self.tail.resume(m.have.unwrap_or_default(), self.header.ver);
        match resume {
            Resume::Events(after) if !m.snapshot => self.send_after(link, after, m.att, out),
            // also for one that has everything: it asked, so it waits for an answer
            _ => {
                let lane = self.links.get(&link).and_then(|l| l.atts.get(&m.att)).and_then(|a| a.lane.clone());
                self.send(link, owner_msg::M::State(self.state(m.att, lane.as_ref())), out);
            }
        }
    }

    fn lane_words(&self, lane: Option<&Key>) -> (u64, Vec<Rejected>) {
        lane.and_then(|k| self.lanes.get(k)).map_or((0, Vec::new()), |l| (l.last_decided, rejected(l)))
    }

    fn state(&self, to_att: u32, lane: Option<&Key>) -> owner_msg::State {
        let (content, payload) = self.app.snapshot();
        let (lane_seq, rejected) = self.lane_words(lane);
        let session = self.session.to_string();
        owner_msg::State {
            session,
            at: Some(self.head()),
            content: content.into(),
            payload,
            to_att,
            lane_seq,
            rejected,
        }
    }

    fn head(&self) -> Pos {
        Pos { epoch: self.epoch, ver: self.header.ver }
    }

    fn send_after(&self, link: LinkId, ver: u64, to_att: u32, out: &mut Vec<Effect>) {
        for entry in self.tail.after(ver) {
            self.send(link, owner_msg::M::Event(self.event(entry, to_att)), out);
        }
    }

    /// An entry as gateways see it: always with this authority's epoch.
    pub(super) fn event(&self, e: &Entry, to_att: u32) -> owner_msg::Event {
        let op: Option<OpId> = (e.op_end && !e.lane.is_empty()).then(|| op_id(&e.lane, e.seq));
        owner_msg::Event {
            session: self.session.to_string(),
            at: Some(Pos { epoch: self.epoch, ver: e.ver }),
            op,
            actor: e.actor.clone(),
            content: i32::try_from(e.content).unwrap_or(0),
            payload: e.payload.clone(),
            flags: e.flags,
            only: e.only.clone(),
            to_att,
            at_us: e.at_us,
            skip_to: 0,
        }
    }

    /// Sends what joined gateways have not heard; a state, if the record went back or no longer has it.
    pub(super) fn catch_up_links(&mut self, out: &mut Vec<Effect>) {
        let (from, head) = (self.published, self.header.ver);
        self.published = head;
        if from == head {
            return;
        }
        let whole = from < head && self.tail.first_ver().is_some_and(|f| f <= from + 1);
        for (link, _) in self.links.iter().filter(|(_, l)| l.joined) {
            if whole {
                self.send_after(*link, from, 0, out);
            } else {
                self.send(*link, owner_msg::M::State(self.state(0, None)), out);
            }
        }
    }

    fn handle_reaction(&mut self, now: Now, link: LinkId, r: &gateway_msg::Reaction, out: &mut Vec<Effect>) {
        let late = r.age_us / 1000 >= self.app.reaction_ttl_ms();
        let serves = self.claimed && self.lease && !self.draining && self.phase != Phase::Over && self.app.reactions();
        let Some(from) = self.links.get(&link).filter(|l| l.joined && serves && !late && r.epoch == self.epoch) else {
            self.reactions_refused += 1;
            return;
        };
        let actor = from.atts.get(&r.att).map_or("", |a| a.participant.as_str()).to_owned();
        if let Some(alone) = self.reactions.add(now.mono, r, &actor) {
            self.relay(&alone, out);
        }
    }

    fn relay(&self, reaction: &owner_msg::Reaction, out: &mut Vec<Effect>) {
        for (link, _) in self.links.iter().filter(|(_, l)| l.joined) {
            self.send(*link, owner_msg::M::Reaction(reaction.clone()), out);
        }
    }

    pub(super) fn flush_reactions(&mut self, now: Now, out: &mut Vec<Effect>) {
        let ttl = self.app.reaction_ttl_ms();
        for merged in self.reactions.flush(now.mono, self.session.as_str(), self.epoch) {
            if merged.age_us / 1000 < ttl {
                self.relay(&merged, out);
            }
        }
    }
}
