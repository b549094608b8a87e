//! Budgets for held ops (design 6.6): asked before an op is taken, never enforced on what is held.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use super::{Held, entry::Entry};
use crate::{gateway::run::HeldBudget, metrics::Metrics};

/// The gateway's totals against their limits.
#[derive(Debug)]
pub(super) struct Budget {
    limits: HeldBudget,
    metrics: Arc<Metrics>,
    ops: AtomicI64,
    bytes: AtomicI64,
}

impl Budget {
    pub fn new(limits: HeldBudget, metrics: Arc<Metrics>) -> Self {
        Self { limits, metrics, ops: AtomicI64::new(0), bytes: AtomicI64::new(0) }
    }

    pub fn limits(&self) -> &HeldBudget {
        &self.limits
    }

    /// Whether one more op of `bytes` fits. Concurrent askers may overshoot by one op each: one per worker thread.
    pub fn room(&self, entry: &Entry, bytes: u64) -> bool {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let fits = |now: &AtomicI64, more: i64, max: u64| {
            now.load(Ordering::Relaxed).saturating_add(more) <= i64::try_from(max).unwrap_or(i64::MAX)
        };
        fits(&self.ops, 1, self.limits.ops_max.into())
            && fits(&self.bytes, bytes, self.limits.bytes_max)
            && fits(&entry.held_bytes, bytes, self.limits.session_bytes_max)
    }

    /// What a session holds has changed.
    pub fn change(&self, entry: &Entry, by: Held) {
        self.ops.fetch_add(by.ops, Ordering::Relaxed);
        self.bytes.fetch_add(by.bytes, Ordering::Relaxed);
        entry.held_ops.fetch_add(by.ops, Ordering::Relaxed);
        entry.held_bytes.fetch_add(by.bytes, Ordering::Relaxed);
        self.metrics.held(by.ops, by.bytes);
    }

    /// Ops held by the gateway.
    pub fn ops(&self) -> i64 {
        self.ops.load(Ordering::Relaxed)
    }
}
