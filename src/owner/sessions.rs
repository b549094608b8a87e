//! The sessions this process owns: one short std mutex each, effects done before it is released, so that the order on a
//! link is the session's order.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use dashmap::DashMap;
use holdfast_core::{
    id::{Boot, LinkId, SessionId},
    proto::{gateway_msg, owner_msg},
    record::{App, Authority, AuthorityConfig, Effect, WriteSet, session_of},
    session::Route,
    time::{Mono, Now},
};
use tokio::sync::mpsc;

use super::{
    early::{self, Early},
    kinds,
    link::LinkTx,
    timers::Timers,
};
use crate::{clock::Clock, placement::watch::Watcher};

type Core = Authority<Box<dyn App + Send>>;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Reads.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What an owner counts.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads of records.
    pub loads: Count,
    /// Conditional writes issued.
    pub writes: Count,
    /// Events in them.
    pub events_written: Count,
    /// Writes whose condition failed.
    pub conflicts: Count,
    /// Of these, writes of an owner that a higher epoch had deposed: a zombie's.
    pub writes_fenced: Count,
    /// Writes answered, or given up.
    pub answered: Count,
    /// Writes of unknown outcome.
    pub unknown: Count,
    /// Joins that came before the directory's word, and waited for it.
    pub early_joins: Count,
    /// Messages to gateways.
    pub sent: Count,
    /// Reactions to gateways.
    pub reactions_sent: Count,
    /// Reactions of gateways that were not relayed: late, of another epoch, or past the lease.
    pub reactions_refused: Count,
    /// Sessions lost to a higher epoch.
    pub deposed: Count,
    /// Messages of a kind this version does not know.
    pub unknown_msgs: Count,
}

/// Work for the store.
#[derive(Debug)]
pub(super) enum Job {
    /// Read the record; `first`: also when the session lost its last owner.
    Load { slot: Arc<Slot>, first: bool },
    /// Write.
    Write { slot: Arc<Slot>, set: Box<WriteSet> },
}

/// Work for the placement service.
#[derive(Debug)]
pub(super) enum Notice {
    /// The session was drained.
    Handed { session: SessionId, ver: u64 },
    /// The record is ahead of what the directory told us.
    Behind { session: SessionId, record_epoch: u64 },
}

/// One session.
#[derive(Debug)]
pub(super) struct Slot {
    pub id: SessionId,
    /// A read of the record is queued and has not begun.
    pub unread: AtomicBool,
    /// It is in the urgent queue as well: a gateway holds ops for it.
    pub urged: AtomicBool,
    /// `Route.unowned_from_ms` of the assignment.
    pub unowned_from_ms: AtomicU64,
    inner: Mutex<Inner>,
}

struct Inner {
    core: Core,
    /// The next point in time it is in the timers for.
    wake: Option<Mono>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("epoch", &self.core.epoch())
            .field("ver", &self.core.ver())
            .finish_non_exhaustive()
    }
}

/// All sessions and links of this process.
pub(super) struct Sessions {
    pub clock: Clock,
    pub counters: Arc<Counters>,
    pub timers: Timers,
    pub watcher: OnceLock<Watcher>,
    pub lease: AtomicBool,
    early: Early,
    config: RwLock<Arc<AuthorityConfig>>,
    slots: DashMap<SessionId, Arc<Slot>>,
    pub links: DashMap<LinkId, LinkTx>,
    jobs: Jobs,
    notices: mpsc::Sender<Notice>,
}

/// The two queues of store work. A takeover of thousands of sessions fills the second; what somebody waits for must not
/// stand behind it (design 7.1: sessions with held ops first).
pub(super) struct Jobs {
    /// Writes (claims too), reads of sessions that were live, and of those a gateway holds ops for.
    pub urgent: mpsc::Sender<Job>,
    /// First reads.
    pub first: mpsc::Sender<Job>,
}

