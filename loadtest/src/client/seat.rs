//! One client's part in one session: ids, order, what is pending, what is heard (design 4.3, 4.4). No I/O, no clock.
//!
//! ```text
//! Detached --attach--> Attaching --attached--> Live --detached / TRY_AFTER_ATTACH--> Waiting --timer--> Attaching
//!     ^------------------- the connection ended: every pending op is to be sent again ------------------'
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use super::traffic::Plan;
use super::wire::{self, Frame};
use crate::journal::{Line, What};
use crate::verify::is_final;

/// Pause before a refused op or attach is tried again, when the server names none; doubled with each attempt of an op.
const RETRY_US: u64 = 50_000;
const RETRY_MAX_US: u64 = 1_600_000;
/// A resync that was not answered is asked again after this.
const RESYNC_US: u64 = 2_000_000;
/// Ops one lane may have open (design 4.5).
const INFLIGHT: usize = 32;
/// Settled ops a seat remembers, in case the record goes back: as many as a record's tail has events (design 7.2).
const SETTLED: usize = 512;

/// Who writes the journal: one per connection.
pub struct Scribe {
    pub client: Arc<str>,
    /// Lane in hex.
    pub lane: Arc<str>,
    pub lines: Vec<Line>,
}

/// Due times of a seat: the k-th op at `first_us + k * every_us`, none at or after `until_us`.
#[derive(Clone, Copy, Default)]
pub struct Schedule {
    pub first_us: u64,
    pub every_us: u64,
    pub until_us: u64,
}

#[derive(PartialEq, Clone, Copy)]
enum Link {
    Detached,
    Attaching,
    Live,
    Waiting(u64),
    /// Refused for good.
    Dead,
}

struct Pending {
    seq: u64,
    base: u64,
    attempt: u64,
    data: String,
    receipt: Option<Arc<str>>,
    /// `None`: sent, unanswered. Else when to send it (again).
    due_us: Option<u64>,
}

pub struct Seat {
    pub session: Arc<str>,
    pub plan: Plan,
    pub schedule: Schedule,
    made: u64,
    link: Link,
    n: u64,
    pub epoch: u64,
    ver: u64,
    next_seq: u64,
    pending: VecDeque<Pending>,
    /// (version, seq) of own ops in the record, as far as known.
    settled: VecDeque<(u64, u64)>,
    resync_until_us: u64,
}

impl Seat {
    pub fn new(session: Arc<str>, plan: Plan) -> Self {
        Seat {
            session,
            plan,
            schedule: Schedule::default(),
            made: 0,
            link: Link::Detached,
            n: 0,
            epoch: 0,
            ver: 0,
            next_seq: 1,
            pending: VecDeque::new(),
            settled: VecDeque::new(),
            resync_until_us: 0,
        }
    }

    pub fn is_live(&self) -> bool {
        self.link == Link::Live
    }

    pub fn is_settled(&self) -> bool {
        self.pending.is_empty()
    }

    /// A new connection, or a new try on this one.
    pub fn attach(&mut self, out: &mut Vec<String>) {
        self.n += 1;
        self.link = Link::Attaching;
        out.push(wire::attach(&self.session, self.n, (self.epoch, self.ver)));
    }

    /// The next op is due now, the later ones as much earlier.
    pub fn hasten(&mut self, now_us: u64) {
        let next = self.made * self.schedule.every_us;
        self.schedule.first_us = self.schedule.first_us.min(now_us.saturating_sub(next));
    }

    pub fn handle_connection_lost(&mut self) {
        if self.link != Link::Dead {
            self.link = Link::Detached;
        }
        self.pending.iter_mut().for_each(|p| p.due_us = Some(0));
    }

    /// Sends what is due. Returns when to call again, `u64::MAX` = only after a frame.
    pub fn poll(&mut self, now_us: u64, scribe: &mut Scribe, out: &mut Vec<String>) -> u64 {
        match self.link {
            Link::Waiting(until) if until <= now_us => {
                self.attach(out);
                return u64::MAX;
            }
            Link::Waiting(until) => return until,
            Link::Live => {}
            _ => return u64::MAX,
        }
        if let Some(due) = self.resend(now_us, scribe, out) {
            return due;
        }
        loop {
            let due = self.schedule.first_us + self.made * self.schedule.every_us;
            if self.schedule.every_us == 0 || due >= self.schedule.until_us {
                return u64::MAX;
            }
            if due > now_us {
                return due;
            }
            let may = if self.plan.pipelines() { self.pending.len() < INFLIGHT } else { self.pending.is_empty() };
            let Some(data) = may.then(|| self.plan.next()).flatten() else { return u64::MAX };
            let pending =
                Pending { seq: self.next_seq, base: self.ver, attempt: 0, data, receipt: None, due_us: Some(due) };
            self.next_seq += 1;
            self.made += 1;
            self.pending.push_back(pending);
            self.send(self.pending.len() - 1, now_us, (due, scribe, out));
        }
    }

