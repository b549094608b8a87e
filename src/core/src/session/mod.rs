//! The gateway's half of one session (design 4.3, 5, 6).
//!
//! ```text
//!             handle_route                 handle_link_up              Joined
//! unbound ────────────────▶ bound (boot, epoch) ──────────▶ replayed ──────────▶ live
//!    ▲  parked, absent          ▲   │ Join, Attach…, held ops in arrival order, ReplayDone, then new ops
//!    └──────────────────────────┘   └◀── link down, NotOwner, 1xx, higher epoch: ops stay held
//! ```
//!
//! Inputs are `handle_*(now, …, out)`; everything to be done is appended to `out`, in order, and the driver does it
//! before it lets go of the session's lock. After each input the driver asks `poll_timeout`.

use std::collections::BTreeMap;
use std::sync::Arc;

pub use rates::{OpRate, OpRates};
pub use types::*;

use crate::{
    id::{Boot, ConnId, Lane, SessionId},
    time::{Mono, Now, Wall},
};
use armed::Armed;
use attachment::Attachment;
use binding::Binding;
use hold::Hold;
use refused::Refused;
use ring::Ring;

mod armed;
mod attach;
mod attachment;
mod binding;
mod bucket;
mod catchup;
mod deliver;
mod hold;
mod op;
mod owner_msg;
mod rates;
mod reaction;
mod refused;
mod ring;
mod settle;
mod timeout;
mod types;

/// Principals whose first deliveries are remembered: seats of a game, with room for those who watch and return.
const DELIVERIES_MAX: usize = 64;
/// A session without clients is kept this long, so that one that reloads its page finds the ring.
const LINGER_US: u64 = 5_000_000;

/// How the owner's store is, as far as it said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Ok,
    Down { retry_after_ms: u32 },
    ReadOnly { retry_after_ms: u32 },
}

/// One session at this gateway.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    limits: Limits,
    rates: Arc<OpRates>,
    kind: Arc<str>,
    /// The directory's newest word; epochs only grow.
    route: Option<Route>,
    binding: Option<Binding>,
    store: Store,
    atts: BTreeMap<ConnId, Attachment>,
    hold: Hold,
    /// Where a lane must go back to after a retryable nack.
    resume_at: BTreeMap<Lane, u64>,
    refused: Refused,
    ring: Ring,
    armed: Armed,
    /// Newest version this gateway has, and the newest epoch it was live in.
    ver: u64,
    epoch: u64,
    /// First deliveries of stamped events, newest last, at most two per principal.
    deliveries: BTreeMap<Arc<str>, Vec<(u64, Wall)>>,
    /// Since when nobody answers; ends with the first echo.
    lost_at: Option<Mono>,
    moving_at: Option<Mono>,
    presence_at: Option<Mono>,
    linger_until: Option<Mono>,
    joined_presence: (u32, u32),
}

impl Session {
    /// A session nobody has attached to yet.
    #[must_use]
    pub fn new(id: SessionId) -> Self {
        Self {
            id,
            limits: Limits::for_kind(""),
            rates: Arc::default(),
            kind: "".into(),
            route: None,
            binding: None,
            store: Store::Ok,
            atts: BTreeMap::new(),
            hold: Hold::default(),
            resume_at: BTreeMap::new(),
            refused: Refused::default(),
            ring: Ring::default(),
            armed: Armed::default(),
            ver: 0,
            epoch: 0,
            deliveries: BTreeMap::new(),
            lost_at: None,
            moving_at: None,
            presence_at: None,
            linger_until: None,
            joined_presence: (0, 0),
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Its kind, with parameters; empty while no route is known.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Limits in force.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Rates that hold from the next op on. Cheap when they are those it has.
    pub fn set_rates(&mut self, rates: &Arc<OpRates>) {
        if !Arc::ptr_eq(&self.rates, rates) {
            self.rates = rates.clone();
            self.limits = self.limits.clone().with_rates(&self.kind, rates);
        }
    }

    /// Nothing is attached and nothing is held: the driver may drop the object.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.atts.is_empty() && self.hold.is_empty() && self.linger_until.is_none() && self.binding.is_none()
    }

    /// (boot, epoch) it is bound to; `None` = unbound or parked.
    #[must_use]
    pub fn binding(&self) -> Option<(Boot, u64)> {
        self.binding.as_ref().map(|b| (b.boot, b.epoch))
    }

    /// Whether the owner has answered the join of the current binding.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.binding.as_ref().is_some_and(|b| b.joined)
    }

    /// Clients attached.
    #[must_use]
    pub fn attached(&self) -> usize {
        self.atts.len()
    }

    /// Held ops, in arrival order.
    pub fn held(&self) -> impl Iterator<Item = HeldView<'_>> {
        self.hold.iter().map(|h| HeldView {
            principal: &h.principal,
            lane: h.lane,
            seq: h.seq,
            arrived_at: h.arrived_at,
            sends: h.sends,
            digest: &h.digest,
            held: &h.bytes,
        })
    }

    /// The first byte of the `stamp` event `ver` left for the client (design 5.2): only the first delivery over all
    /// connections of a principal counts.
    pub fn handle_delivered(&mut self, _now: Now, conn: ConnId, ver: u64, sent_at: Wall, out: &mut Vec<Action>) {
        let Some(att) = self.atts.get(&conn) else { return };
        let principal = att.client.principal.clone();
        if self.deliveries.len() >= DELIVERIES_MAX && !self.deliveries.contains_key(&principal) {
            return;
        }
        let known = self.deliveries.entry(principal).or_default();
        if known.last().is_some_and(|(v, _)| *v >= ver) {
            return;
        }
        known.push((ver, sent_at));
        if known.len() > 2 {
            known.remove(0);
        }
        let att = att.client.att;
        let session = self.id.to_string();
        self.send(
            crate::proto::gateway_msg::M::Delivered(crate::proto::gateway_msg::Delivered {
                session,
                ver,
                att,
                sent_at_us: sent_at.0,
            }),
            out,
        );
    }

    /// Newest stamped event delivered to `principal` before `at`: (sent_at, ver).
    fn delivered_before(&self, principal: &str, at: Wall) -> (u64, u64) {
        let known = self.deliveries.get(principal).map(Vec::as_slice).unwrap_or_default();
        known.iter().rev().find(|(_, sent)| *sent <= at).map_or((0, 0), |(ver, sent)| (sent.0, *ver))
    }
}

#[cfg(test)]
mod tests;
