//! The fast path: a gateway's connection to a node was refused; if the process is gone for sure, its lease is revoked
//! and nobody waits for the TTL (design 8.2). Safe, because the record fences on the epoch.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use holdfast_core::{id::Boot, proto::SuspectRequest};

use super::{
    probe,
    shared::{Shared, lock},
};

/// A live link that a gateway told of counts this long.
const LINK_COUNTS: Duration = Duration::from_secs(3);

/// Lives remembered as linked; older reports are dropped: 1,024 x 24 bytes.
const LINKS_MAX: usize = 1024;

/// Whether the lease was revoked.
pub(crate) async fn suspect(shared: &Arc<Shared>, request: SuspectRequest) -> bool {
    let boot = Boot(request.boot);
    if request.link_alive {
        let mut links = lock(&shared.links);
        links.retain(|_, at| at.elapsed() < LINK_COUNTS);
        if links.len() < LINKS_MAX {
            links.insert(boot, Instant::now());
        }
        return false;
    }
    let known = shared.table().node(&request.node).map(|(info, _)| info.clone());
    let Some(info) = known.filter(|i| i.boot == boot.0 && i.lease != 0) else { return false };
    if !shared.config.fast_path || !lock(&shared.probing).insert(boot) {
        return false;
    }
    let acted = gone_for_sure(shared, &info.addr, (info.lease, boot)).await && revoke(shared, info.lease).await;
    lock(&shared.probing).remove(&boot);
    if acted {
        tracing::warn!(node = request.node, %boot, gateway = request.gateway, "the process is gone: its lease is revoked");
    }
    acted
}

fn linked(shared: &Shared, boot: Boot) -> bool {
    lock(&shared.links).get(&boot).is_some_and(|at| at.elapsed() < LINK_COUNTS)
}

/// Refused twice, no renewal in between, no live link.
async fn gone_for_sure(shared: &Shared, addr: &str, (lease, boot): (i64, Boot)) -> bool {
    if linked(shared, boot) {
        return false;
    }
    let Ok(before) = shared.kv.time_to_live(lease).await else { return false };
    if !probe::refused(addr).await || linked(shared, boot) {
        return false;
    }
    // a renewal puts the time left back up
    matches!(shared.kv.time_to_live(lease).await, Ok(after) if after <= before)
}

async fn revoke(shared: &Shared, lease: i64) -> bool {
    match shared.kv.revoke(lease).await {
        Ok(()) => true,
        Err(e) => {
            tracing::warn!(error = %e, "the lease of a dead node could not be revoked");
            false
        }
    }
}
