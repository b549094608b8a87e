//! What waits for one client, and what gives way when it is too much (design 4.5). Pure: no lock, no clock, no socket.
//!
//! Over `queue_bytes_max`, in this order: reactions go, oldest first; then the largest backlog of one session's events
//! goes as a whole, and its session is asked for one snapshot once half of the queue is free; still over after
//! `slow_timeout`: the connection goes. Acks, nacks, receipts and everything else that is not an event, snapshot or
//! reaction are never dropped, and a dropped event that named the client's own op becomes its ack (4.3, rule 6).

mod overflow;

use std::{collections::VecDeque, time::Duration};

use holdfast_core::{
    id::{Lane, SessionId},
    proto::server_frame::F,
    time::{Mono, Now},
};

use crate::transport::{Form, outgoing::Outgoing};

/// An emptied queue with room for more than this is given back: idle connections hold nothing.
const KEPT_ITEMS_MAX: usize = 4;
/// Bytes of one item beside its frame, counted into the budget so that tiny frames are bounded too.
const ITEM_OVERHEAD_BYTES: usize = 64;

/// Budgets of one queue.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// All of it, in bytes.
    pub bytes_max: usize,
    /// Reactions in it, in bytes.
    pub reaction_bytes_max: usize,
    /// Oldest reaction that is written.
    pub reaction_ttl: Duration,
    /// Over budget for this long: the client is too slow.
    pub slow_timeout: Duration,
    /// Sessions of one connection.
    pub sessions_max: usize,
}

/// The queue of one client and what it knows of the client's sessions.
#[derive(Debug)]
pub struct Queue {
    form: Form,
    budget: Budget,
    items: VecDeque<Item>,
    bytes: usize,
    reaction_bytes: usize,
    seats: Vec<Seat>,
    over_since: Option<Mono>,
    /// Reactions dropped since the last look.
    pub reactions_dropped: u64,
    /// Backlogs dropped since the last look.
    pub backlogs_dropped: u64,
}

#[derive(Debug)]
struct Item {
    frame: Outgoing,
    kind: Kind,
    at: Mono,
    cost: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Control,
    Event,
    Snapshot,
    Reaction,
}

/// One attached session.
#[derive(Debug)]
struct Seat {
    session: SessionId,
    n: u32,
    /// The attach's lane, if it is not the hello's.
    lane: Option<Lane>,
    /// Highest epoch told to the client.
    epoch: u64,
    lag: Lag,
}

/// Whether a session's backlog was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lag {
    None,
    Dropped,
    Asked,
}

impl Queue {
    /// An empty queue.
    #[must_use]
    pub fn new(form: Form, budget: Budget) -> Self {
        let (items, seats) = (VecDeque::new(), Vec::new());
        Self {
            form,
            budget,
            items,
            bytes: 0,
            reaction_bytes: 0,
            seats,
            over_since: None,
            reactions_dropped: 0,
            backlogs_dropped: 0,
        }
    }

    /// Bytes waiting.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sessions attached or attaching.
    pub fn sessions(&self) -> impl Iterator<Item = &SessionId> {
        self.seats.iter().map(|s| &s.session)
    }

    /// Notes an attach; `false` = too many sessions.
    pub fn enter(&mut self, session: &SessionId, n: u32, lane: Option<Lane>) -> bool {
        if let Some(seat) = self.seats.iter_mut().find(|s| s.session == *session) {
            (seat.n, seat.lane) = (n, lane);
            return true;
        }
        let room = self.seats.len() < self.budget.sessions_max;
        if room {
            self.seats.push(Seat { session: session.clone(), n, lane, epoch: 0, lag: Lag::None });
        }
        room
    }

    /// Notes a detach.
    pub fn leave(&mut self, session: &str) {
        self.seats.retain(|s| s.session.as_str() != session);
        if self.seats.is_empty() {
            self.seats = Vec::new();
        }
    }

    /// The lane of the attachment to `session`, if it is not the hello's.
    #[must_use]
    pub fn lane(&self, session: &str) -> Option<Lane> {
        self.seats.iter().find(|s| s.session.as_str() == session).and_then(|s| s.lane)
    }

    /// Queues `frame`, or what the rules above make of it.
    pub fn push(&mut self, now: Mono, frame: Outgoing) {
        let frame = self.named(frame);
        let kind = kind(frame.frame());
        let cost = frame.websocket(self.form).len() + ITEM_OVERHEAD_BYTES;
        self.observe(frame.frame());
        let item = Item { frame, kind, at: now, cost };
        match kind {
            Kind::Control => self.put(item),
            Kind::Reaction => self.push_reaction(item),
            Kind::Event => self.push_event(item),
            Kind::Snapshot => self.push_snapshot(item),
        }
    }

    /// The next frame to write and when it was queued; reactions that went stale or late while they waited are left out.
    pub fn pop(&mut self, now: Now) -> Option<(Outgoing, Mono)> {
        while let Some(item) = self.items.pop_front() {
            self.forget(&item);
            if self.items.is_empty() && self.items.capacity() > KEPT_ITEMS_MAX {
                self.items = VecDeque::new();
            }
            if item.kind == Kind::Reaction && !self.timely(&item, now) {
                self.reactions_dropped += 1;
                continue;
            }
            return Some((item.frame, item.at));
        }
        None
    }

