//! What must be true of a gateway's sessions, looked at after every input (design 6.1, 6.2, 15.16, 15.17).

use std::{collections::BTreeMap, time::Duration};

use holdfast_core::{
    id::Boot,
    proto::server_frame::F,
    session::{Action, Limits},
};

use crate::{check::Binding, counts::Seen, world::World};

/// Ops that this batch of actions tells a client about.
fn answered(out: &[Action]) -> Vec<u64> {
    out.iter()
        .filter_map(|a| match a {
            Action::Deliver { frame: F::Nack(n), .. } => n.op.as_ref().map(|o| o.seq),
            _ => None,
        })
        .collect()
}

impl World {
    /// Life and epoch of every binding: (gateway, session, boot, epoch).
    pub fn bindings(&self) -> impl Iterator<Item = (usize, usize, Boot, u64)> {
        self.gws.iter().enumerate().filter(|(_, g)| g.alive).flat_map(|(i, g)| {
            g.sessions.iter().filter_map(move |(s, gs)| gs.core.binding().map(|(b, e)| (i, *s, b, e)))
        })
    }

    /// Looks at one session of a gateway after an input.
    pub fn look_at_session(&mut self, gw: usize, session: usize, out: &[Action]) {
        let Some(gs) = self.gws[gw].sessions.get(&session) else { return };
        let bound = gs.core.binding().map(|(b, e)| (b.0, e));
        let held: BTreeMap<_, _> =
            gs.core.held().map(|h| ((h.lane.as_bytes().to_vec(), h.seq), h.arrived_at.0)).collect();
        let delta: i64 = out.iter().map(|a| if let Action::Held { ops, .. } = a { i64::from(*ops) } else { 0 }).sum();
        if gs.gauge + delta != held.len() as i64 {
            let what = format!("gateway {gw} s{session}: {} held, gauge says {}", held.len(), gs.gauge + delta);
            self.oracle.violate(0, what);
            return;
        }
        let before = gs.before.clone();
        self.binding_grows(gw, session, before.bound, bound);
        self.nothing_vanishes(gw, session, &before, &held, out);
        if let Some(gs) = self.gws[gw].sessions.get_mut(&session) {
            gs.before = Binding { bound: bound.or(before.bound), held, sick: before.sick };
        }
    }

    fn binding_grows(&mut self, gw: usize, session: usize, was: Option<(u64, u64)>, is: Option<(u64, u64)>) {
        let (Some(was), Some(is)) = (was, is) else { return };
        if is.1 < was.1 || (is.1 == was.1 && is.0 != was.0) {
            self.oracle.violate(16, format!("gateway {gw} s{session}: bound to {was:x?}, then to {is:x?}"));
        }
    }

    fn nothing_vanishes(
        &mut self,
        gw: usize,
        session: usize,
        before: &Binding,
        held: &BTreeMap<(Vec<u8>, u64), u64>,
        out: &[Action],
    ) {
        let ttl = Limits::for_kind(self.cfg.kind).hold_ttl;
        let told = answered(out);
        for (key, arrived) in before.held.iter().filter(|(k, _)| !held.contains_key(*k)) {
            let age = Duration::from_micros(self.time().wall.0.saturating_sub(*arrived));
            let record = &self.store.records[session];
            let settled = self.oracle.is_decided(session, record, key) || self.oracle.was_nacked(gw, session, key);
            if settled && self.clients.iter().any(|c| c.gone && c.lane == key.0) {
                self.counts.seen(Seen::OrphanSettled);
            }
            if !settled && age < ttl && !told.contains(&key.1) {
                let what = format!(
                    "gateway {gw} s{session}: op {}:{} left the hold unsettled after {age:?}",
                    crate::show::lane(&key.0),
                    key.1
                );
                self.oracle.violate(22, what);
                return;
            }
        }
    }

    /// 17: while the directory is out of reach, good bindings stay.
    pub fn check_pinned(&mut self) {
        let now: BTreeMap<_, _> = self.bindings().map(|(g, s, b, e)| ((g, s), (b, e))).collect();
        let moved = self.dir.pinned.iter().find(|(g, s, b, e)| now.get(&(*g, *s)).is_some_and(|n| *n != (*b, *e)));
        if let Some((g, s, b, e)) = moved {
            self.oracle.violate(17, format!("gateway {g} s{s} left ({b}, {e}) while the directory was out of reach"));
        }
    }
}