    /// Refused ops again, in seq order, none before its time. `Some(when)`: one still waits, so newer ops wait too.
    fn resend(&mut self, now_us: u64, scribe: &mut Scribe, out: &mut Vec<String>) -> Option<u64> {
        for i in 0..self.pending.len() {
            match self.pending[i].due_us {
                Some(due) if due > now_us => return Some(due),
                Some(_) => self.send(i, now_us, (0, scribe, out)),
                None => {}
            }
        }
        None
    }

    fn send(&mut self, i: usize, now_us: u64, to: (u64, &mut Scribe, &mut Vec<String>)) {
        let (intended_us, scribe, out) = to;
        let settled = self.pending.front().map_or(self.next_seq, |p| p.seq);
        let pending = &mut self.pending[i];
        pending.attempt += 1;
        pending.due_us = None;
        let head = wire::OpHead {
            session: &self.session,
            op: pending.seq,
            settled,
            base: pending.base,
            attempt: pending.attempt,
            receipt: if pending.attempt > 1 { pending.receipt.as_deref().unwrap_or("") } else { "" },
        };
        out.push(wire::op(&head, &pending.data));
        let (seq, attempt) = (pending.seq, pending.attempt);
        let line = self.note(now_us, What::Sent, scribe);
        (line.op, line.attempt, line.intended_us) = (seq, attempt, intended_us);
    }

