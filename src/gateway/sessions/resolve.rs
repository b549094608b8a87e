//! Linearizable reads of the directory: one at a time per session, few at a time in all, until they succeed.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use holdfast_core::backoff::Backoff;
use tokio::sync::{Notify, watch};

use super::{Sessions, entry::Entry};

/// Reads under way at once: with 2 ms each, 32,000 a second.
const READS_MAX: usize = 64;
/// Waits between tries of one session (design 8.3).
const RETRY_BASE: Duration = Duration::from_millis(50);
const RETRY_CAP: Duration = Duration::from_secs(1);

/// Sessions that want a read; each is in at most once, so there are never more than sessions.
#[derive(Default)]
pub(super) struct Resolver {
    queue: Mutex<VecDeque<Arc<Entry>>>,
    wake: Notify,
}

impl Resolver {
    /// Under the session's lock. A read that is under way counts: it began before, but whoever asks had no newer word.
    pub fn want(&self, entry: &Arc<Entry>) {
        if !entry.resolving.swap(true, Ordering::AcqRel) {
            self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(entry.clone());
            self.wake.notify_one();
        }
    }

    fn next(&self) -> Option<Arc<Entry>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl Sessions {
    /// Reads the directory for sessions that want it until `stop` is true.
    pub async fn run_resolver(&self, mut stop: watch::Receiver<bool>) {
        let mut reads = FuturesUnordered::new();
        while !*stop.borrow() {
            while reads.len() < READS_MAX
                && let Some(entry) = self.resolver.next()
            {
                reads.push(self.read(entry));
            }
            tokio::select! {
                Some(()) = reads.next() => {}
                () = self.resolver.wake.notified() => {}
                changed = stop.changed() => if changed.is_err() { break },
            }
        }
    }

    async fn read(&self, entry: Arc<Entry>) {
        let mut backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
        let route = loop {
            let read = self.directory.resolve(&entry.id).await;
            self.metrics.resolved(read.is_ok());
            match read {
                Ok(route) => break route,
                Err(error) => tracing::debug!(session = %entry.id, error, "the directory cannot be read"),
            }
            tokio::time::sleep(backoff.next(rand::random())).await;
            if entry.lock().gone {
                return;
            }
        };
        // Before the answer is handled: it may make the session ask again.
        entry.resolving.store(false, Ordering::Release);
        self.drive(&entry, |s, now, out| match &route {
            Some(route) => s.handle_route(now, route, out),
            None => s.handle_absent(now, out),
        });
    }
}
