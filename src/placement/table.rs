//! The warm table of placement: every unit by (owner, boot), every node, and who vanished when (design 8.2). Fed by the
//! directory's feed and by the service's own transactions, so the next leader has it ready.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use holdfast_core::{
    directory::PlacementUnit,
    id::Boot,
    proto::{NodeInfo, Placement, placement::State},
};

use super::lease::node_lease;

/// Vanished lives are remembered this long for the mass-expiry guard and for their addresses.
const VANISHED_KEPT: Duration = Duration::from_secs(120);

/// One life of a node; an empty name with boot 0 = parked.
pub(crate) type Owner = (Arc<str>, Boot);

/// A unit as etcd has it.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) placement: Placement,
    pub(crate) mod_rev: i64,
    /// Fields of a newer version, encoded.
    pub(crate) unknown: Bytes,
    list: u64,
}

#[derive(Clone, Debug)]
struct Node {
    info: NodeInfo,
    mod_rev: i64,
    list: u64,
}

/// A life whose registration is gone.
#[derive(Clone, Debug)]
pub(crate) struct Vanished {
    /// When that was noticed.
    pub(crate) at: Instant,
    /// The same as milliseconds since the Unix epoch.
    pub(crate) at_ms: u64,
    /// Its last registration; without an address if it was gone before this process knew it.
    pub(crate) info: NodeInfo,
}

impl Vanished {
    /// TTL of its lease.
    pub(crate) fn ttl(&self) -> Duration {
        node_lease(&self.info.kinds).0
    }
}

/// A node that could take units of a kind.
#[derive(Clone, Debug)]
pub(crate) struct Taker {
    pub(crate) name: Arc<str>,
    pub(crate) boot: Boot,
    pub(crate) zone: String,
    pub(crate) cap: u32,
    pub(crate) room: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Table {
    units: HashMap<PlacementUnit, Unit>,
    owners: HashMap<Owner, HashSet<PlacementUnit>>,
    nodes: BTreeMap<Arc<str>, Node>,
    vanished: HashMap<Owner, Vanished>,
    reserved: HashMap<Arc<str>, u32>,
    list: u64,
    pub(crate) synced: bool,
    /// When etcd was last heard, and when it last spoke again after a silence.
    heard: Option<Instant>,
    pub(crate) silence_ended: Option<(Instant, Duration)>,
}

/// The kind that nodes are matched by: the part before parameters.
pub(crate) fn base_kind(kind: &str) -> &str {
    kind.split(':').next().unwrap_or(kind)
}

fn active_owner(p: &Placement) -> Option<Owner> {
    (p.state() != State::Ended).then(|| (p.owner.as_str().into(), Boot(p.boot)))
}

impl Table {
    pub(crate) fn unit(&self, unit: &PlacementUnit) -> Option<&Unit> {
        self.units.get(unit)
    }

    pub(crate) fn node(&self, name: &str) -> Option<(&NodeInfo, i64)> {
        self.nodes.get(name).map(|n| (&n.info, n.mod_rev))
    }

    /// Takes in what etcd has; older news are ignored.
    pub(crate) fn put_unit(&mut self, unit: PlacementUnit, placement: Placement, unknown: Bytes, mod_rev: i64) {
        let list = self.list;
        if let Some(old) = self.units.get_mut(&unit) {
            old.list = list;
            if old.mod_rev >= mod_rev {
                return;
            }
        }
        if let Some(owner) = active_owner(&placement) {
            self.owners.entry(owner).or_default().insert(unit.clone());
        }
        let new_owner = active_owner(&placement);
        let old = self.units.insert(unit.clone(), Unit { placement, mod_rev, unknown, list });
        if let Some(owner) = old.and_then(|o| active_owner(&o.placement))
            && Some(&owner) != new_owner.as_ref()
        {
            self.drop_owned(&owner, &unit);
        }
    }

    fn drop_owned(&mut self, owner: &Owner, unit: &PlacementUnit) {
        if let Some(units) = self.owners.get_mut(owner) {
            units.remove(unit);
            if units.is_empty() {
                self.owners.remove(owner);
            }
        }
    }

    pub(crate) fn remove_unit(&mut self, unit: &PlacementUnit, mod_rev: i64) {
        if self.units.get(unit).is_some_and(|u| u.mod_rev < mod_rev)
            && let Some(old) = self.units.remove(unit)
            && let Some(owner) = active_owner(&old.placement)
        {
            self.drop_owned(&owner, unit);
        }
    }

    pub(crate) fn put_node(&mut self, name: &str, info: NodeInfo, mod_rev: i64, at_ms: u64) {
        let name: Arc<str> = name.into();
        let boot = Boot(info.boot);
        self.vanished.remove(&(name.clone(), boot));
        let list = self.list;
        match self.nodes.get_mut(&name) {
            Some(node) if node.mod_rev >= mod_rev => node.list = list,
            Some(node) => {
                let old = std::mem::replace(node, Node { info, mod_rev, list });
                if old.info.boot != boot.0 {
                    // a new life inside the TTL of the old one: no DELETE event will come
                    self.vanish(name, old.info, at_ms);
                }
            }
            None => {
                self.nodes.insert(name, Node { info, mod_rev, list });
            }
        }
    }

    pub(crate) fn remove_node(&mut self, name: &str, mod_rev: i64, at_ms: u64) {
        if self.nodes.get(name).is_some_and(|n| n.mod_rev < mod_rev)
            && let Some((name, node)) = self.nodes.remove_entry(name)
        {
            self.vanish(name, node.info, at_ms);
        }
    }

