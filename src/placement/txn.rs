//! Guarded writes: every transaction compares the leader's key and each unit's `mod_revision` (design 8.2).

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use holdfast_core::{directory::PlacementUnit, proto::Placement};
use prost::Message as _;

use super::{
    keys,
    kv::{Compare, KvError, Op, TXN_OPS_MAX},
    leader::Term,
    shared::Shared,
    unknown,
};

/// Units of one transaction: etcd's limit of operations, less the leader's compare.
pub(crate) const UNITS_PER_TXN: usize = TXN_OPS_MAX - 1;

/// Linearizable reads at once after a failed transaction.
const REREADS: usize = 16;

/// A unit's next placement.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) unit: PlacementUnit,
    pub(crate) placement: Placement,
    /// Fields of a newer version, encoded: kept.
    pub(crate) unknown: Bytes,
    /// `mod_revision` it was decided on; 0 = absent.
    pub(crate) on: i64,
}

/// Why nothing was written, as far as is known.
#[derive(Debug)]
pub(crate) enum Failed {
    /// Somebody else wrote first, or the term is over. The units were read again.
    Conflict,
    /// etcd did not answer; the units were read again as far as possible.
    Store(KvError),
}

/// Writes at most [`UNITS_PER_TXN`] placements and one more operation; the revision. The table follows.
pub(crate) async fn commit(
    shared: &Arc<Shared>,
    term: Term,
    writes: &[Write],
    extra: Option<Op>,
) -> Result<i64, Failed> {
    let mut compares = vec![term.fence()];
    compares.extend(writes.iter().map(|w| Compare::ModRev(keys::unit(&w.unit), w.on)));
    let mut ops: Vec<Op> =
        writes.iter().map(|w| Op::put(keys::unit(&w.unit), unknown::encode(&w.placement, &w.unknown))).collect();
    ops.extend(extra);
    let failed = match shared.kv.txn(compares, ops).await {
        Ok(reply) if reply.succeeded => {
            let mut table = shared.table();
            for w in writes {
                table.put_unit(w.unit.clone(), w.placement.clone(), w.unknown.clone(), reply.revision);
            }
            return Ok(reply.revision);
        }
        Ok(_) => Failed::Conflict,
        Err(e) => Failed::Store(e),
    };
    reread(shared, writes).await;
    Err(failed)
}

/// Never retry blindly: look first.
async fn reread(shared: &Arc<Shared>, writes: &[Write]) {
    let units: Vec<PlacementUnit> = writes.iter().map(|w| w.unit.clone()).collect();
    stream::iter(units)
        .for_each_concurrent(REREADS, |unit| async move {
            if let Err(e) = read(shared, &unit).await {
                tracing::debug!(unit = unit.as_str(), error = %e, "not read again");
            }
        })
        .await;
}

/// A linearizable read, taken into the table: what is there, if anything, and the revision it was read at.
pub(crate) async fn read(shared: &Arc<Shared>, unit: &PlacementUnit) -> Result<(Option<Found>, i64), KvError> {
    let (item, revision) = shared.kv.get(&keys::unit(unit)).await?;
    let found = item.and_then(|i| {
        let unknown = unknown::fields(&i.value, unknown::PLACEMENT_KNOWN);
        Some(Found { placement: Placement::decode(i.value).ok()?, unknown, mod_rev: i.mod_rev })
    });
    let mut table = shared.table();
    match &found {
        Some(f) => table.put_unit(unit.clone(), f.placement.clone(), f.unknown.clone(), f.mod_rev),
        None => table.remove_unit(unit, revision + 1),
    }
    Ok((found, revision))
}

/// What etcd has of a unit.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) placement: Placement,
    pub(crate) unknown: Bytes,
    pub(crate) mod_rev: i64,
}
