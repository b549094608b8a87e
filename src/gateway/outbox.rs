//! One client's downstream queue, shared between the sessions that fill it and the task that empties it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::task::AtomicWaker;
use holdfast_core::id::ConnId;

use super::{
    port::Downstream,
    queue::{Budget, Queue},
};
use crate::{
    clock::Clock,
    transport::{Form, Peer, outgoing::Outgoing},
};

/// Longest close reason, in bytes (RFC 6455, 5.5).
pub const REASON_BYTES_MAX: usize = 123;

/// The queue, whoever wants the connection closed, and how to wake its task.
#[derive(Debug)]
pub struct Outbox {
    /// The connection it belongs to.
    pub conn: ConnId,
    /// Who is at its other end.
    pub peer: Peer,
    /// `sub`, once hello was said.
    pub principal: OnceLock<Arc<str>>,
    clock: Clock,
    waker: AtomicWaker,
    state: Mutex<State>,
}

/// What the lock protects.
#[derive(Debug)]
pub struct State {
    /// Frames waiting.
    pub queue: Queue,
    /// Close code and reason somebody asked for; the first one counts.
    pub close: Option<(u16, String)>,
    /// The connection takes no more frames.
    pub closed: bool,
}

impl Outbox {
    /// An empty one.
    #[must_use]
    pub fn new(conn: ConnId, peer: Peer, form: Form, budget: Budget, clock: Clock) -> Self {
        let state = State { queue: Queue::new(form, budget), close: None, closed: false };
        Self { conn, peer, principal: OnceLock::new(), clock, waker: AtomicWaker::new(), state: Mutex::new(state) }
    }

    /// The state; never held across a call into a session.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a frame without waking the task: for the task itself.
    pub fn push(&self, frame: Outgoing) {
        let now = self.clock.now().mono;
        let mut state = self.lock();
        if !state.closed {
            state.queue.push(now, frame);
        }
    }

    /// Who is woken when there is something to do.
    pub fn register(&self, waker: &std::task::Waker) {
        self.waker.register(waker);
    }
}

impl Downstream for Outbox {
    fn deliver(&self, frame: Outgoing) {
        self.push(frame);
        self.waker.wake();
    }

    fn close(&self, code: u16, reason: &str) {
        let mut end = reason.len().min(REASON_BYTES_MAX);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        self.lock().close.get_or_insert_with(|| (code, reason[..end].to_owned()));
        self.waker.wake();
    }
}
