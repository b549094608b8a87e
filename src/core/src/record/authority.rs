//! One session's authority: its state and what the store and the clock do to it.
//!
//! ```text
//! Loading --record read--> Claiming --header written--> Active --write in flight--> Active
//!    ^  (epoch is mine already: straight to Active)        |
//!    +---- conflict, unknown, unavailable, new epoch ------+      record.epoch > mine, anywhere: Deposed
//! ```
//! One write is in flight at a time; everything but reactions queues behind it, in arrival order. Ops are decided and applied
//! to the app before their write; if the write does not succeed the app is rebuilt from the record and they are decided anew.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

use super::{
    App, AuthorityConfig, Deadline, Effect, Loaded, StoreError, WriteSet, Written, lanes::Lanes, links::Link,
    queue::Queued, reactions::Reactions, tail::Tail, write::Batch,
};
use crate::{
    id::{LinkId, SessionId},
    mutant::{self, Mutant},
    proto::record::Header,
    time::{Mono, Now},
};

/// The app's own timer fires at most this often: an app that does not move it must not spin.
const APP_TIMER_MIN: Duration = Duration::from_millis(10);

/// Where the authority is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not started.
    New,
    /// The record is being read.
    Loading,
    /// The record will be read at `retry_at`.
    Waiting,
    /// A header is being written: the claim, or the fence after a write of unknown fate.
    Claiming,
    /// Serving.
    Active,
    /// Another epoch owns the record, or the session was handed over.
    Over,
}

/// The owner's half of one session. Driver loop: feed `handle_*`, do the effects in order, wake it at `poll_timeout`.
#[derive(Debug)]
pub struct Authority<A: App> {
    pub(super) session: SessionId,
    pub(super) kind: String,
    pub(super) epoch: u64,
    pub(super) config: Arc<AuthorityConfig>,
    pub(super) app: A,
    fresh: Bytes,
    dirty: bool,
    pub(super) phase: Phase,
    /// This epoch has been claimed by this authority.
    pub(super) claimed: bool,
    outage_us: u64,
    pub(super) rev: i64,
    pub(super) header: Header,
    pub(super) tail: Tail,
    pub(super) lanes: Lanes,
    pub(super) since_checkpoint: usize,
    /// Joined gateways have heard everything up to here.
    pub(super) published: u64,
    pub(super) links: BTreeMap<LinkId, Link>,
    pub(super) queue: VecDeque<Queued>,
    pub(super) batch: Option<Batch>,
    /// A write was issued at this revision and nobody knows whether it landed.
    pub(super) uncertain: Option<i64>,
    /// Gateways were told that the store is down.
    pub(super) down: bool,
    pub(super) lease: bool,
    pub(super) draining: bool,
    /// When the request under way was made.
    asked_at: Option<Mono>,
    retry_at: Option<Mono>,
    retries: u32,
    pub(super) reactions: Reactions,
    pub(super) armed: Option<Deadline>,
    pub(super) app_not_before: Mono,
    /// Writes whose condition failed since the record was last read.
    conflicts: u64,
    pub(super) reactions_refused: u64,
    last: Now,
    fault: Option<String>,
}

impl<A: App> Authority<A> {
    /// An authority for `epoch`, not started. `kind` is stored in the header; `app` must be fresh.
    #[must_use]
    pub fn new(session: SessionId, kind: &str, epoch: u64, config: Arc<AuthorityConfig>, app: A) -> Self {
        Self {
            session,
            kind: kind.to_owned(),
            epoch,
            config,
            fresh: app.checkpoint(),
            dirty: false,
            app,
            phase: Phase::New,
            claimed: false,
            outage_us: 0,
            rev: 0,
            header: Header::default(),
            tail: Tail::default(),
            lanes: Lanes::default(),
            since_checkpoint: 0,
            published: 0,
            links: BTreeMap::new(),
            queue: VecDeque::new(),
            batch: None,
            uncertain: None,
            down: false,
            lease: true,
            draining: false,
            asked_at: None,
            retry_at: None,
            retries: 0,
            reactions: Reactions::default(),
            armed: None,
            app_not_before: Mono(0),
            conflicts: 0,
            reactions_refused: 0,
            last: Now::default(),
            fault: None,
        }
    }

    /// Unowned time before this epoch, microseconds (design 5.5); before `start` or `handle_assigned`.
    pub fn set_outage(&mut self, outage_us: u64) {
        self.outage_us = outage_us;
    }

    /// Begins: reads the record.
    pub fn start(&mut self, now: Now, out: &mut Vec<Effect>) {
        if self.phase == Phase::New {
            self.reload(now, out);
        }
    }

    /// The epoch it speaks for.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The newest durable version it knows.
    pub fn ver(&self) -> u64 {
        self.header.ver
    }

    /// Whether this epoch is claimed and served.
    pub fn is_active(&self) -> bool {
        self.phase == Phase::Active && self.claimed
    }

    /// Whether it has ended: deposed, revoked or handed over.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Whether ops are being refused because of the store.
    pub fn is_down(&self) -> bool {
        self.down
    }

