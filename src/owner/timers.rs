//! One task that wakes all sessions: thousands of idle ones cost nothing.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{Mutex, PoisonError},
};

use holdfast_core::{id::SessionId, time::Mono};
use tokio::{sync::Notify, time::sleep_until};

use crate::clock::Clock;

/// Points in time at which sessions want to be woken. A session is in it at most twice: a later point of its is asked for
/// anew when the earlier one comes.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(Mono, SessionId)>>>,
    earlier: Notify,
}

impl Timers {
    /// Wakes `session` at `at`.
    pub fn add(&self, at: Mono, session: SessionId) {
        let mut heap = self.heap.lock().unwrap_or_else(PoisonError::into_inner);
        let first = heap.peek().is_none_or(|Reverse((first, _))| at < *first);
        heap.push(Reverse((at, session)));
        drop(heap);
        if first {
            self.earlier.notify_one();
        }
    }

    fn next(&self) -> Option<Mono> {
        let heap = self.heap.lock().unwrap_or_else(PoisonError::into_inner);
        heap.peek().map(|Reverse((at, _))| *at)
    }

    fn pop_due(&self, now: Mono) -> Option<SessionId> {
        let mut heap = self.heap.lock().unwrap_or_else(PoisonError::into_inner);
        if heap.peek().is_none_or(|Reverse((at, _))| *at > now) {
            return None;
        }
        heap.pop().map(|Reverse((_, session))| session)
    }

    /// Calls `wake` with each session whose time has come, for ever.
    pub async fn run(&self, clock: &Clock, wake: impl Fn(SessionId)) {
        loop {
            match self.next() {
                Some(at) => tokio::select! {
                    () = sleep_until(clock.instant(at).into()) => {}
                    () = self.earlier.notified() => continue,
                },
                None => self.earlier.notified().await,
            }
            let now = clock.now().mono;
            while let Some(session) = self.pop_due(now) {
                wake(session);
            }
        }
    }
}
