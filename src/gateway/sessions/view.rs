//! The sessions, for operators.

use std::sync::{Arc, atomic::Ordering};

use holdfast_core::id::Boot;

use super::{Sessions, entry::Entry};
use crate::gateway::run::{HeldOp, SessionSummary};

impl Sessions {
    /// Sessions here now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// None at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Ops held by the gateway.
    #[must_use]
    pub fn held_ops(&self) -> u64 {
        u64::try_from(self.budget.ops()).unwrap_or(0)
    }

    /// Sessions bound to this life of an owner.
    #[must_use]
    pub fn bound_to(&self, boot: Boot) -> usize {
        self.index.count(boot)
    }

    /// Up to `limit` sessions, in no order.
    #[must_use]
    pub fn summaries(&self, limit: usize) -> Vec<SessionSummary> {
        let view = |entry: &Arc<Entry>| {
            let state = entry.lock();
            SessionSummary {
                session: entry.id.clone(),
                binding: state.session.binding(),
                held: usize::try_from(entry.held_ops.load(Ordering::Relaxed)).unwrap_or(0),
            }
        };
        self.entries(limit, |_| true).iter().map(view).collect()
    }

    /// Up to `limit` held ops, the oldest first.
    #[must_use]
    pub fn held(&self, limit: usize) -> Vec<HeldOp> {
        let now = self.clock.now().wall;
        let mut all = Vec::new();
        for entry in self.entries(limit, |e| e.held_ops.load(Ordering::Relaxed) > 0) {
            let state = entry.lock();
            all.extend(state.session.held().take(limit).map(|h| HeldOp {
                session: entry.id.clone(),
                principal: h.principal.into(),
                lane: format!("{:?}", h.lane),
                seq: h.seq,
                age_us: now.0.saturating_sub(h.arrived_at.0),
                sends: h.sends,
                bytes: h.held.len(),
            }));
        }
        all.sort_by_key(|op| std::cmp::Reverse(op.age_us));
        all.truncate(limit);
        all
    }

    /// Entries out of the map, so that no shard is locked while a session is.
    fn entries(&self, limit: usize, is: impl Fn(&Entry) -> bool) -> Vec<Arc<Entry>> {
        self.map.iter().filter(|e| is(e.value())).take(limit).map(|e| e.value().clone()).collect()
    }
}
