//! Doing what a session decided, in order, before its lock is let go.

use std::sync::Arc;

use holdfast_core::{
    id::LinkId,
    proto::{gateway_msg, server_frame::F},
    session::{Action, Observation},
    time::{Mono, Now, Wall},
};

use super::{
    Held, Sessions,
    entry::{Entry, State},
};
use crate::{
    transport::outgoing::Outgoing,
    upstream::{batch::Since, link::LinkTx},
};

/// Rounds of answers to a session's own actions: a wanted link that is there already is one round.
const ROUNDS_MAX: usize = 4;

impl Sessions {
    /// Does the actions, and those that follow at once from a link that is already up.
    pub(super) fn execute(
        &self,
        (entry, state): (&Arc<Entry>, &mut State),
        (now, read_at): (Now, Option<Mono>),
        mut out: Vec<Action>,
    ) -> Held {
        let mut held = Held::default();
        for _ in 0..ROUNDS_MAX {
            if out.is_empty() {
                break;
            }
            let mut ready: Vec<LinkTx> = Vec::new();
            let links = self.links.load();
            let mut actions = out.drain(..).peekable();
            while let Some(action) = actions.next() {
                match action {
                    Action::Send { link, msg } => {
                        let since = since(&msg, actions.peek(), now);
                        if let Some(link) = links.get(&link) {
                            link.send_since(msg, since);
                        }
                    }
                    Action::Connect { boot, node, addr } => ready.extend(self.pool.connect(boot, &node, &addr)),
                    Action::Held { ops, bytes } => {
                        held.ops += i64::from(ops);
                        held.bytes += bytes;
                        self.budget.change(entry, Held { ops: ops.into(), bytes, ..Held::default() });
                    }
                    other => {
                        held.stale |= matches!(other, Action::Observe(Observation::StaleDropped { .. }));
                        self.perform(entry, other, read_at);
                    }
                }
            }
            drop(actions);
            for link in ready.iter().filter(|l| self.is_up(l.id())) {
                state.session.handle_link_up(now, link.boot(), link.id(), &mut out);
            }
        }
        held
    }

    fn perform(&self, entry: &Arc<Entry>, action: Action, read_at: Option<Mono>) {
        match action {
            Action::Deliver { conn, frame, stamp } => self.conns.deliver(conn, &outgoing(frame, stamp, read_at)),
            Action::Fanout { conns, frame, stamp } => {
                let frame = outgoing(frame, stamp, read_at);
                conns.iter().for_each(|conn| self.conns.deliver(*conn, &frame));
            }
            Action::Resolve => self.resolver.want(entry),
            Action::Bound { boot } => self.index.bind(boot, entry),
            Action::Unbound { boot } => self.index.unbind(boot, &entry.id),
            Action::Kick { conn, close } => {
                self.conns.left(conn, &entry.id);
                self.conns.close(conn, close, reason(close));
            }
            Action::Observe(observation) => self.observe(entry, &observation),
            // Done by the caller.
            Action::Send { .. } | Action::Connect { .. } | Action::Held { .. } => {}
        }
    }

    fn observe(&self, entry: &Entry, observation: &Observation) {
        self.metrics.observe(observation);
        match observation {
            Observation::Rebound { epoch, held } => tracing::debug!(session = %entry.id, epoch, held, "rebound"),
            Observation::HoldExpired => tracing::warn!(session = %entry.id, "a held op reached its TTL"),
            _ => {}
        }
    }

    /// Whether the sessions have been told of this link and not yet of its end.
    pub(super) fn is_up(&self, link: LinkId) -> bool {
        self.links.load().contains_key(&link)
    }
}

/// Only durable words are timed on their way down: reactions may be dropped on it.
fn outgoing(frame: F, stamp: bool, read_at: Option<Mono>) -> Outgoing {
    let timed = matches!(frame, F::Event(_) | F::Ack(_) | F::Nack(_));
    Outgoing::relayed(frame, stamp, read_at.filter(|_| timed))
}

/// Since when an op waits for the link: the session says so right after sending it.
fn since(msg: &gateway_msg::M, next: Option<&Action>, now: Now) -> Option<Since> {
    let (gateway_msg::M::Op(_), Some(Action::Observe(observation))) = (msg, next) else { return None };
    match observation {
        Observation::Forwarded { queued_us } => Some(Since::Arrival(Wall(now.wall.0.saturating_sub(*queued_us)))),
        Observation::Resent { moved_at } => moved_at.map(Since::Move),
        _ => None,
    }
}

fn reason(close: u16) -> &'static str {
    match close {
        4002 => "not allowed",
        4006 => "a newer connection of this lane took over",
        4101 => "too many requests",
        4102 => "too slow",
        _ => "",
    }
}
