//! Everything that happens because time passed.

use crate::{
    id::ConnId,
    proto::{Code, server_frame::status::State},
    session::{Action, Session, Store, attachment::Attachment},
    time::{Mono, Now},
};

/// Told to a client whose attach found no owner within the hold TTL, ms.
const NO_OWNER_RETRY_MS: u32 = 1000;

impl Session {
    /// When to call [`Session::handle_timeout`] next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        let waiting = self
            .atts
            .values()
            .filter(|a| !a.is_answered())
            .map(|a| a.since.after(if a.told_moving { self.limits.hold_ttl } else { self.limits.attach_answer }));
        let sick = matches!(self.store, Store::Down { .. }).then(|| {
            let oldest = self.hold.iter().find(|h| h.pending && self.atts.contains_key(&h.conn))?;
            Some(oldest.arrived.after(self.limits.store_down_hold))
        });
        [
            self.hold.oldest().map(|at| at.after(self.limits.hold_ttl)),
            sick.flatten(),
            self.retry_due(),
            self.moving_at.filter(|_| !self.is_live() && !self.atts.is_empty()),
            self.presence_at.filter(|_| self.is_open()),
            self.linger_until.filter(|_| self.hold.is_empty()),
            waiting.min(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Now, out: &mut Vec<Action>) {
        self.expire_held(now, out);
        self.answer_late(now, out);
        if self.retry_due().is_some_and(|at| at <= now.mono) {
            self.replay(now, out);
        }
        if !self.is_live() && self.moving_at.is_some_and(|at| at <= now.mono) {
            self.tell_moving(out);
        }
        if self.is_open() && self.presence_at.is_some_and(|at| at <= now.mono) {
            self.send_presence(out);
        }
        if self.hold.is_empty() && self.linger_until.is_some_and(|at| at <= now.mono) {
            self.linger_until = None;
            if self.atts.is_empty() {
                self.leave(out);
            }
        }
    }

    fn expire_held(&mut self, now: Now, out: &mut Vec<Action>) {
        let ttl = self.limits.hold_ttl;
        for (lane, seq) in self.hold.select(|h| h.arrived.after(ttl) <= now.mono) {
            self.expire(lane, seq, out);
        }
        if let Store::Down { retry_after_ms } = self.store {
            let wait = self.limits.store_down_hold;
            // whoever has left cannot try again: those ops wait for the store until their TTL (6.1)
            let due =
                self.hold.select(|h| h.pending && h.arrived.after(wait) <= now.mono && self.atts.contains_key(&h.conn));
            for (lane, seq) in due {
                self.refuse_for_store(lane, seq, retry_after_ms, out);
            }
        }
    }

    fn answer_late(&mut self, now: Now, out: &mut Vec<Action>) {
        let due = |a: &&Attachment, within: std::time::Duration| !a.is_answered() && a.since.after(within) <= now.mono;
        let pick = |s: &Self, within| -> Vec<ConnId> {
            s.atts.values().filter(|a| due(a, within)).map(Attachment::conn).collect()
        };
        for conn in pick(self, self.limits.hold_ttl) {
            self.refuse_attach(conn, Code::NoOwner, NO_OWNER_RETRY_MS, out);
            self.maybe_linger(now);
        }
        let late: Vec<_> = pick(self, self.limits.attach_answer);
        let mut resolve = false;
        for conn in late {
            if self.atts.get(&conn).is_some_and(|a| !a.told_moving) {
                self.status_to(conn, State::Moving, out);
                resolve = true;
            }
        }
        if resolve {
            out.push(Action::Resolve);
        }
    }
}