    fn note<'a>(&self, now_us: u64, what: What, scribe: &'a mut Scribe) -> &'a mut Line {
        let mut line = Line::new(now_us, &scribe.client, what);
        (line.session, line.lane) = (self.session.clone(), scribe.lane.clone());
        let at = scribe.lines.len();
        scribe.lines.push(line);
        &mut scribe.lines[at]
    }

    fn note_frame<'a>(&self, now_us: u64, what: What, frame: &Frame<'_>, scribe: &'a mut Scribe) -> &'a mut Line {
        let line = self.note(now_us, what, scribe);
        (line.epoch, line.ver, line.to, line.op) = (frame.epoch, frame.ver, frame.to, frame.own_op());
        line
    }

    /// A frame that names this session.
    pub fn handle_frame(&mut self, now_us: u64, frame: &Frame<'_>, scribe: &mut Scribe, out: &mut Vec<String>) {
        match &*frame.t {
            "attached" if frame.n == self.n => self.attached(now_us, frame, scribe),
            "detached" if frame.n == self.n || frame.n == 0 => self.detached(now_us, frame, scribe),
            _ if self.link != Link::Live => {}
            "event" => self.event(now_us, frame, scribe, out),
            "snapshot" => self.snapshot(now_us, frame, scribe),
            "ack" => {
                self.note_frame(now_us, What::Ack, frame, scribe);
                self.recorded(frame.own_op(), frame.ver);
            }
            "nack" => self.nack(now_us, frame, scribe),
            "receipt" => self.receipt(now_us, frame, scribe),
            "status" => {
                self.note_frame(now_us, What::Status, frame, scribe).code = Arc::from(&*frame.state);
                self.epoch = self.epoch.max(frame.epoch);
            }
            "reaction" => {
                let what = if frame.epoch < self.epoch { What::Stale } else { What::Reaction };
                let sent_us =
                    frame.data.and_then(|d| serde_json::from_str::<SentAt>(d.get()).ok()).map_or(0, |d| d.at_us);
                self.note_frame(now_us, what, frame, scribe).intended_us = sent_us;
            }
            _ => {}
        }
    }

    fn attached(&mut self, now_us: u64, frame: &Frame<'_>, scribe: &mut Scribe) {
        self.link = Link::Live;
        self.resync_until_us = 0;
        self.epoch = self.epoch.max(frame.epoch);
        self.note_frame(now_us, What::Attached, frame, scribe);
        self.lane_seq(now_us, frame, scribe);
    }

    /// Pending ops at or below `lane_seq` are committed, but for the rejected ones.
    fn lane_seq(&mut self, now_us: u64, frame: &Frame<'_>, scribe: &mut Scribe) {
        while let Some(seq) = self.pending.front().map(|p| p.seq).filter(|seq| *seq <= frame.lane_seq) {
            let rejected = frame.rejected.iter().find(|r| r.op == seq);
            let line = self.note(now_us, What::LaneSeq, scribe);
            line.op = seq;
            line.code = rejected.map_or_else(|| Arc::from(""), |r| Arc::from(&*r.code));
            if rejected.is_none() {
                // at this version or before it
                self.recorded(seq, frame.ver);
            }
            self.settle(seq);
        }
    }

    fn detached(&mut self, now_us: u64, frame: &Frame<'_>, scribe: &mut Scribe) {
        let code = frame.code();
        self.note(now_us, What::Detached, scribe).code = Arc::from(code);
        let pause = (frame.retry_after_ms * 1_000).max(2 * RETRY_US);
        let dead = is_final(code) && code != "NOT_ATTACHED";
        self.link = if dead { Link::Dead } else { Link::Waiting(now_us + pause) };
        self.pending.iter_mut().for_each(|p| p.due_us = Some(0));
    }

    fn event(&mut self, now_us: u64, frame: &Frame<'_>, scribe: &mut Scribe, out: &mut Vec<String>) {
        if frame.epoch < self.epoch {
            self.note_frame(now_us, What::Stale, frame, scribe).code = Arc::from("event");
            return;
        }
        self.epoch = frame.epoch;
        let own = frame.own_op();
        self.note_frame(now_us, if own > 0 { What::Echo } else { What::Event }, frame, scribe);
        self.recorded(own, frame.ver);
        if frame.ver == self.ver + 1 {
            self.ver = frame.ver.max(frame.to);
            if let Some(data) = frame.data {
                self.plan.handle_event(data.get());
            }
        } else if frame.ver > self.ver && self.resync_until_us <= now_us {
            self.resync_until_us = now_us + RESYNC_US;
            self.note(now_us, What::Resync, scribe);
            out.push(wire::resync(&self.session, (self.epoch, self.ver)));
        }
    }

    fn snapshot(&mut self, now_us: u64, frame: &Frame<'_>, scribe: &mut Scribe) {
        self.note_frame(now_us, What::Snapshot, frame, scribe).code = Arc::from(&*frame.why);
        (self.epoch, self.ver, self.resync_until_us) = (frame.epoch, frame.ver, 0);
        if frame.why == "diverged" {
            self.check(now_us, frame.ver, scribe);
        }
        if let Some(data) = frame.data {
            self.plan.handle_snapshot(data.get());
        }
        self.lane_seq(now_us, frame, scribe);
    }

    /// The record went back to `ver`: what was settled after it is for the app to check, and never sent again by itself.
    fn check(&mut self, now_us: u64, ver: u64, scribe: &mut Scribe) {
        for (at, seq) in std::mem::take(&mut self.settled) {
            if at > ver {
                let line = self.note(now_us, What::Check, scribe);
                (line.op, line.ver) = (seq, at);
            } else {
                self.settled.push_back((at, seq));
            }
        }
    }

    fn recorded(&mut self, seq: u64, ver: u64) {
        if seq > 0 && !self.settled.iter().rev().any(|(_, s)| *s == seq) {
            self.settled.push_back((ver, seq));
            if self.settled.len() > SETTLED {
                self.settled.pop_front();
            }
        }
        self.settle(seq);
    }

    fn settle(&mut self, seq: u64) {
        self.pending.retain(|p| p.seq != seq);
    }

    fn nack(&mut self, now_us: u64, frame: &Frame<'_>, scribe: &mut Scribe) {
        let (seq, code) = (frame.own_op(), frame.code().to_owned());
        let line = self.note_frame(now_us, What::Nack, frame, scribe);
        (line.code, line.applied, line.attempt) = (Arc::from(&*code), Arc::from(&*frame.applied), frame.attempt);
        let Some(i) = self.pending.iter().position(|p| p.seq == seq) else { return };
        if is_final(&code) {
            // the gateway's own words count only for the newest copy; an owner's are for ever
            let gateways = matches!(&*code, "BAD_FRAME" | "TOO_LARGE");
            if !gateways || frame.attempt == self.pending[i].attempt {
                self.settle(seq);
            }
            return;
        }
        if code == "TRY_AFTER_ATTACH" && self.link == Link::Live {
            self.link = Link::Waiting(now_us + RETRY_US);
        }
        if !frame.receipt.is_empty() {
            self.pending[i].receipt = Some(Arc::from(&*frame.receipt));
        }
        let doubled = (RETRY_US << self.pending[i].attempt.clamp(1, 6).saturating_sub(1)).min(RETRY_MAX_US);
        self.pending[i].due_us = Some(now_us + (frame.retry_after_ms * 1_000).max(doubled));
    }

    fn receipt(&mut self, now_us: u64, frame: &Frame<'_>, scribe: &mut Scribe) {
        let seq = frame.own_op();
        let sealed: Arc<str> = Arc::from(&*frame.receipt);
        self.note_frame(now_us, What::Receipt, frame, scribe).code = sealed.clone();
        if let Some(p) = self.pending.iter_mut().find(|p| p.seq == seq) {
            p.receipt = Some(sealed);
        }
    }
}

#[derive(serde::Deserialize)]
struct SentAt {
    at_us: u64,
}

#[cfg(test)]
#[path = "seat_tests.rs"]
mod tests;
