//! A running listener, as operators and the drain see it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use holdfast_core::id::ConnId;

use super::{
    connection::{Shared, label},
    limits::Stats,
    outbox::Outbox,
    port::Downstream as _,
};
use crate::transport::Peer;

/// What others may know and do about a running listener. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(super) shared: Arc<Shared>,
    pub(super) open: Arc<Mutex<HashMap<ConnId, Arc<Outbox>>>>,
}

/// One connection, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    /// Its id, as in `welcome.conn`.
    pub conn: String,
    /// Who is at its other end.
    pub peer: Peer,
    /// `sub`; `None` before hello.
    pub principal: Option<Arc<str>>,
    /// Attached sessions.
    pub sessions: Vec<String>,
    /// Bytes waiting for it.
    pub queued_bytes: usize,
}

impl Handle {
    /// Numbers.
    #[must_use]
    pub fn stats(&self) -> &Arc<Stats> {
        &self.shared.stats
    }

    /// The connections now.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionView> {
        let view = |o: &Arc<Outbox>| {
            let state = o.lock();
            let sessions = state.queue.sessions().map(ToString::to_string).collect();
            ConnectionView {
                conn: label(o.conn),
                peer: o.peer,
                principal: o.principal.get().cloned(),
                sessions,
                queued_bytes: state.queue.bytes(),
            }
        };
        self.outboxes().iter().map(view).collect()
    }

    /// Closes every connection with 1012 and a random wait within the spread (design 4.4), after what is queued.
    pub fn close_all(&self) {
        let spread = self.stats().spread_ms(self.shared.config.limits.reconnect.spread_ms);
        for outbox in self.outboxes() {
            outbox.close(1012, &format!(r#"{{"r":"drain","ms":{}}}"#, rand::random_range(0..=spread)));
        }
    }

    /// The connections now, by their downstream queues: for the drain.
    pub(super) fn outboxes(&self) -> Vec<Arc<Outbox>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
