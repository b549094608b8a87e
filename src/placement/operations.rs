//! What the placement service does to one session at a time. Only the leader; each write is guarded (design 8.2).

use std::sync::Arc;

use bytes::Bytes;
use holdfast_core::{
    directory::PlacementUnit,
    id::{Boot, SessionId},
    proto::{NodeInfo, Placement, PlacementReply, placement::State},
};
use prost::Message as _;
use tonic::Status;

use super::{
    keys,
    kv::{Compare, Op},
    leader::{Role, Term},
    rehome,
    shared::Shared,
    table::{Owner, Taker, Unit},
    txn::{Failed, Write, commit, read},
    unknown,
};

/// Tries of one operation against writers that were faster.
const TRIES: usize = 4;

/// Metadata of a refusal by a follower: the leader's `host:port`.
pub const LEADER_METADATA: &str = "holdfast-leader";

/// The term, if this process leads and its table is complete.
pub(crate) fn term(shared: &Shared) -> Result<Term, Status> {
    let leader = match &*shared.role.borrow() {
        Role::Leader(term) if shared.table().synced => return Ok(*term),
        Role::Leader(_) => return Err(Status::unavailable("the leader is not ready yet")),
        Role::Follower(leader) => leader.clone(),
    };
    let addr = leader.map(|l| l.addr).unwrap_or_default();
    let mut status = Status::failed_precondition(format!("not the leader; the leader is \"{addr}\""));
    if let Ok(value) = addr.parse() {
        status.metadata_mut().insert(LEADER_METADATA, value);
    }
    Err(status)
}

pub(crate) fn session(id: &str) -> Result<SessionId, Status> {
    SessionId::parse(id).map_err(|e| Status::invalid_argument(e.to_string()))
}

/// A kind of session: `[a-z0-9_-]{1,32}`, then parameters after `:`, 128 bytes in all.
fn valid_kind(kind: &str) -> bool {
    let base = super::table::base_kind(kind);
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b);
    (1..=32).contains(&base.len())
        && base.bytes().all(plain)
        && kind.len() <= 128
        && kind.bytes().all(|b| b.is_ascii_graphic())
}

/// The linearizable answer about a session.
pub(crate) async fn locate(shared: &Arc<Shared>, id: &SessionId) -> Result<PlacementReply, Status> {
    let (found, revision) = read(shared, &PlacementUnit::of(id)).await.map_err(unavailable)?;
    let found = found.ok_or_else(|| Status::not_found(format!("no session {id}")))?;
    Ok(reply(shared, id, found.placement, revision))
}

fn reply(shared: &Shared, id: &SessionId, placement: Placement, revision: i64) -> PlacementReply {
    let table = shared.table();
    let addr = table.node(&placement.owner).filter(|(n, _)| n.boot == placement.boot).map(|(n, _)| n.addr.clone());
    PlacementReply {
        session: id.to_string(),
        kind: placement.kind.clone(),
        addr: addr.unwrap_or_default(),
        placement: Some(placement),
        revision,
    }
}

fn unavailable(e: super::kv::KvError) -> Status {
    Status::unavailable(format!("the directory did not answer: {e}"))
}

