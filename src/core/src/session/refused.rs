//! Stamps of ops that were refused for now. The retry of the same bytes keeps the first stamp, so that nobody is charged
//! for our refusal (design 4.4); at another gateway that takes a receipt (design 5.6).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message;

use crate::{id::Lane, proto, session::hold::Held, time::Mono};

/// Refusals remembered per session: 64 x ~150 bytes = 10 KB.
const REFUSED_MAX: usize = 64;
/// As long as a receipt is good.
const REFUSED_FOR: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Refusal {
    principal: Arc<str>,
    digest: Bytes,
    stamp: proto::Stamp,
    at: Mono,
}

/// By lane and seq.
#[derive(Debug, Default)]
pub(super) struct Refused(BTreeMap<(Lane, u64), Refusal>);

impl Refused {
    /// Keeps the first stamp of an op that is not taken now.
    pub fn keep(&mut self, now: Mono, id: (Lane, u64), (principal, digest): (&Arc<str>, &Bytes), stamp: proto::Stamp) {
        let known = self.0.get(&id).is_some_and(|r| r.digest == *digest && r.principal == *principal);
        if self.0.len() >= REFUSED_MAX {
            self.0.retain(|_, r| now.since(r.at) <= REFUSED_FOR);
        }
        if !known && self.0.len() < REFUSED_MAX {
            self.0.insert(id, Refusal { principal: principal.clone(), digest: digest.clone(), stamp, at: now });
        }
    }

    /// The same, of one that was held.
    pub fn keep_held(&mut self, now: Mono, held: &Held) {
        let stamp = proto::HeldOp::decode(held.bytes.clone()).and_then(|op| proto::Stamp::decode(op.stamp));
        if let Ok(stamp) = stamp {
            self.keep(now, (held.lane, held.seq), (&held.principal, &held.digest), stamp);
        }
    }

    /// The stamp an op had when it was refused; only for the same bytes of the same sender.
    pub fn take(
        &mut self,
        now: Mono,
        id: (Lane, u64),
        (principal, digest): (&Arc<str>, &Bytes),
    ) -> Option<proto::Stamp> {
        let r = self.0.remove(&id)?;
        let same = r.digest == *digest && r.principal == *principal;
        (same && now.since(r.at) <= REFUSED_FOR).then_some(r.stamp)
    }
}
