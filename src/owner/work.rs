//! The tasks behind the sessions: store requests, the store's probe, notices to placement.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use holdfast_core::{
    id::{Boot, SessionId},
    proto::owner_msg,
    record::Written,
};
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    sessions::{Job, Notice, Sessions, Slot},
    store::Store,
};
use crate::placement::client::PlacementClient;

/// Store requests in flight at once. 1,120 claims are two round trips each: at 2 ms, 1,120 x 2 x 2 / 128 = 35 ms.
const STORE_PARALLEL: usize = 128;
/// Of these, first reads begin only while fewer than this many are in flight: the rest is kept for what is urgent.
const FIRST_PARALLEL: usize = 32;
/// Notices in flight at once.
const NOTICE_PARALLEL: usize = 32;
/// How often the store is probed, and how long it may take: down is known within 2 x 400 ms.
const PROBE_EVERY: Duration = Duration::from_millis(400);
const PROBE_MAX: Duration = Duration::from_millis(400);

/// Runs store requests, urgent ones first, until the queues end.
pub(super) async fn store(
    (mut urgent, mut first): (mpsc::Receiver<Job>, mpsc::Receiver<Job>),
    sessions: Arc<Sessions>,
    store: Store,
) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(ended) = running.join_next() => {
                if let Err(e) = ended {
                    tracing::error!("a store request's task ended badly: {e}");
                }
            }
            job = urgent.recv(), if running.len() < STORE_PARALLEL => match job {
                Some(job) => drop(running.spawn(request(job, sessions.clone(), store.clone()))),
                None => return,
            },
            Some(job) = first.recv(), if running.len() < FIRST_PARALLEL => {
                running.spawn(request(job, sessions.clone(), store.clone()));
            }
        }
    }
}

async fn request(job: Job, sessions: Arc<Sessions>, store: Store) {
    match job {
        Job::Load { slot, first } => {
            if !slot.unread.swap(false, Ordering::AcqRel) {
                return; // the urgent queue was faster
            }
            slot.urged.store(false, Ordering::Release);
            sessions.counters.loads.add(1);
            let loaded = store.load(&slot.id).await;
            let unowned_us = if first { unowned_us(&slot, &sessions) } else { 0 };
            if let Err(e) = &loaded {
                tracing::warn!(session = %slot.id, "record not read: {e}");
            }
            sessions.drive(&slot, |core, now, out| {
                if unowned_us > 0 {
                    core.set_outage(unowned_us);
                }
                core.handle_loaded(now, loaded, out);
                if let Some(fault) = core.fault() {
                    tracing::error!(session = %slot.id, "the record is damaged: {fault}");
                }
            });
        }
        Job::Write { slot, set } => {
            sessions.counters.writes.add(1);
            sessions.counters.events_written.add(set.entries.len() as u64);
            let written = store.write(&slot.id, *set).await;
            sessions.counters.answered.add(1);
            match written {
                Written::Conflict => sessions.counters.conflicts.add(1),
                Written::Unknown => sessions.counters.unknown.add(1),
                Written::Ok { .. } | Written::Unavailable => {}
            }
            sessions.drive(&slot, |core, now, out| core.handle_written(now, written, out));
        }
    }
}

/// Time since the session lost its last owner, by the directory (design 5.5); 0 = planned, new or not known.
fn unowned_us(slot: &Slot, sessions: &Sessions) -> u64 {
    match slot.unowned_from_ms.load(Ordering::Relaxed) {
        0 => 0,
        from_ms => sessions.clock.now().wall.0.saturating_sub(from_ms * 1000),
    }
}

/// Tells all gateways when the store stops or starts to answer, for the sessions nobody writes to.
pub(super) async fn probe(sessions: Arc<Sessions>, store: Store) {
    let mut well = true;
    loop {
        tokio::time::sleep(PROBE_EVERY).await;
        let now = store.is_well(PROBE_MAX).await;
        if now != well {
            well = now;
            tracing::warn!(well, "the store's health changed");
            let health = if well { owner_msg::health::Store::Ok } else { owner_msg::health::Store::Down };
            let msg = owner_msg::Health {
                store: health.into(),
                sessions: vec![],
                retry_after_ms: if well { 0 } else { 500 },
            };
            sessions.broadcast(&owner_msg::M::Health(msg));
        }
    }
}

/// Tells placement what only an owner knows, until the queue ends.
pub(super) async fn notices(mut queue: mpsc::Receiver<Notice>, sessions: Arc<Sessions>, placement: PlacementClient) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = running.join_next() => {}
            notice = queue.recv(), if running.len() < NOTICE_PARALLEL => {
                let Some(notice) = notice else { return };
                running.spawn(tell(notice, sessions.clone(), placement.clone()));
            }
        }
    }
}

async fn tell(notice: Notice, sessions: Arc<Sessions>, placement: PlacementClient) {
    let (node, boot) = (sessions.config().node.clone(), sessions.config().boot);
    let told = match &notice {
        Notice::Handed { session, ver } => placement.handed(session, *ver, &node, boot).await,
        Notice::Behind { session, record_epoch } => {
            if !is_behind(session, *record_epoch, &placement, boot).await {
                return;
            }
            placement.report_epoch(session, *record_epoch, &node, boot).await.map(|_| ())
        }
    };
    if let Err(e) = told {
        tracing::warn!(?notice, error = %e, "placement could not be told");
    }
}

/// A linearizable read shows that the directory still names us, with an epoch below the record's.
async fn is_behind(session: &SessionId, record_epoch: u64, placement: &PlacementClient, boot: Boot) -> bool {
    let Ok(reply) = placement.locate(session).await else { return false };
    reply.placement.is_some_and(|p| p.epoch < record_epoch && p.boot == boot.0)
}