impl Sessions {
    pub fn new(
        clock: Clock,
        config: AuthorityConfig,
        jobs: Jobs,
        notices: mpsc::Sender<Notice>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            clock,
            counters,
            timers: Timers::default(),
            watcher: OnceLock::new(),
            lease: AtomicBool::new(true),
            early: Early::default(),
            config: RwLock::new(Arc::new(config)),
            slots: DashMap::new(),
            links: DashMap::new(),
            jobs,
            notices,
        }
    }

    pub fn config(&self) -> Arc<AuthorityConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Another life begins: the sessions and links of the old one end.
    pub fn begin_life(&self, config: AuthorityConfig) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        for slot in self.all() {
            self.drive(&slot, |core, now, out| core.handle_revoked(now, out));
        }
        self.close_links();
    }

    pub fn close_links(&self) {
        let links: Vec<_> = self.links.iter().map(|l| l.value().clone()).collect();
        links.iter().for_each(LinkTx::close);
    }

    /// Every session; only for rare events (lease, drain, store).
    pub fn all(&self) -> Vec<Arc<Slot>> {
        self.slots.iter().map(|s| s.value().clone()).collect()
    }

    /// Says the same to all gateways.
    pub fn broadcast(&self, msg: &owner_msg::M) {
        for link in &self.links {
            link.send(msg.clone());
        }
    }

    /// The directory's word about a session, and then what gateways said of it before.
    pub fn route(&self, session: &SessionId, route: &Route) {
        self.follow(session, route);
        self.pass_early(session);
    }

    fn follow(&self, session: &SessionId, route: &Route) {
        let mine = route.boot == self.config().boot && route.boot != Boot(0) && !route.ended;
        let mut slot = self.slots.get(session).map(|s| s.clone());
        if mine && slot.as_ref().is_some_and(|s| s.read(|c| c.is_over() && c.epoch() < route.epoch)) {
            self.slots.remove(session);
            slot = None;
        }
        match slot {
            Some(slot) if mine => self.drive(&slot, |core, now, out| core.handle_assigned(now, route.epoch, out)),
            Some(slot) => self.drive(&slot, |core, now, out| {
                if route.epoch > core.epoch() || (route.ended && route.epoch == core.epoch()) {
                    core.handle_revoked(now, out);
                }
            }),
            None if mine => self.assign(session, route),
            None => {}
        }
    }

    fn assign(&self, session: &SessionId, route: &Route) {
        let Some(app) = kinds::new(&route.kind, session) else {
            tracing::warn!(%session, kind = %route.kind, "a session of a kind not known here");
            return;
        };
        let core = Authority::new(session.clone(), &route.kind, route.epoch, self.config(), app);
        let slot = Arc::new(Slot {
            id: session.clone(),
            unread: AtomicBool::new(false),
            urged: AtomicBool::new(false),
            unowned_from_ms: AtomicU64::new(route.unowned_from_ms),
            inner: Mutex::new(Inner { core, wake: None }),
        });
        // two tellers at once (watch and a gateway): the first one's is kept
        let kept = self.slots.entry(session.clone()).or_insert(slot).clone();
        let held = self.lease.load(Ordering::Acquire);
        self.drive(&kept, |core, now, out| {
            core.handle_assigned(now, route.epoch, out);
            core.start(now, out);
            core.handle_lease(now, held, out);
        });
    }

    /// A gateway's message; the session that knows the link from now on.
    pub fn handle(&self, link: &LinkTx, msg: gateway_msg::M) -> Option<SessionId> {
        let session = match &msg {
            gateway_msg::M::Op(op) => SessionId::parse(&session_of_held(&op.held)?).ok()?,
            other => SessionId::parse(session_of(other)?).ok()?,
        };
        if self.early.waits(&session) {
            let msg = self.early.add(&session, link, msg, false);
            return msg.map_or(Some(session.clone()), |msg| self.take(link, session, msg));
        }
        if let gateway_msg::M::Join(join) = &msg
            && self.is_behind(&session, join.epoch)
        {
            let epoch = join.epoch;
            self.counters.early_joins.add(1);
            let msg = self.early.add(&session, link, msg, true);
            // the watch may have been faster than this look at its cache
            if !self.is_behind(&session, epoch) {
                self.pass_early(&session);
            }
            return msg.map_or(Some(session.clone()), |msg| self.take(link, session, msg));
        }
        self.take(link, session, msg)
    }

    /// Whether a gateway knows a later epoch of the session than this owner, whose watch is well.
    fn is_behind(&self, session: &SessionId, epoch: u64) -> bool {
        if self.slots.get(session).is_some_and(|s| s.lock().core.epoch() >= epoch) {
            return false;
        }
        self.watcher.get().is_some_and(|w| w.state().synced() && w.lookup(session).is_none_or(|r| r.epoch < epoch))
    }

    fn pass_early(&self, session: &SessionId) {
        self.early.pass(session, |link, msg| {
            if self.links.contains_key(&link.id) {
                self.take(&link, session.clone(), msg);
            }
        });
    }

    /// Answers what has waited too long for the directory; never returns.
    pub async fn end_waits(&self) {
        loop {
            tokio::time::sleep(early::LOOK_EVERY).await;
            self.early.over().iter().for_each(|session| self.pass_early(session));
        }
    }

    fn take(&self, link: &LinkTx, session: SessionId, msg: gateway_msg::M) -> Option<SessionId> {
        let mut slot = self.slots.get(&session).map(|s| s.clone());
        if let Some(epoch) = epoch_of(&msg) {
            let behind = slot.as_ref().is_none_or(|s| s.lock().core.epoch() < epoch);
            if behind && let Some(route) = self.watcher.get().and_then(|w| w.lookup(&session)) {
                self.follow(&session, &route);
                slot = self.slots.get(&session).map(|s| s.clone());
            }
            if slot.is_none() {
                link.send(self.not_owner(&session, epoch));
            }
        }
        if slot.is_none() && matches!(msg, gateway_msg::M::Reaction(_)) {
            self.counters.reactions_refused.add(1);
        }
        let slot = slot?;
        let held = matches!(msg, gateway_msg::M::Op(_));
        self.drive(&slot, |core, now, out| core.handle_link_msg(now, link.id, msg, out));
        if held && slot.unread.load(Ordering::Acquire) && !slot.urged.swap(true, Ordering::AcqRel) {
            self.job(Job::Load { slot: slot.clone(), first: true }, true);
        }
        Some(session)
    }

    fn not_owner(&self, session: &SessionId, your_epoch: u64) -> owner_msg::M {
        let hint = self.hint(session, your_epoch);
        owner_msg::M::NotOwner(owner_msg::NotOwner { session: session.to_string(), your_epoch, hint })
    }

    /// Who it is, if the directory knows of a newer epoch elsewhere.
    fn hint(&self, session: &SessionId, your_epoch: u64) -> Option<owner_msg::Hint> {
        let route = self.watcher.get()?.lookup(session)?;
        let elsewhere = route.epoch > your_epoch && route.boot != Boot(0) && route.boot != self.config().boot;
        (elsewhere && !route.addr.is_empty() && !route.ended).then(|| owner_msg::Hint {
            owner_id: route.node.to_string(),
            boot: route.boot.0,
            addr: route.addr.to_string(),
            epoch: route.epoch,
        })
    }

    pub fn link_gone(&self, link: LinkId, touched: HashSet<SessionId>) {
        self.links.remove(&link);
        for session in touched {
            if let Some(slot) = self.slots.get(&session).map(|s| s.clone()) {
                self.drive(&slot, |core, now, out| core.handle_link_down(now, link, out));
            }
        }
    }

    /// A session's time has come.
    pub fn wake(&self, session: &SessionId) {
        if let Some(slot) = self.slots.get(session).map(|s| s.clone()) {
            slot.lock().wake = None;
            self.drive(&slot, |core, now, out| {
                if core.poll_timeout().is_some_and(|at| at <= now.mono) {
                    core.handle_timeout(now, out);
                }
            });
        }
    }

    /// Runs `f` on a session and does what it says, in order, under its lock.
    pub fn drive(&self, slot: &Arc<Slot>, f: impl FnOnce(&mut Core, Now, &mut Vec<Effect>)) {
        let mut out = Vec::new();
        let mut over = false;
        let mut inner = slot.lock();
        f(&mut inner.core, self.clock.now(), &mut out);
        self.counters.reactions_refused.add(inner.core.take_reactions_refused());
        for effect in out {
            over |= self.perform(slot, &inner.core, effect);
        }
        if let Some(at) = inner.core.poll_timeout().filter(|at| !over && inner.wake.is_none_or(|w| *at < w)) {
            inner.wake = Some(at);
            self.timers.add(at, slot.id.clone());
        }
        drop(inner);
        if over {
            self.slots.remove_if(&slot.id, |_, s| Arc::ptr_eq(s, slot));
        }
    }

    /// Does one effect; `true` = the session is over here.
    fn perform(&self, slot: &Arc<Slot>, core: &Core, effect: Effect) -> bool {
        match effect {
            Effect::Send { link, msg } => self.send(slot, link, msg),
            Effect::Load => {
                let first = core.ver() == 0 && !core.is_active();
                slot.unread.store(true, Ordering::Release);
                self.job(Job::Load { slot: slot.clone(), first }, !first);
            }
            Effect::Write(set) => self.job(Job::Write { slot: slot.clone(), set }, true),
            Effect::Deposed { by_epoch } => {
                self.counters.deposed.add(1);
                self.counters.writes_fenced.add(core.writes_fenced());
                tracing::debug!(session = %slot.id, epoch = core.epoch(), by_epoch, "no longer ours");
                return true;
            }
            Effect::Handed { ver } => self.notice(Notice::Handed { session: slot.id.clone(), ver }),
            Effect::Behind { record_epoch } => self.notice(Notice::Behind { session: slot.id.clone(), record_epoch }),
        }
        false
    }

    fn send(&self, slot: &Slot, link: LinkId, mut msg: owner_msg::M) {
        let Some(tx) = self.links.get(&link) else { return };
        if let owner_msg::M::NotOwner(no) = &mut msg
            && no.hint.is_none()
        {
            no.hint = self.hint(&slot.id, no.your_epoch);
        }
        self.counters.sent.add(1);
        if matches!(msg, owner_msg::M::Reaction(_)) {
            self.counters.reactions_sent.add(1);
        }
        tx.send(msg);
    }

    fn job(&self, job: Job, urgent: bool) {
        let queue = if urgent { &self.jobs.urgent } else { &self.jobs.first };
        // one outstanding per session, and each queue has room for twice the sessions: not full in practice
        if let Err(e) = queue.try_send(job) {
            tracing::error!("the store's queue is over: {e}");
        }
    }

    fn notice(&self, notice: Notice) {
        if let Err(e) = self.notices.try_send(notice) {
            tracing::error!("placement is not told: {e}");
        }
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads something of the session.
    pub fn read<T>(&self, f: impl FnOnce(&Core) -> T) -> T {
        f(&self.lock().core)
    }
}

fn epoch_of(msg: &gateway_msg::M) -> Option<u64> {
    match msg {
        gateway_msg::M::Op(m) => Some(m.epoch),
        gateway_msg::M::Join(m) => Some(m.epoch),
        gateway_msg::M::Attach(m) => Some(m.epoch),
        gateway_msg::M::Pull(m) => Some(m.epoch),
        _ => None,
    }
}

/// `HeldOp.session` without decoding the rest: it is field 1, and encoders write it first.
fn session_of_held(held: &[u8]) -> Option<String> {
    if let [0x0a, len, rest @ ..] = held
        && let Some(bytes) = rest.get(..usize::from(*len)).filter(|_| *len < 0x80)
    {
        return String::from_utf8(bytes.to_vec()).ok();
    }
    use prost::Message;
    holdfast_core::proto::HeldOp::decode(held).ok().map(|h| h.session)
}
