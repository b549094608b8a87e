//! Who leaves a draining gateway, and when (design 10): one client per slot, slots evenly spaced at the drain's rate.
//!
//! ```text
//! waiting ──its turn, shortly before its slot──▶ told (goaway) ──slot + window──▶ closed (1012)
//!    └──── said no hello, or the drain is hurried: closed at once, with a slot of its own ────┘
//! ```
//! Clients are told shortly before their slots rather than all at the start, because who is on the move changes with
//! every move: those go last, and what counts is who is on the move then. Whoever comes later queues behind the others.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use crate::{id::ConnId, time::Mono};

/// Told this long before its slot: enough for the goaway to arrive, too short for the board to change much.
pub const AHEAD: Duration = Duration::from_secs(1);
/// Closed this long after its slot, if it is still there (design 10); `goaway.window_ms`.
pub const WINDOW: Duration = Duration::from_secs(4);
/// How far behind the first of those on the move is looked for one that has moved: bounds a turn, not the outcome.
const LOOK_BEHIND: usize = 16;
/// Slots are whole microseconds.
const RATE_MAX: u32 = 1_000_000;

/// What is to be done with a client. `slot`: when it is expected at another gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send it a goaway.
    Tell { conn: ConnId, slot: Mono },
    /// Close it with 1012.
    Close { conn: ConnId, slot: Mono },
}

/// How far a drain is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Clients that were there, or came, since it began.
    pub total: u64,
    /// Clients that were sent a goaway.
    pub told: u64,
    /// Clients that are gone, whatever the way.
    pub gone: u64,
    /// Clients that did not go at their slot, or were hurried, and were closed.
    pub forced: u64,
}

/// Where one client stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    /// Told; its slot.
    Told(Mono),
    Closed,
}

/// The schedule of one drain. About 100 bytes per client: 2 MB for 20,000.
#[derive(Debug)]
pub struct Drain {
    gap: Duration,
    /// The next free slot, and the newest that was given.
    next: Mono,
    last: Mono,
    clients: BTreeMap<ConnId, Stage>,
    calm: VecDeque<ConnId>,
    /// On the move when their turn came.
    moving: VecDeque<ConnId>,
    /// Told, by when they are closed.
    windows: BTreeSet<(Mono, ConnId)>,
    waiting: usize,
    hurried: bool,
    progress: Progress,
}

impl Drain {
    /// Nobody yet; the first slot is at `now`.
    #[must_use]
    pub fn new(now: Mono, rate_per_s: u32) -> Self {
        Self {
            gap: gap(rate_per_s),
            next: now,
            last: now,
            clients: BTreeMap::new(),
            calm: VecDeque::new(),
            moving: VecDeque::new(),
            windows: BTreeSet::new(),
            waiting: 0,
            hurried: false,
            progress: Progress::default(),
        }
    }

    /// Another rate, for the slots not given yet.
    pub fn set_rate(&mut self, rate_per_s: u32) {
        self.gap = gap(rate_per_s);
    }

    /// A client that said hello; again: no effect.
    pub fn handle_client(&mut self, conn: ConnId) {
        if self.enter(conn, Stage::Waiting) {
            self.waiting += 1;
            self.calm.push_back(conn);
        }
    }

    /// A connection that has said nothing: there is nobody to be told, so it is closed.
    pub fn handle_silent(&mut self, now: Mono, conn: ConnId, out: &mut Vec<Command>) {
        if self.enter(conn, Stage::Closed) {
            let slot = self.slot(now);
            out.push(Command::Close { conn, slot });
        }
    }

    /// A client is gone.
    pub fn handle_gone(&mut self, conn: ConnId) {
        match self.clients.remove(&conn) {
            Some(Stage::Told(slot)) => drop(self.windows.remove(&(slot.after(WINDOW), conn))),
            Some(Stage::Waiting) => self.waiting -= 1,
            Some(Stage::Closed) => {}
            None => return,
        }
        self.progress.gone += 1;
    }

    /// Everybody goes now, and whoever still comes.
    pub fn handle_hurry(&mut self) {
        self.hurried = true;
    }

