//! What a gateway knows of the directory: who owns each session, where each node is (design 8.3). Pure.
//!
//! ```text
//! Cold -> Listing -> Synced <-> Stale        a list that succeeds ends in Synced, whatever came before
//! ```
//! There is one [`Directory::merge`] for lists, watches, linearizable reads and hints. Errors never delete anything:
//! an entry goes only when a complete list no longer has it ([`Directory::handle_list_done`]) or a linearizable read
//! says so ([`Directory::handle_absent`]).

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::{
    id::Boot,
    proto::{NodeInfo, Placement, placement},
    session::Route,
    time::Mono,
};

mod types;

pub use types::{Counters, Guarded, Merge, PlacementUnit, State, Swept};

/// Nothing heard for this long = Stale (design 8.3: a heartbeat each second, three missed).
pub const SILENCE_MAX: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
struct Entry {
    route: Route,
    list: u64,
}

#[derive(Clone, Debug)]
struct Node {
    info: NodeInfo,
    revision: i64,
    list: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Directory {
    entries: HashMap<PlacementUnit, Entry>,
    nodes: HashMap<Arc<str>, Node>,
    state: State,
    list: u64,
    heard: Mono,
    guarded: Option<Guarded>,
    counters: Counters,
}

impl Default for Directory {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            nodes: HashMap::new(),
            state: State::Cold,
            list: 0,
            heard: Mono(0),
            guarded: None,
            counters: Counters::default(),
        }
    }
}

/// A placement as etcd has it.
#[must_use]
pub fn route(placement: &Placement, revision: i64) -> Route {
    Route {
        epoch: placement.epoch,
        boot: Boot(placement.boot),
        node: placement.owner.as_str().into(),
        addr: "".into(),
        kind: placement.kind.as_str().into(),
        ended: placement.state() == placement::State::Ended,
        revision,
        unowned_from_ms: placement.unowned_from_ms,
    }
}

impl Directory {
    /// How fresh it is.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Time since the directory was last known to be current; `None` = never was.
    #[must_use]
    pub fn age(&self, now: Mono) -> Option<Duration> {
        (!matches!(self.state, State::Cold | State::Listing)).then(|| now.since(self.heard))
    }

    /// Counts since start.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// The guard holds back a sweep until an operator accepts it.
    #[must_use]
    pub const fn guarded(&self) -> Option<Guarded> {
        self.guarded
    }

    /// The nodes that are registered, in no order.
    pub fn nodes(&self) -> impl Iterator<Item = (&Arc<str>, &NodeInfo)> {
        self.nodes.iter().map(|(name, node)| (name, &node.info))
    }

    /// Known units and nodes.
    #[must_use]
    pub fn len(&self) -> (usize, usize) {
        (self.entries.len(), self.nodes.len())
    }

    /// What is known of a unit, with the owner's address as the nodes have it now.
    #[must_use]
    pub fn lookup(&self, unit: &PlacementUnit) -> Option<Route> {
        let mut route = self.entries.get(unit)?.route.clone();
        if let Some(addr) = self.addr(&route.node, route.boot) {
            route.addr = addr;
        }
        Some(route)
    }

    /// The address of one life of a node.
    #[must_use]
    pub fn addr(&self, node: &str, boot: Boot) -> Option<Arc<str>> {
        self.nodes.get(node).filter(|n| n.info.boot == boot.0).map(|n| n.info.addr.as_str().into())
    }

