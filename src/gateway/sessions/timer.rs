//! Deadlines of all sessions in one heap, served by one task.

use std::{
    cmp::Ordering,
    collections::BinaryHeap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use holdfast_core::time::Mono;
use tokio::sync::{Notify, watch};

use super::{
    Sessions,
    entry::{Entry, State},
};

/// Timers served before other tasks get a turn.
const DUE_PER_TURN: usize = 256;

/// From an input to the earliest timer after it.
pub(super) const SOONEST: Duration = Duration::from_millis(1);

/// The heap. A session has an entry only for its earliest deadline, and what is left of later ones until they pass.
#[derive(Default)]
pub(super) struct Timer {
    heap: Mutex<BinaryHeap<Due>>,
    earlier: Notify,
}

struct Due {
    at: Mono,
    entry: Weak<Entry>,
}

impl Timer {
    /// Puts the session's deadline in, if it is earlier than what is in for it. Under the session's lock. Never before
    /// `soonest`: a deadline that stays due must not keep a processor busy.
    pub fn arm(&self, entry: &Arc<Entry>, state: &mut State, soonest: Mono) {
        let Some(at) = state.session.poll_timeout().map(|at| at.max(soonest)) else { return };
        if state.armed.is_some_and(|armed| armed <= at) {
            return;
        }
        state.armed = Some(at);
        let first = {
            let mut heap = self.lock();
            let first = heap.peek().is_none_or(|due| at < due.at);
            heap.push(Due { at, entry: Arc::downgrade(entry) });
            first
        };
        if first {
            self.earlier.notify_one();
        }
    }

    /// The next one that is due, or when there will be one.
    fn pop(&self, now: Mono) -> Result<Due, Option<Mono>> {
        let mut heap = self.lock();
        match heap.peek() {
            Some(due) if due.at <= now => heap.pop().ok_or(None),
            due => Err(due.map(|d| d.at)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BinaryHeap<Due>> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    /// Serves the deadlines of all sessions until `stop` is true.
    pub async fn run_timers(&self, mut stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            let next = self.serve_due();
            let wait = async {
                match next {
                    Ok(()) => tokio::task::yield_now().await,
                    Err(Some(at)) => tokio::time::sleep_until(self.clock.instant(at).into()).await,
                    Err(None) => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = self.timer.earlier.notified() => {}
                changed = stop.changed() => if changed.is_err() { break },
            }
        }
    }

    /// Some of what is due; `Err`: nothing is, until then.
    fn serve_due(&self) -> Result<(), Option<Mono>> {
        for _ in 0..DUE_PER_TURN {
            let due = self.timer.pop(self.clock.now().mono)?;
            if let Some(entry) = due.entry.upgrade() {
                self.fire(&entry, due.at);
            }
        }
        Ok(())
    }

    fn fire(&self, entry: &Arc<Entry>, at: Mono) {
        {
            let mut state = entry.lock();
            if state.armed != Some(at) {
                return; // what is left of a deadline that moved
            }
            state.armed = None;
        }
        self.drive(entry, |s, now, out| {
            if s.poll_timeout().is_some_and(|due| due <= now.mono) {
                s.handle_timeout(now, out);
            }
        });
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    /// The earliest is the greatest: `BinaryHeap` gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.cmp(&self.at)
    }
}