    /// What is due. `on_the_move` says whether a deadline of the client's participant runs.
    pub fn poll(&mut self, now: Mono, on_the_move: &dyn Fn(ConnId) -> bool, out: &mut Vec<Command>) {
        if self.hurried {
            return self.close_all(now, out);
        }
        while self.next <= now.after(AHEAD)
            && let Some(conn) = self.pop(on_the_move)
        {
            let slot = self.slot(now);
            self.clients.insert(conn, Stage::Told(slot));
            self.windows.insert((slot.after(WINDOW), conn));
            self.progress.told += 1;
            out.push(Command::Tell { conn, slot });
        }
        while let Some((at, conn)) = self.windows.first().copied().filter(|(at, _)| *at <= now) {
            self.windows.remove(&(at, conn));
            self.clients.insert(conn, Stage::Closed);
            self.progress.forced += 1;
            out.push(Command::Close { conn, slot: now });
        }
    }

    /// When to poll at the latest; `None` = only after an input.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        let tell = (self.waiting > 0).then(|| Mono(self.next.0.saturating_sub(AHEAD.as_micros() as u64)));
        let force = self.windows.first().map(|(at, _)| *at);
        [tell, force].into_iter().flatten().min()
    }

    /// The last slot that was given, or that the last of those now waiting will get.
    #[must_use]
    pub fn last_slot(&self, now: Mono) -> Mono {
        match u32::try_from(self.waiting).unwrap_or(u32::MAX).checked_sub(1) {
            None => self.last,
            Some(others) => self.next.max(now).after(self.gap.saturating_mul(others)),
        }
    }

    /// Nobody is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Clients that are still here.
    pub fn clients(&self) -> impl Iterator<Item = ConnId> {
        self.clients.keys().copied()
    }

    fn enter(&mut self, conn: ConnId, stage: Stage) -> bool {
        let new = !self.clients.contains_key(&conn);
        if new {
            self.clients.insert(conn, stage);
            self.progress.total += 1;
        }
        new
    }

    /// Takes the next slot. Time that passed without a client is not made up for by a burst.
    fn slot(&mut self, now: Mono) -> Mono {
        let slot = self.next.max(now);
        (self.next, self.last) = (slot.after(self.gap), slot);
        slot
    }

    /// Whose turn it is: in order of arrival, but those on the move after all others, and among them first whoever has
    /// moved since.
    fn pop(&mut self, on_the_move: &dyn Fn(ConnId) -> bool) -> Option<ConnId> {
        while let Some(conn) = self.calm.pop_front() {
            match self.clients.get(&conn) {
                Some(Stage::Waiting) if on_the_move(conn) => self.moving.push_back(conn),
                Some(Stage::Waiting) => return self.taken(conn),
                _ => {}
            }
        }
        let waits = |c: &ConnId| self.clients.get(c) == Some(&Stage::Waiting);
        while self.moving.front().is_some_and(|c| !waits(c)) {
            self.moving.pop_front();
        }
        let moved = self.moving.iter().take(LOOK_BEHIND).position(|c| waits(c) && !on_the_move(*c)).unwrap_or(0);
        let conn = self.moving.remove(moved)?;
        self.taken(conn)
    }

    fn taken(&mut self, conn: ConnId) -> Option<ConnId> {
        self.waiting -= 1;
        Some(conn)
    }

    fn close_all(&mut self, now: Mono, out: &mut Vec<Command>) {
        let left: Vec<_> = self.clients.iter().filter(|(_, s)| **s != Stage::Closed).map(|(c, s)| (*c, *s)).collect();
        for (conn, stage) in left {
            let slot = match stage {
                Stage::Told(slot) => slot.max(now),
                _ => self.slot(now),
            };
            self.clients.insert(conn, Stage::Closed);
            self.progress.forced += 1;
            out.push(Command::Close { conn, slot });
        }
        self.windows.clear();
        self.calm.clear();
        self.moving.clear();
        self.waiting = 0;
    }
}

fn gap(rate_per_s: u32) -> Duration {
    Duration::from_micros(u64::from(RATE_MAX / rate_per_s.clamp(1, RATE_MAX)))
}

#[cfg(test)]
mod tests;
