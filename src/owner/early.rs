//! Gateways that were faster than this owner's own watch of the directory.
//!
//! A gateway and the new owner hear of a move at the same time, each over a watch of its own. A `Join` that comes first would
//! be answered `NotOwner`, and everything held resent after a pause of 50 ms or more. So what names a later epoch than the
//! directory's cache here waits for the cache, but not for long: the gateway may be the one that is mistaken.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use holdfast_core::{id::SessionId, proto::gateway_msg};
use tokio::time::Instant;

use super::link::LinkTx;

/// The longest wait. Two watches of one etcd are some milliseconds apart; under load, tens.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(250);
/// How often waits that are over are looked for.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Messages that may wait in all. 10,000 sessions with a join, two attaches, presence, an op and the end of the replay are
/// 60,000; at 250 bytes each (the ops' bytes are the links') 16 MiB.
const MSGS_MAX: usize = 65_536;

/// What waits, by session.
#[derive(Debug, Default)]
pub(super) struct Early {
    sessions: Mutex<HashMap<SessionId, Waiting>>,
    /// Sessions in it, so that nobody locks while there are none.
    len: AtomicUsize,
    msgs: AtomicUsize,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    msgs: VecDeque<(LinkTx, gateway_msg::M)>,
    /// Somebody is passing them on, in order.
    passing: bool,
}

impl Early {
    /// Whether `session` waits: then what comes has to wait behind it.
    pub fn waits(&self, session: &SessionId) -> bool {
        self.len.load(Ordering::Acquire) > 0 && self.lock().contains_key(session)
    }

    /// Takes a message in; gives it back if there is no room, or (`first` not set) nothing waits any more.
    pub fn add(&self, session: &SessionId, link: &LinkTx, msg: gateway_msg::M, first: bool) -> Option<gateway_msg::M> {
        let mut sessions = self.lock();
        if self.msgs.load(Ordering::Relaxed) >= MSGS_MAX || (!first && !sessions.contains_key(session)) {
            return Some(msg);
        }
        let waiting = sessions.entry(session.clone()).or_insert_with(|| Waiting {
            since: Instant::now(),
            msgs: VecDeque::new(),
            passing: false,
        });
        waiting.msgs.push_back((link.clone(), msg));
        self.msgs.fetch_add(1, Ordering::Relaxed);
        self.len.store(sessions.len(), Ordering::Release);
        None
    }

    /// Passes on what waits for `session`, in order; what comes meanwhile follows. Not under the session's lock.
    pub fn pass(&self, session: &SessionId, mut to: impl FnMut(LinkTx, gateway_msg::M)) {
        if self.len.load(Ordering::Acquire) == 0 {
            return;
        }
        match self.lock().get_mut(session) {
            Some(waiting) if !waiting.passing => waiting.passing = true,
            _ => return,
        }
        while let Some((link, msg)) = self.next(session) {
            to(link, msg);
        }
    }

    /// The next message; the session waits no more when there is none.
    fn next(&self, session: &SessionId) -> Option<(LinkTx, gateway_msg::M)> {
        let mut sessions = self.lock();
        let next = sessions.get_mut(session).and_then(|w| w.msgs.pop_front());
        if next.is_some() {
            self.msgs.fetch_sub(1, Ordering::Relaxed);
        } else {
            sessions.remove(session);
            self.len.store(sessions.len(), Ordering::Release);
        }
        next
    }

    /// Sessions whose wait is over.
    pub fn over(&self) -> Vec<SessionId> {
        if self.len.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let sessions = self.lock();
        sessions.iter().filter(|(_, w)| w.since.elapsed() >= WAIT_MAX).map(|(s, _)| s.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Waiting>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
