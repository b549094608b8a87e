//! Who gives way when the queue is full.

use holdfast_core::proto::server_frame::{Ack, F};

use super::{ITEM_OVERHEAD_BYTES, Item, Kind, Lag, Queue, session};
use crate::transport::outgoing::Outgoing;

impl Queue {
    pub(super) fn push_reaction(&mut self, item: Item) {
        let fits = |q: &Self| {
            q.reaction_bytes + item.cost <= q.budget.reaction_bytes_max && q.bytes + item.cost <= q.budget.bytes_max
        };
        if !fits(self) {
            // The newest of each class and sender wins.
            let key = reaction_key(item.frame.frame());
            self.drop_first(|i| i.kind == Kind::Reaction && reaction_key(i.frame.frame()) == key);
        }
        while !fits(self) {
            if !self.drop_first(|i| i.kind == Kind::Reaction) {
                self.reactions_dropped += 1;
                return;
            }
        }
        self.put(item);
    }

    pub(super) fn push_event(&mut self, item: Item) {
        let name = session(item.frame.frame()).unwrap_or_default().to_owned();
        if self.seats.iter().any(|s| s.session.as_str() == name && s.lag != Lag::None) {
            return self.settle(&item);
        }
        while self.bytes + item.cost > self.budget.bytes_max {
            self.over_since.get_or_insert(item.at);
            if self.drop_first(|i| i.kind == Kind::Reaction) {
                continue;
            }
            let own = self.backlog(&name) + item.cost;
            let victim = self
                .seats
                .iter()
                .map(|s| (self.backlog(s.session.as_str()), s.session.clone()))
                .max_by_key(|(b, _)| *b);
            match victim {
                Some((bytes, victim)) if bytes > own && victim.as_str() != name => self.drop_backlog(victim.as_str()),
                _ => {
                    self.drop_backlog(&name);
                    return self.settle(&item);
                }
            }
        }
        self.put(item);
    }

    /// A snapshot of any size is taken if half of the queue is free; else it will be asked for again.
    pub(super) fn push_snapshot(&mut self, item: Item) {
        let name = session(item.frame.frame()).unwrap_or_default().to_owned();
        while self.bytes + item.cost > self.budget.bytes_max && self.drop_first(|i| i.kind == Kind::Reaction) {}
        if self.bytes > self.budget.bytes_max / 2 && self.bytes + item.cost > self.budget.bytes_max {
            self.over_since.get_or_insert(item.at);
            return self.drop_backlog(&name);
        }
        if let Some(seat) = self.seats.iter_mut().find(|s| s.session.as_str() == name) {
            seat.lag = Lag::None;
        }
        self.put(item);
    }

    fn drop_first(&mut self, which: impl Fn(&Item) -> bool) -> bool {
        let Some(item) = self.items.iter().position(which).and_then(|at| self.items.remove(at)) else { return false };
        self.forget(&item);
        self.reactions_dropped += 1;
        true
    }

    fn backlog(&self, name: &str) -> usize {
        self.items.iter().filter(|i| i.belongs(name)).map(|i| i.cost).sum()
    }

    /// Drops a session's events and snapshots; those that name the client's ops become acks in their place.
    fn drop_backlog(&mut self, name: &str) {
        self.backlogs_dropped += 1;
        for item in std::mem::take(&mut self.items) {
            if item.belongs(name) {
                self.forget(&item);
                self.settle(&item);
            } else {
                self.items.push_back(item);
            }
        }
        if let Some(seat) = self.seats.iter_mut().find(|s| s.session.as_str() == name) {
            seat.lag = Lag::Dropped;
        }
    }

    fn settle(&mut self, item: &Item) {
        if let F::Event(e) = item.frame.frame()
            && let Some(op) = &e.op
        {
            let ack = Ack { session: e.session.clone(), op: Some(op.clone()), at: e.at, dup: false, held_us: 0 };
            let frame = Outgoing::new(F::Ack(ack));
            let cost = frame.websocket(self.form).len() + ITEM_OVERHEAD_BYTES;
            self.put(Item { frame, kind: Kind::Control, at: item.at, cost });
        }
    }
}

fn reaction_key(f: &F) -> Option<(&str, &str, &str)> {
    match f {
        F::Reaction(r) => Some((&r.session, &r.class, &r.actor)),
        _ => None,
    }
}
