//! The leader's loop: gives the units of dead owners to the living, places parked ones, cleans up tombstones
//! (design 8.2).
//!
//! ```text
//! node lost --(few at once)--------------------------------------> re-home -> done
//!     \--(many, etcd was silent, or a new leader)--> hold --refused or TTL--/
//! ```

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, future::join_all, stream};
use holdfast_core::{
    assign::{Candidate, assign},
    directory::PlacementUnit,
    id::Boot,
    proto::{Placement, RehomeJob},
};
use prost::Message as _;
use tokio::time::{Instant, interval, timeout};

use super::{
    keys,
    kv::Op,
    leader::{Role, Term},
    probe,
    shared::Shared,
    table::{Owner, Taker, Unit, Vanished, base_kind},
    txn::{UNITS_PER_TXN, Write, commit},
};

/// Transactions in flight at once (design 8.2, measured: 5,600 units in 0.2-0.45 s).
const IN_FLIGHT: usize = 2;

/// The loop looks again at least this often.
const TICK: Duration = Duration::from_millis(100);

/// Tombstones stay this long (design 8.1).
const TOMBSTONE_KEPT_MS: u64 = 24 * 3600 * 1000;
const CLEAN_EVERY: Duration = Duration::from_secs(60);

/// Leads whenever this process is the leader; never returns.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut role = shared.role.clone();
    loop {
        let term = match &*role.borrow_and_update() {
            Role::Leader(term) => Some(*term),
            Role::Follower(_) => None,
        };
        if let Some(term) = term {
            lead(&shared, term).await;
        } else if role.changed().await.is_err() {
            return;
        }
    }
}

fn leading(shared: &Shared, term: Term) -> bool {
    *shared.role.borrow() == Role::Leader(term)
}

async fn lead(shared: &Arc<Shared>, term: Term) {
    let mut tick = interval(TICK);
    let mut clean = interval(CLEAN_EVERY);
    while leading(shared, term) && !shared.table().synced {
        tick.tick().await;
    }
    let fresh = Instant::now();
    let inherited: Vec<Owner> = {
        let now = shared.now_ms();
        let mut table = shared.table();
        table.restart_waits();
        table.orphaned(now).into_iter().map(|(owner, _)| owner).collect()
    };
    while leading(shared, term) {
        tokio::select! {
            _ = tick.tick() => {}
            _ = clean.tick() => { clean_up(shared, term).await; continue; }
            () = shared.wake.notified() => {}
        }
        let orphaned = {
            let now = shared.now_ms();
            shared.table().orphaned(now)
        };
        let suspicious = |o: &Owner| inherited.contains(o) && fresh.elapsed() < Duration::from_secs(30);
        for (owner, vanished) in release(shared, orphaned, suspicious).await {
            rehome(shared, term, &owner, vanished.at_ms).await;
        }
        unpark(shared, term).await;
    }
}

/// Those whose wait is over: at once, unless the mass-expiry guard holds them.
async fn release(
    shared: &Arc<Shared>,
    orphaned: Vec<(Owner, Vanished)>,
    suspicious: impl Fn(&Owner) -> bool,
) -> Vec<(Owner, Vanished)> {
    if orphaned.is_empty() || !shared.config.guard {
        return orphaned;
    }
    let (mass, silence) = {
        let table = shared.table();
        let (gone, known) = table.mass();
        (gone >= 2 && gone * 10 >= known * 3, table.silence_ended)
    };
    let checks = orphaned.into_iter().map(|(owner, vanished)| {
        let ttl = vanished.ttl();
        let silent = silence.is_some_and(|(at, silent)| silent > ttl / 2 && at.elapsed() < ttl);
        let hold = (mass || silent || suspicious(&owner)) && vanished.at.elapsed() < ttl;
        async move {
            let over = !hold || probe::refused(&vanished.info.addr).await;
            over.then_some((owner, vanished))
        }
    });
    join_all(checks).await.into_iter().flatten().collect()
}

/// Chooses nodes for units, kind by kind; `None` = no room.
pub(crate) fn plan(shared: &Shared, units: &[(PlacementUnit, Unit)], not: &Owner) -> Vec<Option<Taker>> {
    let mut kinds: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (i, (_, unit)) in units.iter().enumerate() {
        kinds.entry(base_kind(&unit.placement.kind)).or_default().push(i);
    }
    let mut chosen = vec![None; units.len()];
    let mut table = shared.table();
    for (kind, members) in kinds {
        let takers: Vec<Taker> =
            table.takers(kind).into_iter().filter(|t| (&t.name, &t.boot) != (&not.0, &not.1)).collect();
        let nodes: Vec<Candidate> =
            takers.iter().map(|t| Candidate { name: &t.name, cap: t.cap, room: t.room }).collect();
        let names: Vec<&str> = members.iter().map(|i| units[*i].0.as_str()).collect();
        for (i, to) in members.into_iter().zip(assign(&names, &nodes)) {
            chosen[i] = to.map(|n| takers[n].clone());
            if let Some(taker) = &chosen[i] {
                table.reserve(&taker.name);
            }
        }
    }
    chosen
}

/// The next placement of a unit: one epoch on; without a taker it is parked.
pub(crate) fn next(old: &Placement, to: Option<&Taker>, now_ms: u64, unowned_from_ms: u64) -> Placement {
    Placement {
        epoch: old.epoch + 1,
        owner: to.map_or_else(String::new, |t| t.name.to_string()),
        boot: to.map_or(0, |t| t.boot.0),
        moved_at_ms: now_ms,
        unowned_from_ms: if old.owner.is_empty() { old.unowned_from_ms } else { unowned_from_ms },
        ..old.clone()
    }
}