/// Creates a session, or says where it is. Without room anywhere it is parked and placed later.
pub(crate) async fn create(
    shared: &Arc<Shared>,
    id: &SessionId,
    kind: &str,
    zone: &str,
) -> Result<PlacementReply, Status> {
    if !valid_kind(kind) {
        return Err(Status::invalid_argument(
            "kind: 1 to 32 of a-z 0-9 _ -, then parameters after ':'; 128 bytes in all",
        ));
    }
    let unit = PlacementUnit::of(id);
    for _ in 0..TRIES {
        let term = term(shared)?;
        let known = shared.table().unit(&unit).cloned();
        if let Some(known) = known {
            if super::table::base_kind(&known.placement.kind) != super::table::base_kind(kind) {
                return Err(Status::already_exists(format!("{id} is a {}", known.placement.kind)));
            }
            return Ok(reply(shared, id, known.placement, known.mod_rev));
        }
        let taker = choose(shared, kind, zone, id);
        let placement = Placement {
            epoch: 1,
            owner: taker.as_ref().map_or_else(String::new, |t| t.name.to_string()),
            boot: taker.as_ref().map_or(0, |t| t.boot.0),
            state: State::Active.into(),
            moved_at_ms: shared.now_ms(),
            kind: kind.into(),
            unowned_from_ms: 0,
        };
        let write = Write { unit: unit.clone(), placement: placement.clone(), unknown: Bytes::new(), on: 0 };
        let result = commit(shared, term, &[write], None).await;
        shared.table().release(&placement.owner);
        match result {
            Ok(revision) => {
                if taker.is_none() {
                    tracing::error!(session = %id, kind, "no room: created without an owner");
                }
                return Ok(reply(shared, id, placement, revision));
            }
            Err(Failed::Conflict) => {}
            Err(Failed::Store(e)) => return Err(unavailable(e)),
        }
    }
    Err(Status::aborted("others were faster each time"))
}

/// The node with the most room in proportion, of the wanted zone if one there has any; its room is reserved.
fn choose(shared: &Shared, kind: &str, zone: &str, id: &SessionId) -> Option<Taker> {
    let mut table = shared.table();
    let open: Vec<Taker> = table.takers(kind).into_iter().filter(|t| t.room > 0).collect();
    let near: Vec<&Taker> = open.iter().filter(|t| !zone.is_empty() && t.zone == zone).collect();
    let pool = if near.is_empty() { open.iter().collect() } else { near };
    let share = |t: &Taker| u64::from(t.room) * 1_000_000 / u64::from(t.cap.max(1));
    let best = pool.iter().map(|t| share(t)).max()?;
    let equal: Vec<&Taker> = pool.into_iter().filter(|t| share(t) == best).collect();
    let nodes: Vec<_> =
        equal.iter().map(|t| holdfast_core::assign::Candidate { name: &t.name, cap: 1, room: 1 }).collect();
    let chosen = holdfast_core::assign::assign(&[id.as_str()], &nodes).first().copied().flatten()?;
    let taker = equal.get(chosen).map(|t| (*t).clone())?;
    table.reserve(&taker.name);
    Some(taker)
}

/// Marks a session as ended; its tombstone stays a day.
pub(crate) async fn end(shared: &Arc<Shared>, id: &SessionId) -> Result<PlacementReply, Status> {
    let now = shared.now_ms();
    let ended = |old: &Placement| {
        (old.state() != State::Ended).then(|| Placement { state: State::Ended.into(), moved_at_ms: now, ..old.clone() })
    };
    change(shared, id, ended).await
}

/// A record is ahead of the directory (a restored etcd): one epoch above the record, for the owner as it is.
pub(crate) async fn report_epoch(shared: &Arc<Shared>, id: &SessionId, record: u64) -> Result<PlacementReply, Status> {
    let now = shared.now_ms();
    let ahead = |old: &Placement| {
        (old.epoch < record).then(|| Placement {
            epoch: record + 1,
            moved_at_ms: now,
            unowned_from_ms: 0,
            ..old.clone()
        })
    };
    let reply = change(shared, id, ahead).await?;
    if reply.placement.as_ref().is_some_and(|p| p.epoch == record + 1) {
        tracing::warn!(session = %id, record_epoch = record, "a record was ahead of the directory");
    }
    Ok(reply)
}