    /// With `Deposed`: writes of this authority that failed because a higher epoch owns the record.
    pub fn writes_fenced(&self) -> u64 {
        self.conflicts
    }

    /// Reactions that were not relayed since the last call: late, of another epoch, or not ours to relay.
    pub fn take_reactions_refused(&mut self) -> u64 {
        std::mem::take(&mut self.reactions_refused)
    }

    /// Why the record that was read last cannot be served, for the log.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// The application.
    pub fn app(&self) -> &A {
        &self.app
    }

    /// The same node was given a higher epoch: gateways join anew once it is claimed.
    pub fn handle_assigned(&mut self, now: Now, epoch: u64, out: &mut Vec<Effect>) {
        self.last = now;
        if epoch <= self.epoch || self.phase == Phase::Over {
            return;
        }
        let old = std::mem::replace(&mut self.epoch, epoch);
        self.claimed = false;
        self.armed = None;
        self.reactions.clear();
        self.unjoin_all(old, out);
        if self.phase == Phase::Active && self.batch.is_none() {
            self.reload(now, out);
        }
    }

    /// The record was read, or could not be.
    pub fn handle_loaded(&mut self, now: Now, loaded: Result<Loaded, StoreError>, out: &mut Vec<Effect>) {
        self.last = now;
        if self.phase != Phase::Loading {
            return;
        }
        self.asked_at = None;
        let Ok(loaded) = loaded else { return self.lose_store(now, out) };
        let record_epoch = loaded.header.as_ref().map_or(0, |h| h.epoch);
        if record_epoch > self.epoch {
            return self.depose(record_epoch, out);
        }
        let rev = loaded.rev;
        self.fault = self.rebuild(loaded).err();
        if self.fault.is_some() {
            return self.lose_store(now, out);
        }
        (self.retries, self.conflicts) = (0, 0);
        let fence = self.uncertain.take().is_some_and(|expected| expected == rev);
        if mutant::on(Mutant::NoClaim) {
            self.activate(now, out);
        } else if fence || self.down || !self.claimed || record_epoch < self.epoch {
            self.claim(now, out);
        } else {
            self.activate(now, out);
        }
    }

    /// Checkpoint and tail become the state; everything speculative is gone.
    fn rebuild(&mut self, loaded: Loaded) -> Result<(), String> {
        let header = loaded.header.unwrap_or_else(|| Header { tail_from: 1, ..Header::default() });
        let checkpoint = loaded.checkpoint.unwrap_or_default();
        let tail = Tail::load(loaded.entries, header.ver, checkpoint.ver)?;
        if checkpoint.ver > 0 {
            self.app.restore(&checkpoint.state)?;
        } else if self.dirty {
            self.app.restore(&self.fresh)?;
        }
        self.dirty = true;
        self.since_checkpoint = 0;
        for entry in tail.after(checkpoint.ver) {
            self.since_checkpoint += entry.payload.len();
            self.app.apply(entry);
        }
        self.rev = loaded.rev;
        self.lanes = Lanes::load(loaded.lanes);
        self.header = Header { checkpoint_ver: checkpoint.ver, ..header };
        self.tail = tail;
        Ok(())
    }

    /// Writes the header with this epoch, on condition of what was just read.
    fn claim(&mut self, now: Now, out: &mut Vec<Effect>) {
        let mut header = self.header.clone();
        if header.epoch < self.epoch {
            header.epoch = self.epoch;
            header.claimed_at_us = now.wall.0;
            header.outage_us = self.outage_us;
        }
        if header.kind.is_empty() {
            header.kind = self.kind.clone();
        }
        self.phase = Phase::Claiming;
        self.batch = Some(Batch::new(self.epoch, header.clone()));
        self.asked_at = Some(now.mono);
        let set = WriteSet { expect_rev: self.rev, header, ..WriteSet::default() };
        out.push(Effect::Write(Box::new(set)));
    }

    /// A write ended.
    pub fn handle_written(&mut self, now: Now, written: Written, out: &mut Vec<Effect>) {
        self.last = now;
        let Some(batch) = self.batch.take().filter(|_| self.phase != Phase::Over) else { return };
        self.asked_at = None;
        let expected = self.rev;
        match written {
            Written::Ok { rev } => {
                self.rev = rev;
                self.commit(now, batch, out);
                if self.draining {
                    return self.hand_over(out);
                }
                if self.header.epoch < self.epoch {
                    return self.reload(now, out);
                }
                if self.phase == Phase::Claiming {
                    self.activate(now, out);
                } else {
                    if self.down {
                        self.app_not_before = now.mono.after(self.config.app_grace);
                    }
                    self.recovered(out);
                    self.pump(now, out);
                }
            }
            Written::Conflict => {
                self.conflicts += 1;
                self.requeue(batch, false);
                self.reload(now, out);
            }
            Written::Unknown => {
                self.uncertain = Some(expected);
                self.requeue(batch, true);
                self.reload(now, out);
            }
            Written::Unavailable => {
                self.requeue(batch, false);
                self.lose_store(now, out);
            }
        }
    }

