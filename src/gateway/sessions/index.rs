//! Which sessions are bound to which life of a node, so that news of one touches only those concerned.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use holdfast_core::id::{Boot, SessionId};

use super::entry::Entry;

type ByBoot = HashMap<Boot, HashMap<SessionId, Arc<Entry>, foldhash::fast::RandomState>>;

/// Kept by `Action::Bound` and `Unbound`, under the session's lock.
#[derive(Default)]
pub(super) struct Index(Mutex<ByBoot>);

impl Index {
    pub fn bind(&self, boot: Boot, entry: &Arc<Entry>) {
        self.lock().entry(boot).or_default().insert(entry.id.clone(), entry.clone());
    }

    pub fn unbind(&self, boot: Boot, session: &SessionId) {
        let mut by_boot = self.lock();
        if let Some(sessions) = by_boot.get_mut(&boot) {
            sessions.remove(session);
            if sessions.is_empty() {
                by_boot.remove(&boot);
            }
        }
    }

    /// The session is removed: it must not be kept alive here, whatever it said last.
    pub fn forget(&self, session: &SessionId) {
        self.lock().retain(|_, sessions| {
            sessions.remove(session);
            !sessions.is_empty()
        });
    }

    pub fn count(&self, boot: Boot) -> usize {
        self.lock().get(&boot).map_or(0, HashMap::len)
    }

    /// The sessions bound to `boot` now.
    pub fn bound(&self, boot: Boot) -> Vec<Arc<Entry>> {
        self.lock().get(&boot).map(|s| s.values().cloned().collect()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, ByBoot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
