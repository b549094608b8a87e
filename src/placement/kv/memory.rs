//! The store of `holdfast dev` and of tests: etcd's semantics in one object.
//!
//! Revisions grow by one per writing transaction; the last [`HISTORY_MAX`] changes are kept for watches and for reads
//! pinned to a revision; older ones are compacted.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{sync::watch as signal, time::timeout};

use super::{Compare, Item, KvError, Op, Page, TxnReply};

mod watch;

pub use watch::MemoryWatch;

/// Changes kept: 65,536 x ~200 bytes = 13 MiB.
pub const HISTORY_MAX: usize = 65_536;

/// How long a call waits for a frozen store, as for a stopped process.
const FROZEN_TIMEOUT: Duration = Duration::from_secs(1);

/// How often leases are looked at.
const SWEEP_EVERY: Duration = Duration::from_millis(50);

struct Change {
    rev: i64,
    key: Vec<u8>,
    before: Option<Item>,
    after: Option<Item>,
}

struct Lease {
    ttl: Duration,
    until: Instant,
}

struct State {
    rev: i64,
    compacted: i64,
    items: BTreeMap<Vec<u8>, Item>,
    history: VecDeque<Change>,
    leases: HashMap<i64, Lease>,
    next_lease: i64,
    sweeping: bool,
}

