//! What waits for the write in flight, and what becomes of it when there will be none.

use std::collections::BTreeMap;

use super::{App, Authority, Effect, authority::Phase, write::Batch};
use crate::{
    id::LinkId,
    proto::{
        Applied, Code, HeldOp,
        gateway_msg::{self, M, Origin},
        owner_msg::{self, health::Store},
    },
};
use prost::Message;

/// Messages that may wait in one session. A gateway holds at most 1,024 ops of a session; two that come back at once fit.
/// At 16 KiB of payload each it bounds the memory of one session at 32 MiB.
pub(super) const QUEUE_MAX: usize = 2_048;
/// Told with a refusal: the store is probed about this often.
const RETRY_AFTER_MS: u32 = 500;

/// A message that waits.
#[derive(Debug)]
pub(super) struct Queued {
    pub link: LinkId,
    pub msg: M,
    /// A write that held this op was issued, and may have landed.
    pub tried: bool,
}

/// The epoch a message was sent with, if an owner that is not must say so.
pub(super) fn epoch_of(msg: &M) -> Option<u64> {
    match msg {
        M::Op(m) => Some(m.epoch),
        M::Join(m) => Some(m.epoch),
        M::Attach(m) => Some(m.epoch),
        M::Pull(m) => Some(m.epoch),
        _ => None,
    }
}

impl<A: App> Authority<A> {
    /// Puts a failed batch's ops back where they were.
    pub(super) fn requeue(&mut self, batch: Batch, tried: bool) {
        for mut q in batch.ops.into_iter().rev() {
            q.tried |= tried;
            self.queue.push_front(q);
        }
    }

    /// Tells everybody that the store is down, and refuses what waits.
    pub(super) fn go_down(&mut self, out: &mut Vec<Effect>) {
        if !std::mem::replace(&mut self.down, true) {
            self.tell_health(out);
        }
        self.refuse_queue(out);
    }

    pub(super) fn recovered(&mut self, out: &mut Vec<Effect>) {
        if std::mem::take(&mut self.down) {
            self.tell_health(out);
        }
    }

    pub(super) fn health(&self) -> Store {
        match () {
            () if self.down => Store::Down,
            () if self.read_only() => Store::ReadOnly,
            () => Store::Ok,
        }
    }

    pub(super) fn tell_health(&self, out: &mut Vec<Effect>) {
        for link in self.links.keys() {
            self.send(*link, owner_msg::M::Health(self.health_msg()), out);
        }
    }

    pub(super) fn health_msg(&self) -> owner_msg::Health {
        let store = self.health();
        let retry_after_ms = if store == Store::Ok { 0 } else { RETRY_AFTER_MS };
        owner_msg::Health { store: store.into(), sessions: vec![self.session.to_string()], retry_after_ms }
    }

    pub(super) fn is_document(&self) -> bool {
        self.kind.split(':').next() == Some("document")
    }

    /// Documents cannot be repaired after a split: without a lease they take no ops (design 6.8).
    pub(super) fn read_only(&self) -> bool {
        !self.lease && self.is_document()
    }

    /// Whether ops have to be refused on arrival.
    pub(super) fn refuses(&self) -> bool {
        self.down || self.draining || self.read_only()
    }

    /// Answers the ops that wait, and while draining the rest too.
    pub(super) fn refuse_queue(&mut self, out: &mut Vec<Effect>) {
        for q in std::mem::take(&mut self.queue) {
            if matches!(q.msg, M::Op(_)) || self.draining {
                self.refuse(&q, out);
            } else {
                self.queue.push_back(q);
            }
        }
    }

    /// Says no to one message; `down`, draining or read-only is the reason.
    pub(super) fn refuse(&self, q: &Queued, out: &mut Vec<Effect>) {
        let M::Op(envelope) = &q.msg else {
            if let Some(epoch) = epoch_of(&q.msg) {
                self.not_owner(q.link, epoch, out);
            }
            return;
        };
        if envelope.epoch != self.epoch {
            return self.not_owner(q.link, envelope.epoch, out);
        }
        let code = if self.draining { Code::OwnerDraining } else { Code::StoreUnavailable };
        self.nack(q, code, out);
    }