async fn rehome(shared: &Arc<Shared>, term: Term, owner: &Owner, unowned_from_ms: u64) {
    let started = Instant::now();
    let units = shared.table().owned(owner);
    tracing::info!(node = %owner.0, boot = %owner.1, units = units.len(), "re-home started");
    let (moved, parked) = place(shared, term, (owner, unowned_from_ms), units).await;
    let left = shared.table().owned_count(owner);
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    if parked > 0 {
        tracing::error!(node = %owner.0, parked, "no room: these units are parked");
    }
    tracing::info!(node = %owner.0, boot = %owner.1, moved, parked, left, ms, "re-home finished");
    let done = Op::Delete { key: keys::job(&owner.0, owner.1) };
    if left == 0
        && let Err(e) = shared.kv.txn(vec![term.fence()], vec![done]).await
    {
        tracing::debug!(error = %e, "the job's key stays");
    }
}

/// Parked units get an owner as soon as any node has room.
async fn unpark(shared: &Arc<Shared>, term: Term) {
    let parked: Owner = ("".into(), Boot(0));
    if shared.table().owned_count(&parked) == 0 {
        return;
    }
    let mut units = shared.table().owned(&parked);
    let room: BTreeMap<String, u64> = {
        let table = shared.table();
        let kinds = units.iter().map(|(_, u)| base_kind(&u.placement.kind).to_owned());
        let kinds: std::collections::BTreeSet<String> = kinds.collect();
        kinds.into_iter().map(|k| (k.clone(), table.takers(&k).iter().map(|t| u64::from(t.room)).sum())).collect()
    };
    units.retain(|(_, u)| room.get(base_kind(&u.placement.kind)).is_some_and(|r| *r > 0));
    if units.is_empty() {
        return;
    }
    let (moved, _) = place(shared, term, (&parked, 0), units).await;
    if moved > 0 {
        tracing::info!(moved, "parked units were placed");
    }
}

/// Plans and writes; how many were moved and parked. Failed batches are read again and left to the next turn.
async fn place(
    shared: &Arc<Shared>,
    term: Term,
    (from, unowned_from_ms): (&Owner, u64),
    units: Vec<(PlacementUnit, Unit)>,
) -> (usize, usize) {
    let takers = plan(shared, &units, from);
    let reserved: Vec<Arc<str>> = takers.iter().flatten().map(|t| t.name.clone()).collect();
    let now = shared.now_ms();
    let writes: Vec<Write> = units
        .iter()
        .zip(&takers)
        .filter(|((_, u), to)| to.is_some() || !u.placement.owner.is_empty())
        .map(|((unit, u), to)| Write {
            unit: unit.clone(),
            placement: next(&u.placement, to.as_ref(), now, unowned_from_ms),
            unknown: u.unknown.clone(),
            on: u.mod_rev,
        })
        .collect();
    let total = writes.len();
    let batches: Vec<(usize, Vec<Write>)> =
        writes.chunks(UNITS_PER_TXN).enumerate().map(|(i, b)| (i * UNITS_PER_TXN + b.len(), b.to_vec())).collect();
    let results = stream::iter(batches)
        .map(|(done, batch)| async move {
            let job = (!from.0.is_empty()).then(|| progress(from, term, (total, done), now));
            match commit(shared, term, &batch, job).await {
                Ok(_) => (batch.iter().filter(|w| !w.placement.owner.is_empty()).count(), batch.len()),
                Err(e) => {
                    tracing::warn!(error = ?e, units = batch.len(), "a re-home transaction failed");
                    (0, 0)
                }
            }
        })
        .buffer_unordered(IN_FLIGHT)
        .collect::<Vec<_>>()
        .await;
    let mut table = shared.table();
    reserved.iter().for_each(|n| table.release(n));
    results.into_iter().fold((0, 0), |(moved, parked), (m, n)| (moved + m, parked + n - m))
}

fn progress(owner: &Owner, term: Term, (total, done): (usize, usize), now_ms: u64) -> Op {
    let job = RehomeJob {
        total: u32::try_from(total).unwrap_or(u32::MAX),
        done: u32::try_from(done).unwrap_or(u32::MAX),
        leader_create_rev: term.create_rev,
        started_at_ms: now_ms,
        ..RehomeJob::default()
    };
    Op::put(keys::job(&owner.0, owner.1), job.encode_to_vec())
}

/// Deletes tombstones that are old enough.
async fn clean_up(shared: &Arc<Shared>, term: Term) {
    let before = shared.now_ms().saturating_sub(TOMBSTONE_KEPT_MS);
    let old = shared.table().tombstones(before, UNITS_PER_TXN);
    if old.is_empty() {
        return;
    }
    let mut compares = vec![term.fence()];
    compares.extend(old.iter().map(|(u, rev)| super::kv::Compare::ModRev(keys::unit(u), *rev)));
    let ops = old.iter().map(|(u, _)| Op::Delete { key: keys::unit(u) }).collect();
    if let Ok(Err(e)) = timeout(Duration::from_secs(5), shared.kv.txn(compares, ops)).await {
        tracing::debug!(error = %e, "tombstones stay");
    }
}