    fn vanish(&mut self, name: Arc<str>, info: NodeInfo, at_ms: u64) {
        if info.draining {
            tracing::info!(node = %name, boot = %Boot(info.boot), "node left");
        } else {
            tracing::warn!(node = %name, boot = %Boot(info.boot), "node lost");
        }
        let at = Instant::now();
        self.vanished.retain(|_, v| v.at.elapsed() < VANISHED_KEPT);
        self.vanished.insert((name, Boot(info.boot)), Vanished { at, at_ms, info });
    }

    pub(crate) fn list_started(&mut self) {
        self.list += 1;
    }

    pub(crate) fn list_done(&mut self, at_ms: u64) {
        let list = self.list;
        let gone: Vec<_> = self.units.iter().filter(|(_, u)| u.list < list).map(|(u, _)| u.clone()).collect();
        for unit in gone {
            self.remove_unit(&unit, i64::MAX);
        }
        let gone: Vec<_> = self.nodes.iter().filter(|(_, n)| n.list < list).map(|(n, _)| n.clone()).collect();
        for node in gone {
            self.remove_node(&node, i64::MAX, at_ms);
        }
        self.synced = true;
        self.heard();
    }

    /// etcd spoke.
    pub(crate) fn heard(&mut self) {
        let now = Instant::now();
        if let Some(silent) = self.heard.replace(now).map(|h| now - h)
            && silent > Duration::from_millis(1500)
        {
            self.silence_ended = Some((now, silent));
        }
    }

    /// Lives that own units and are not registered (any more), with when they vanished.
    pub(crate) fn orphaned(&mut self, at_ms: u64) -> Vec<(Owner, Vanished)> {
        let nodes = &self.nodes;
        let dead = |o: &&Owner| !o.0.is_empty() && nodes.get(&o.0).is_none_or(|n| n.info.boot != o.1.0);
        let mut all: Vec<Owner> = self.owners.keys().filter(dead).cloned().collect();
        all.sort_unstable();
        all.into_iter()
            .map(|owner| {
                if !self.vanished.contains_key(&owner) {
                    let info = NodeInfo { kinds: self.kinds_of(&owner), ..NodeInfo::default() };
                    self.vanished.insert(owner.clone(), Vanished { at: Instant::now(), at_ms, info });
                }
                let vanished = self.vanished[&owner].clone();
                (owner, vanished)
            })
            .collect()
    }

    /// Kinds a life was given: its lease was at most that of the shortest among them.
    fn kinds_of(&self, owner: &Owner) -> Vec<String> {
        let units = self.owners.get(owner).into_iter().flatten().filter_map(|u| self.units.get(u));
        let kinds: HashSet<&str> = units.map(|u| base_kind(&u.placement.kind)).collect();
        kinds.into_iter().map(str::to_owned).collect()
    }

    /// A new leader starts every wait anew (design 8.2).
    pub(crate) fn restart_waits(&mut self) {
        let now = Instant::now();
        self.vanished.values_mut().for_each(|v| v.at = now);
    }

    /// Nodes that vanished within their TTL without having drained, and nodes known in that time.
    pub(crate) fn mass(&self) -> (usize, usize) {
        let lost = |v: &Vanished| v.at.elapsed() < v.ttl() && !v.info.draining;
        let gone = self.vanished.iter().filter(|(o, v)| lost(v) && !self.nodes.contains_key(&o.0)).count();
        (gone, gone + self.nodes.len())
    }

    /// Units of one life, in order of name.
    pub(crate) fn owned(&self, owner: &Owner) -> Vec<(PlacementUnit, Unit)> {
        let units = self.owners.get(owner).into_iter().flatten();
        let mut all: Vec<_> = units.filter_map(|u| Some((u.clone(), self.units.get(u)?.clone()))).collect();
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// How many units a life owns.
    pub(crate) fn owned_count(&self, owner: &Owner) -> usize {
        self.owners.get(owner).map_or(0, HashSet::len)
    }

    /// Tombstones last touched before `before_ms`.
    pub(crate) fn tombstones(&self, before_ms: u64, most: usize) -> Vec<(PlacementUnit, i64)> {
        let old = |u: &&Unit| u.placement.state() == State::Ended && u.placement.moved_at_ms < before_ms;
        self.units.iter().filter(|(_, u)| old(u)).map(|(k, u)| (k.clone(), u.mod_rev)).take(most).collect()
    }

    /// Nodes that serve `kind` and are not draining, with the room each has left.
    pub(crate) fn takers(&self, kind: &str) -> Vec<Taker> {
        let kind = base_kind(kind);
        let serves = |n: &&Node| !n.info.draining && n.info.kinds.iter().any(|k| base_kind(k) == kind);
        let nodes = self.nodes.iter().filter(|(_, n)| serves(n));
        nodes
            .map(|(name, n)| {
                let boot = Boot(n.info.boot);
                let used = self.owned_count(&(name.clone(), boot)) + *self.reserved.get(name).unwrap_or(&0) as usize;
                let room = n.info.cap.saturating_sub(u32::try_from(used).unwrap_or(u32::MAX));
                Taker { name: name.clone(), boot, zone: n.info.zone.clone(), cap: n.info.cap, room }
            })
            .collect()
    }

    /// Keeps room for a unit that is being written.
    pub(crate) fn reserve(&mut self, node: &Arc<str>) {
        if !node.is_empty() {
            *self.reserved.entry(node.clone()).or_default() += 1;
        }
    }

    /// The write is over, for better or worse.
    pub(crate) fn release(&mut self, node: &str) {
        if let Some(n) = self.reserved.get_mut(node) {
            *n = n.saturating_sub(1);
        }
    }
}