    /// Sessions to ask for a snapshot now: their backlog was dropped and half of the queue is free.
    pub fn take_slow(&mut self) -> Vec<SessionId> {
        if self.over_since.is_none() || self.bytes > self.budget.bytes_max / 2 {
            return Vec::new();
        }
        self.over_since = None;
        let lagging = self.seats.iter_mut().filter(|s| s.lag == Lag::Dropped);
        lagging
            .map(|s| {
                s.lag = Lag::Asked;
                s.session.clone()
            })
            .collect()
    }

    /// When the client counts as too slow, unless it takes something before.
    #[must_use]
    pub fn slow_at(&self) -> Option<Mono> {
        self.over_since.map(|since| {
            if self.bytes > 2 * self.budget.bytes_max { since } else { since.after(self.budget.slow_timeout) }
        })
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.items = VecDeque::new();
        (self.bytes, self.reaction_bytes, self.over_since) = (0, 0, None);
    }

    /// Names the lane of ops of an attachment whose lane is not the hello's: to this client they are strings.
    fn named(&self, frame: Outgoing) -> Outgoing {
        let Some(lane) = session(frame.frame()).and_then(|s| self.lane(s)) else { return frame };
        let mut f = frame.frame().clone();
        let op = match &mut f {
            F::Event(f) => f.op.as_mut(),
            F::Ack(f) => f.op.as_mut(),
            F::Nack(f) => f.op.as_mut(),
            F::Receipt(f) => f.op.as_mut(),
            _ => None,
        };
        match op {
            Some(op) if op.lane.is_empty() => op.lane = lane.as_bytes().to_vec().into(),
            _ => return frame,
        }
        Outgoing::with_stamp(f, frame.stamp())
    }

    fn observe(&mut self, f: &F) {
        let Some(name) = session(f) else { return };
        let Some(seat) = self.seats.iter_mut().find(|s| s.session.as_str() == name) else { return };
        let epoch = match f {
            F::Attached(f) => {
                seat.lag = Lag::None;
                f.head.as_ref().map_or(0, |p| p.epoch)
            }
            F::Event(f) => f.at.as_ref().map_or(0, |p| p.epoch),
            F::Snapshot(f) => f.at.as_ref().map_or(0, |p| p.epoch),
            F::Status(f) => f.epoch,
            F::Detached(f) => {
                if f.n == seat.n || f.n == 0 {
                    self.leave(name);
                }
                return;
            }
            _ => 0,
        };
        seat.epoch = seat.epoch.max(epoch);
    }

    fn put(&mut self, item: Item) {
        self.bytes += item.cost;
        if item.kind == Kind::Reaction {
            self.reaction_bytes += item.cost;
        }
        if self.bytes > 2 * self.budget.bytes_max {
            // Only what is never dropped can get here.
            self.over_since.get_or_insert(item.at);
        }
        self.items.push_back(item);
    }

    fn forget(&mut self, item: &Item) {
        self.bytes -= item.cost;
        if item.kind == Kind::Reaction {
            self.reaction_bytes -= item.cost;
        }
    }

    fn timely(&self, item: &Item, now: Now) -> bool {
        let F::Reaction(r) = item.frame.frame() else { return true };
        let known = self.seats.iter().find(|s| s.session.as_str() == r.session).map_or(0, |s| s.epoch);
        let waited = now.mono.since(item.at);
        let since_emitted = if r.emitted_at_us > 0 {
            Duration::from_micros(now.wall.0.saturating_sub(r.emitted_at_us))
        } else {
            Duration::ZERO
        };
        r.epoch >= known && waited.max(since_emitted) <= self.budget.reaction_ttl
    }
}

impl Item {
    fn belongs(&self, name: &str) -> bool {
        matches!(self.kind, Kind::Event | Kind::Snapshot) && session(self.frame.frame()) == Some(name)
    }
}

fn kind(f: &F) -> Kind {
    match f {
        F::Event(_) => Kind::Event,
        F::Snapshot(_) => Kind::Snapshot,
        F::Reaction(_) => Kind::Reaction,
        _ => Kind::Control,
    }
}

/// The session a frame is about.
#[must_use]
pub fn session(f: &F) -> Option<&str> {
    Some(match f {
        F::Attached(f) => &f.session,
        F::Detached(f) => &f.session,
        F::Event(f) => &f.session,
        F::Snapshot(f) => &f.session,
        F::Ack(f) => &f.session,
        F::Nack(f) => &f.session,
        F::Receipt(f) => &f.session,
        F::Reaction(f) => &f.session,
        F::Status(f) => &f.session,
        F::Welcome(_) | F::Ping(_) | F::Pong(_) | F::Goaway(_) | F::Error(_) => return None,
    })
}

#[cfg(test)]
mod tests;