/// Reads, decides, writes; `None` from `decide` = it is as it should be.
async fn change(
    shared: &Arc<Shared>,
    id: &SessionId,
    decide: impl Fn(&Placement) -> Option<Placement>,
) -> Result<PlacementReply, Status> {
    let unit = PlacementUnit::of(id);
    for _ in 0..TRIES {
        let term = term(shared)?;
        let (found, revision) = read(shared, &unit).await.map_err(unavailable)?;
        let old = found.ok_or_else(|| Status::not_found(format!("no session {id}")))?;
        let Some(placement) = decide(&old.placement) else { return Ok(reply(shared, id, old.placement, revision)) };
        let write = Write { unit: unit.clone(), placement: placement.clone(), unknown: old.unknown, on: old.mod_rev };
        match commit(shared, term, &[write], None).await {
            Ok(revision) => return Ok(reply(shared, id, placement, revision)),
            Err(Failed::Conflict) => {}
            Err(Failed::Store(e)) => return Err(unavailable(e)),
        }
    }
    Err(Status::aborted("others were faster each time"))
}

/// A draining owner has finished with a session: the next owner gets it, with epoch + 1. Again: no effect.
pub(crate) async fn handed(shared: &Arc<Shared>, id: &SessionId, from: Owner) -> Result<(), Status> {
    let unit = PlacementUnit::of(id);
    for _ in 0..TRIES {
        let term = term(shared)?;
        let known = shared.table().unit(&unit).cloned();
        let known = match known {
            Some(known) => known,
            None => return locate(shared, id).await.map(|_| ()),
        };
        let owned = known.placement.owner == *from.0 && known.placement.boot == from.1.0;
        if !owned || known.placement.state() == State::Ended {
            return Ok(());
        }
        match hand_over(shared, term, (&unit, &known), &from).await {
            Ok(()) => return Ok(()),
            Err(Failed::Conflict) => {}
            Err(Failed::Store(e)) => return Err(unavailable(e)),
        }
    }
    Err(Status::aborted("others were faster each time"))
}

async fn hand_over(
    shared: &Arc<Shared>,
    term: Term,
    (unit, known): (&PlacementUnit, &Unit),
    from: &Owner,
) -> Result<(), Failed> {
    let taker = rehome::plan(shared, &[(unit.clone(), known.clone())], from).pop().flatten();
    // a planned move is no outage, unless nobody has room
    let now = shared.now_ms();
    let unowned_from_ms = if taker.is_some() { 0 } else { now };
    let placement = rehome::next(&known.placement, taker.as_ref(), now, unowned_from_ms);
    let write = Write { unit: unit.clone(), placement, unknown: known.unknown.clone(), on: known.mod_rev };
    let result = commit(shared, term, &[write], None).await.map(|_| ());
    if let Some(taker) = taker {
        shared.table().release(&taker.name);
    }
    result
}

/// Marks a node as draining in its own registration; it sees that and hands its sessions over. The life that drains.
pub(crate) async fn mark_draining(shared: &Arc<Shared>, node: &str) -> Result<Owner, Status> {
    for _ in 0..TRIES {
        let term = term(shared)?;
        let (item, _) = shared.kv.get(&keys::node(node)).await.map_err(unavailable)?;
        let item = item.ok_or_else(|| Status::not_found(format!("no node {node}")))?;
        let unknown = unknown::fields(&item.value, unknown::NODE_KNOWN);
        let mut info = NodeInfo::decode(item.value).map_err(|e| Status::internal(e.to_string()))?;
        let owner: Owner = (node.into(), Boot(info.boot));
        if info.draining {
            return Ok(owner);
        }
        info.draining = true;
        let guard = vec![term.fence(), Compare::ModRev(keys::node(node), item.mod_rev)];
        let put = Op::Put { key: keys::node(node), value: unknown::encode(&info, &unknown), lease: item.lease };
        let reply = shared.kv.txn(guard, vec![put]).await.map_err(unavailable)?;
        if reply.succeeded {
            let now = shared.now_ms();
            shared.table().put_node(node, info, reply.revision, now);
            return Ok(owner);
        }
    }
    Err(Status::aborted("the node's registration kept changing"))
}