/// See the module.
pub struct Memory {
    state: Mutex<State>,
    /// Revision, and whether frozen; watches wait on it.
    signal: signal::Sender<(i64, bool)>,
    me: Weak<Memory>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Memory {
    /// An empty store at revision 1, as a fresh etcd.
    #[must_use]
    pub(super) fn create() -> Arc<Self> {
        let state = State {
            rev: 1,
            compacted: 0,
            items: BTreeMap::new(),
            history: VecDeque::new(),
            leases: HashMap::new(),
            next_lease: 1,
            sweeping: false,
        };
        Arc::new_cyclic(|me| Self { state: Mutex::new(state), signal: signal::channel((1, false)).0, me: me.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while frozen, as long as a client would.
    async fn ready(&self) -> Result<(), KvError> {
        let mut signal = self.signal.subscribe();
        match timeout(FROZEN_TIMEOUT, signal.wait_for(|s| !s.1)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(KvError::Unknown("no answer in time (frozen)".into())),
        }
    }

    pub(super) async fn get(&self, key: &[u8]) -> Result<(Option<Item>, i64), KvError> {
        self.ready().await?;
        let state = self.lock();
        Ok((state.items.get(key).cloned(), state.rev))
    }

    pub(super) async fn range(&self, from: &[u8], to: &[u8], limit: usize, at_rev: i64) -> Result<Page, KvError> {
        self.ready().await?;
        let state = self.lock();
        if at_rev != 0 && at_rev < state.compacted {
            return Err(KvError::Compacted(state.compacted));
        }
        let span = (Bound::Included(from), Bound::Excluded(to));
        let page = |mut items: Vec<Item>| {
            let more = limit != 0 && items.len() > limit;
            items.truncate(if limit == 0 { usize::MAX } else { limit });
            Page { items, more, revision: state.rev }
        };
        let take = if limit == 0 { usize::MAX } else { limit + 1 };
        if at_rev == 0 || at_rev >= state.rev {
            return Ok(page(state.items.range::<[u8], _>(span).map(|(_, i)| i.clone()).take(take).collect()));
        }
        let mut then: BTreeMap<&[u8], &Item> =
            state.items.range::<[u8], _>(span).map(|(k, i)| (k.as_slice(), i)).collect();
        for change in state.history.iter().rev().take_while(|c| c.rev > at_rev) {
            if change.key.as_slice() >= from && change.key.as_slice() < to {
                match &change.before {
                    Some(item) => then.insert(&change.key, item),
                    None => then.remove(change.key.as_slice()),
                };
            }
        }
        Ok(page(then.into_values().take(take).cloned().collect()))
    }

    pub(super) async fn txn(&self, compares: Vec<Compare>, ops: Vec<Op>) -> Result<TxnReply, KvError> {
        self.ready().await?;
        let mut state = self.lock();
        let holds = compares.iter().all(|c| match c {
            Compare::ModRev(key, rev) => state.items.get(key).map_or(0, |i| i.mod_rev) == *rev,
            Compare::CreateRev(key, rev) => state.items.get(key).map_or(0, |i| i.create_rev) == *rev,
        });
        if !holds {
            return Ok(TxnReply { succeeded: false, revision: state.rev });
        }
        let unknown_lease =
            |o: &Op| matches!(o, Op::Put { lease, .. } if *lease != 0 && !state.leases.contains_key(lease));
        if ops.iter().any(unknown_lease) {
            return Err(KvError::LeaseGone);
        }
        state.apply(ops);
        let revision = state.rev;
        drop(state);
        self.announce(revision);
        Ok(TxnReply { succeeded: true, revision })
    }

    fn announce(&self, rev: i64) {
        self.signal.send_if_modified(|s| {
            let newer = rev > s.0;
            s.0 = s.0.max(rev);
            newer
        });
    }

    pub(super) async fn grant(&self, ttl: Duration) -> Result<i64, KvError> {
        self.ready().await?;
        let ttl = ttl.max(Duration::from_secs(1));
        let mut state = self.lock();
        let id = state.next_lease;
        state.next_lease += 1;
        state.leases.insert(id, Lease { ttl, until: Instant::now() + ttl });
        if !state.sweeping {
            let me = self.me.clone();
            let started = std::thread::Builder::new().name("leases".into()).spawn(|| sweep_leases(me));
            state.sweeping = started.is_ok();
        }
        Ok(id)
    }

    pub(super) async fn keep_alive(&self, lease: i64) -> Result<Duration, KvError> {
        self.ready().await?;
        let mut state = self.lock();
        Ok(state.leases.get_mut(&lease).map_or(Duration::ZERO, |l| {
            l.until = Instant::now() + l.ttl;
            l.ttl
        }))
    }

    pub(super) async fn time_to_live(&self, lease: i64) -> Result<Duration, KvError> {
        self.ready().await?;
        let state = self.lock();
        Ok(state.leases.get(&lease).map_or(Duration::ZERO, |l| l.until.saturating_duration_since(Instant::now())))
    }

    pub(super) async fn revoke(&self, lease: i64) -> Result<(), KvError> {
        self.ready().await?;
        let mut state = self.lock();
        state.end_leases(&[lease]);
        let rev = state.rev;
        drop(state);
        self.announce(rev);
        Ok(())
    }

    pub(super) fn watch(&self, from: &[u8], to: &[u8], start_rev: i64) -> MemoryWatch {
        let last = if start_rev > 0 { start_rev - 1 } else { self.lock().rev };
        MemoryWatch { store: self.me.clone(), signal: self.signal.subscribe(), from: from.into(), to: to.into(), last }
    }

    /// Forgets the history up to `rev`.
    pub fn compact(&self, rev: i64) {
        let mut state = self.lock();
        state.compacted = state.compacted.max(rev.min(state.rev));
        while state.history.front().is_some_and(|c| c.rev < rev) {
            state.history.pop_front();
        }
    }

    pub(super) fn freeze(&self) {
        self.signal.send_modify(|s| s.1 = true);
    }

    pub(super) fn thaw(&self) {
        let now = Instant::now();
        self.lock().leases.values_mut().for_each(|l| l.until = now + l.ttl);
        self.signal.send_modify(|s| s.1 = false);
    }
}

impl State {
    fn apply(&mut self, ops: Vec<Op>) {
        let rev = self.rev + 1;
        let mut wrote = false;
        for op in ops {
            match op {
                Op::Put { key, value, lease } => {
                    wrote = true;
                    self.put(rev, key, value, lease);
                }
                Op::Delete { key } => wrote |= self.delete(rev, &key),
                Op::DeleteRange { from, to } => {
                    let span = (Bound::Included(from.as_slice()), Bound::Excluded(to.as_slice()));
                    let keys: Vec<_> = self.items.range::<[u8], _>(span).map(|(k, _)| k.clone()).collect();
                    for key in keys {
                        wrote |= self.delete(rev, &key);
                    }
                }
            }
        }
        if wrote {
            self.rev = rev;
        }
    }

    fn put(&mut self, rev: i64, key: Vec<u8>, value: Bytes, lease: i64) {
        let before = self.items.get(&key).cloned();
        let create_rev = before.as_ref().map_or(rev, |i| i.create_rev);
        let item = Item { key: key.clone(), value, create_rev, mod_rev: rev, lease };
        self.items.insert(key.clone(), item.clone());
        self.remember(Change { rev, key, before, after: Some(item) });
    }

    fn delete(&mut self, rev: i64, key: &[u8]) -> bool {
        let Some(before) = self.items.remove(key) else { return false };
        self.remember(Change { rev, key: key.to_vec(), before: Some(before), after: None });
        true
    }

    fn remember(&mut self, change: Change) {
        self.history.push_back(change);
        if self.history.len() > HISTORY_MAX
            && let Some(old) = self.history.pop_front()
        {
            self.compacted = self.compacted.max(old.rev + 1);
        }
    }

    /// Ends leases and deletes what hangs on them, one revision each, as etcd does.
    fn end_leases(&mut self, ids: &[i64]) {
        for id in ids {
            if self.leases.remove(id).is_some() {
                let keys = self.items.values().filter(|i| i.lease == *id).map(|i| i.key.clone());
                let ops = keys.map(|key| Op::Delete { key }).collect();
                self.apply(ops);
            }
        }
    }
}

/// Ends leases that ran out; ends itself with the store. A thread, because the runtime that made the first lease may be
/// that of an owner which is killed.
fn sweep_leases(store: Weak<Memory>) {
    loop {
        std::thread::sleep(SWEEP_EVERY);
        let Some(store) = store.upgrade() else { return };
        if store.signal.borrow().1 {
            continue;
        }
        let now = Instant::now();
        let mut state = store.lock();
        let ended: Vec<i64> = state.leases.iter().filter(|(_, l)| l.until <= now).map(|(id, _)| *id).collect();
        state.end_leases(&ended);
        let rev = state.rev;
        drop(state);
        store.announce(rev);
    }
}
