//! Watches on the store in memory: they read its history.

use std::sync::Weak;

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::{
    super::{Batch, KvError, KvEvent, PROGRESS_EVERY, WATCH_SILENCE_MAX},
    Memory,
};

/// A watch on a [`Memory`].
#[derive(Debug)]
pub struct MemoryWatch {
    pub(super) store: Weak<Memory>,
    pub(super) signal: watch::Receiver<(i64, bool)>,
    pub(super) from: Vec<u8>,
    pub(super) to: Vec<u8>,
    pub(super) last: i64,
}

impl MemoryWatch {
    pub(in crate::placement::kv) async fn next(&mut self) -> Result<Batch, KvError> {
        let silence = Instant::now() + WATCH_SILENCE_MAX;
        let last = self.last;
        let progress = Instant::now() + PROGRESS_EVERY;
        loop {
            let frozen = self.signal.borrow_and_update().1;
            if !frozen {
                let batch = self.take()?;
                if !batch.events.is_empty() || Instant::now() >= progress {
                    return Ok(batch);
                }
            }
            if frozen && Instant::now() >= silence {
                self.last = last;
                return Err(KvError::Unknown("the watch was silent for 3 s".into()));
            }
            let until = if frozen { silence } else { progress };
            if let Ok(Err(_)) = timeout_at(until, self.signal.changed()).await {
                return Err(KvError::Unavailable("the store is gone".into()));
            }
        }
    }

    /// What happened since the last batch.
    fn take(&mut self) -> Result<Batch, KvError> {
        let store = self.store.upgrade().ok_or_else(|| KvError::Unavailable("the store is gone".into()))?;
        let state = store.lock();
        if self.last + 1 < state.compacted {
            return Err(KvError::Compacted(state.compacted));
        }
        let newer = state.history.partition_point(|c| c.rev <= self.last);
        let mine = state.history.range(newer..).filter(|c| c.key >= self.from && c.key < self.to);
        let events = mine
            .map(|c| match &c.after {
                Some(item) => KvEvent::Put(item.clone()),
                None => KvEvent::Delete { key: c.key.clone(), mod_rev: c.rev },
            })
            .collect();
        self.last = state.rev.max(self.last);
        Ok(Batch { events, revision: state.rev })
    }
}