    fn activate(&mut self, now: Now, out: &mut Vec<Effect>) {
        let first = !self.claimed;
        self.claimed = true;
        self.phase = Phase::Active;
        if first || self.down {
            self.app_not_before = now.mono.after(self.config.app_grace);
        }
        if first {
            let header = self.header.clone();
            self.app.handle_claimed(&header, now);
        }
        self.recovered(out);
        if self.draining {
            return self.hand_over(out);
        }
        self.catch_up_links(out);
        self.arm(out);
        self.pump(now, out);
    }

    /// The request under way failed: gateways are told, ops refused, and the record is read again later.
    fn lose_store(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.go_down(out);
        if self.draining {
            return self.hand_over(out);
        }
        let wait = self.config.retry_min.saturating_mul(1 << self.retries.min(10)).min(self.config.retry_max);
        // thousands of sessions must not return in step: spread them by name over half the wait
        let draw = self.session.as_str().bytes().fold(self.retries, |x, b| x.wrapping_mul(31).wrapping_add(b.into()));
        let wait = wait / 2 + wait.mul_f64(f64::from(draw % 1000) / 2000.0);
        self.retries += 1;
        self.phase = Phase::Waiting;
        self.retry_at = Some(now.mono.after(wait));
    }

    pub(super) fn reload(&mut self, now: Now, out: &mut Vec<Effect>) {
        if self.draining {
            return self.hand_over(out);
        }
        self.phase = Phase::Loading;
        self.retry_at = None;
        self.asked_at = Some(now.mono);
        out.push(Effect::Load);
    }

    pub(super) fn asked(&mut self, now: Now) {
        self.asked_at = Some(now.mono);
    }

    /// The node's lease is (not) held any more by its own clock (duty 5; documents become read-only).
    pub fn handle_lease(&mut self, now: Now, held: bool, out: &mut Vec<Effect>) {
        self.last = now;
        if std::mem::replace(&mut self.lease, held) == held {
            return;
        }
        if !held {
            self.reactions.clear();
        }
        if self.is_document() {
            self.tell_health(out);
        }
        if self.read_only() {
            self.refuse_queue(out);
        }
        self.pump(now, out);
    }

    /// As [`Self::handle_lease`], when the owner may know that the directory itself is out: then only documents stop (design 6.8).
    pub fn handle_lease_in(&mut self, now: Now, held: bool, directory_out: bool, out: &mut Vec<Effect>) {
        self.handle_lease(now, held || (directory_out && !self.is_document()), out);
    }

    /// The directory gave the session to somebody else (or ended it): as if the record had said so.
    pub fn handle_revoked(&mut self, _now: Now, out: &mut Vec<Effect>) {
        self.claimed = true; // no `Behind`: the directory is the one that knows
        self.depose(self.epoch, out);
    }

    /// Hands the session over: the write under way is finished, later ops are answered `OWNER_DRAINING`.
    pub fn handle_drain(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.last = now;
        if std::mem::replace(&mut self.draining, true) || self.phase == Phase::Over {
            return;
        }
        self.refuse_queue(out);
        if self.batch.is_none() {
            self.hand_over(out);
        }
    }

    fn hand_over(&mut self, out: &mut Vec<Effect>) {
        self.refuse_queue(out);
        self.phase = Phase::Over;
        self.retry_at = None;
        self.asked_at = None;
        out.push(Effect::Handed { ver: self.header.ver });
    }

    /// When to call `handle_timeout` at the latest.
    pub fn poll_timeout(&self) -> Option<Mono> {
        let late = self.asked_at.filter(|_| !self.down).map(|at| at.after(self.late_after()));
        let retry = self.retry_at.filter(|_| self.phase == Phase::Waiting);
        [late, retry, self.reactions.poll_timeout(), self.app_timer()].into_iter().flatten().min()
    }

    fn late_after(&self) -> Duration {
        if self.claimed { self.config.write_late } else { self.config.claim_late }
    }

    fn app_timer(&self) -> Option<Mono> {
        if self.phase != Phase::Active || self.batch.is_some() || self.down || self.read_only() {
            return None;
        }
        let wall = self.app.poll_timeout()?;
        let wait = Duration::from_micros(wall.0.saturating_sub(self.last.wall.0));
        Some(self.last.mono.after(wait).max(self.app_not_before))
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.last = now;
        if !self.down && self.asked_at.is_some_and(|at| at.after(self.late_after()) <= now.mono) {
            self.go_down(out);
        }
        if self.phase == Phase::Waiting && self.retry_at.is_some_and(|at| at <= now.mono) {
            self.reload(now, out);
        }
        self.flush_reactions(now, out);
        self.pump(now, out);
    }

    /// Whether the app's own timer is due now.
    pub(super) fn app_is_due(&mut self, now: Now) -> bool {
        self.last = now;
        let due = self.app_timer().is_some_and(|at| at <= now.mono);
        if due {
            self.app_not_before = now.mono.after(APP_TIMER_MIN);
        }
        due
    }
}