    /// What a node says of itself.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.nodes.get(name).map(|n| &n.info)
    }

    /// All units owned by this life of a node.
    pub fn owned_by(&self, boot: Boot) -> impl Iterator<Item = (&PlacementUnit, &Route)> {
        self.entries.iter().filter(move |(_, e)| e.route.boot == boot).map(|(u, e)| (u, &e.route))
    }

    /// The one way in for placements; `route.revision` 0 = a hint.
    pub fn merge(&mut self, unit: &PlacementUnit, route: Route) -> Merge {
        let list = self.list;
        let Some(entry) = self.entries.get_mut(unit) else {
            self.entries.insert(unit.clone(), Entry { route, list });
            return Merge::Changed;
        };
        let old = &entry.route;
        let verdict = match route.epoch.cmp(&old.epoch) {
            std::cmp::Ordering::Greater => Merge::Changed,
            std::cmp::Ordering::Less => Merge::Dropped,
            std::cmp::Ordering::Equal if (old.boot, &old.node) != (route.boot, &route.node) => Merge::Alarm,
            std::cmp::Ordering::Equal if route.revision < old.revision => Merge::Refreshed,
            std::cmp::Ordering::Equal if (old.ended, &old.kind) != (route.ended, &route.kind) => Merge::Updated,
            std::cmp::Ordering::Equal => Merge::Refreshed,
        };
        if route.revision > 0 {
            // the directory does have the unit, whatever it says of it
            entry.list = list;
        }
        match verdict {
            Merge::Changed if route.revision == 0 => {
                // a hint knows the owner only
                entry.route = Route { kind: old.kind.clone(), ended: old.ended, ..route };
            }
            Merge::Changed | Merge::Updated => entry.route = route,
            Merge::Refreshed => entry.route.revision = old.revision.max(route.revision),
            Merge::Dropped => self.counters.dropped += 1,
            Merge::Alarm => self.counters.alarms += 1,
        }
        verdict
    }

    /// A node's registration was seen. `true` = it is news.
    pub fn merge_node(&mut self, name: &str, info: NodeInfo, revision: i64) -> bool {
        let list = self.list;
        match self.nodes.get_mut(name) {
            Some(node) if revision < node.revision => false,
            Some(node) => {
                let news = node.info != info;
                *node = Node { info, revision, list };
                news
            }
            None => {
                self.nodes.insert(name.into(), Node { info, revision, list });
                true
            }
        }
    }

    /// A node's registration was deleted at `revision`. Returns the life that ended, if it was the one known.
    pub fn handle_node_gone(&mut self, name: &str, revision: i64) -> Option<Boot> {
        let known = self.nodes.get(name).is_some_and(|n| n.revision < revision);
        if known { self.nodes.remove(name).map(|n| Boot(n.info.boot)) } else { None }
    }

    /// A placement's key was deleted: not an end (design 16), but a linearizable read is wanted if it returns `true`.
    /// Tombstones of ended sessions are cleaned up this way and forgotten here.
    pub fn handle_deleted(&mut self, unit: &PlacementUnit, revision: i64) -> bool {
        match self.entries.get(unit) {
            Some(e) if e.route.revision >= revision => false,
            Some(e) if e.route.ended => {
                self.entries.remove(unit);
                false
            }
            known => known.is_some(),
        }
    }

    /// A linearizable read at `revision` found no placement. `true` = it was known until now.
    pub fn handle_absent(&mut self, unit: &PlacementUnit, revision: i64) -> bool {
        let older = self.entries.get(unit).is_some_and(|e| e.route.revision < revision);
        older && self.entries.remove(unit).is_some()
    }

    /// A list begins: what it does not touch is swept at its end.
    pub const fn handle_list_started(&mut self) {
        self.list += 1;
        if matches!(self.state, State::Cold) {
            self.state = State::Listing;
        }
    }

    /// The list is complete: sweeps what neither it nor anything newer touched, unless more than half of the
    /// units are missing.
    pub fn handle_list_done(&mut self, now: Mono) -> Swept {
        self.handle_progress(now);
        self.state = State::Synced;
        // nodes come and go by their leases; a directory that lost its units lost more than a node
        let known = self.entries.len();
        let gone = self.entries.values().filter(|e| e.list < self.list).count();
        if gone * 2 > known {
            self.guarded = Some(Guarded { gone, known });
            return Swept { guarded: self.guarded, ..Swept::default() };
        }
        self.sweep()
    }

    /// An operator accepts that what is missing from the last list is gone (`holdfast directory accept`).
    pub fn accept(&mut self) -> Swept {
        if self.guarded.is_some() { self.sweep() } else { Swept::default() }
    }

    fn sweep(&mut self) -> Swept {
        let list = self.list;
        self.guarded = None;
        let units: Vec<_> = self.entries.iter().filter(|(_, e)| e.list < list).map(|(u, _)| u.clone()).collect();
        let old = self.nodes.iter().filter(|(_, n)| n.list < list);
        let nodes: Vec<_> = old.map(|(name, n)| (name.clone(), Boot(n.info.boot))).collect();
        self.entries.retain(|_, e| e.list >= list);
        self.nodes.retain(|_, n| n.list >= list);
        self.counters.swept += (units.len() + nodes.len()) as u64;
        Swept { units, nodes, guarded: None }
    }

    /// The watch spoke, if only of its progress.
    pub const fn handle_progress(&mut self, now: Mono) {
        self.heard = now;
    }

    /// A watch that had failed goes on where it ended: nothing was missed.
    pub fn handle_resumed(&mut self, now: Mono) {
        self.handle_progress(now);
        if self.state == State::Stale {
            self.state = State::Synced;
        }
    }

    /// The watch failed, or a list did. `true` = it became stale by that.
    pub fn handle_trouble(&mut self) -> bool {
        let was_synced = self.state == State::Synced;
        match self.state {
            State::Synced => self.state = State::Stale,
            State::Listing => self.state = State::Cold,
            State::Cold | State::Stale => {}
        }
        was_synced
    }

    /// Call it at [`Self::poll_timeout`]. `true` = it became stale.
    pub fn handle_timeout(&mut self, now: Mono) -> bool {
        self.poll_timeout().is_some_and(|at| at <= now) && self.handle_trouble()
    }

    /// When silence turns into staleness.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        (self.state == State::Synced).then(|| self.heard.after(SILENCE_MAX))
    }
}

#[cfg(test)]
mod tests;