    /// A retryable refusal. It says `applied NO` only of an op that cannot be in the record.
    pub(super) fn nack(&self, q: &Queued, code: Code, out: &mut Vec<Effect>) {
        let M::Op(envelope) = &q.msg else { return };
        let Ok(held) = HeldOp::decode(envelope.held.clone()) else { return };
        let first = envelope.attempt <= 1 && envelope.origin == i32::from(Origin::Live) && held.client_attempt <= 1;
        let applied = if first && !q.tried { Applied::No } else { Applied::Unknown };
        let retry_after_ms = if code == Code::OwnerDraining { 0 } else { RETRY_AFTER_MS };
        let nack = owner_msg::Nack {
            session: self.session.to_string(),
            epoch: self.epoch,
            op: held.op,
            code: code.into(),
            applied: applied.into(),
            retry_after_ms,
            ..Default::default()
        };
        self.send(q.link, owner_msg::M::Nack(nack), out);
    }

    /// The record belongs to a higher epoch: everybody is told.
    pub(super) fn depose(&mut self, by_epoch: u64, out: &mut Vec<Effect>) {
        let mut told: BTreeMap<LinkId, u64> = self.links.keys().map(|l| (*l, self.epoch)).collect();
        for q in std::mem::take(&mut self.queue) {
            if let Some(epoch) = epoch_of(&q.msg) {
                let highest = told.entry(q.link).or_default();
                *highest = (*highest).max(epoch);
            }
        }
        let never_claimed = !self.claimed;
        self.phase = Phase::Over;
        self.links.clear();
        for (link, epoch) in told {
            self.not_owner(link, epoch, out);
        }
        out.push(Effect::Deposed { by_epoch });
        if never_claimed {
            out.push(Effect::Behind { record_epoch: by_epoch });
        }
    }

    /// `NotOwner` for `your_epoch`; with a hint to ourselves if we speak for a newer one.
    pub(super) fn not_owner(&self, link: LinkId, your_epoch: u64, out: &mut Vec<Effect>) {
        let hint = (self.phase != Phase::Over && !self.draining && self.lease && your_epoch < self.epoch).then(|| {
            owner_msg::Hint {
                owner_id: self.config.node.clone(),
                boot: self.config.boot.0,
                addr: self.config.addr.clone(),
                epoch: self.epoch,
            }
        });
        let msg = owner_msg::NotOwner { session: self.session.to_string(), your_epoch, hint };
        self.send(link, owner_msg::M::NotOwner(msg), out);
    }

    /// After a new epoch nobody is joined any more.
    pub(super) fn unjoin_all(&mut self, old: u64, out: &mut Vec<Effect>) {
        let joined = self.links.iter_mut().filter_map(|(id, l)| std::mem::take(&mut l.joined).then_some(*id));
        for link in joined.collect::<Vec<_>>() {
            self.not_owner(link, old, out);
        }
    }

    pub(super) fn send(&self, link: LinkId, msg: owner_msg::M, out: &mut Vec<Effect>) {
        out.push(Effect::Send { link, msg });
    }
}

/// Session-level messages of a gateway carry the session's name; link-level ones do not.
#[must_use]
pub fn session_of(msg: &M) -> Option<&str> {
    match msg {
        M::Reaction(m) => Some(&m.session),
        M::Join(m) => Some(&m.session),
        M::Leave(gateway_msg::Leave { session })
        | M::Presence(gateway_msg::Presence { session, .. })
        | M::Delivered(gateway_msg::Delivered { session, .. })
        | M::ReplayDone(gateway_msg::ReplayDone { session, .. })
        | M::Detach(gateway_msg::Detach { session, .. }) => Some(session),
        M::Attach(m) => Some(&m.session),
        M::Pull(m) => Some(&m.session),
        M::Op(_) | M::Hello(_) | M::Ping(_) | M::Pong(_) | M::GoingAway(_) => None,
    }
}
