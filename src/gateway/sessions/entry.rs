//! One session and its lock.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicI64},
};

use holdfast_core::{id::SessionId, session::Session, time::Mono};

/// A session as the maps share it.
#[derive(Debug)]
pub(super) struct Entry {
    pub id: SessionId,
    state: Mutex<State>,
    /// Ops and bytes held; written under the lock, read without it.
    pub held_ops: AtomicI64,
    pub held_bytes: AtomicI64,
    /// A read of the directory is queued or under way.
    pub resolving: AtomicBool,
}

/// What the lock protects.
#[derive(Debug)]
pub(super) struct State {
    pub session: Session,
    /// Earliest entry for this session in the timer's heap.
    pub armed: Option<Mono>,
    /// Removed from the map: whoever still has the entry must look it up anew.
    pub gone: bool,
}

impl Entry {
    pub fn new(id: SessionId) -> Self {
        let state = State { session: Session::new(id.clone()), armed: None, gone: false };
        Self {
            id,
            state: Mutex::new(state),
            held_ops: AtomicI64::new(0),
            held_bytes: AtomicI64::new(0),
            resolving: AtomicBool::new(false),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
