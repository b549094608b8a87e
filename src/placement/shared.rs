//! What the parts of the placement service share.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use holdfast_core::{
    id::Boot,
    proto::{NodeInfo, Placement},
};
use prost::Message as _;
use tokio::sync::{Notify, watch};

use super::{
    config::PlacementConfig,
    feed::Feed,
    keys::DirKey,
    kv::{Item, Kv, KvEvent},
    leader::Role,
    table::Table,
    unknown,
};
use crate::clock::Clock;

/// One placement process.
pub(crate) struct Shared {
    pub(crate) kv: Kv,
    pub(crate) config: PlacementConfig,
    pub(crate) clock: Clock,
    pub(crate) role: watch::Receiver<Role>,
    /// Something changed that the leader's loop may have to act on.
    pub(crate) wake: Notify,
    table: Mutex<Table>,
    /// When a gateway last said that its link to this life is alive.
    pub(crate) links: Mutex<HashMap<Boot, Instant>>,
    /// Lives being probed on somebody's suspicion.
    pub(crate) probing: Mutex<HashSet<Boot>>,
}

impl Shared {
    pub(crate) fn new(kv: Kv, config: PlacementConfig, role: watch::Receiver<Role>) -> Arc<Self> {
        Arc::new(Self {
            kv,
            config,
            clock: Clock::start(),
            role,
            wake: Notify::new(),
            table: Mutex::default(),
            links: Mutex::default(),
            probing: Mutex::default(),
        })
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// Milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now().wall.0 / 1000
    }

    /// One step of the directory's feed.
    pub(crate) fn handle(&self, feed: Feed) {
        let now = self.now_ms();
        let mut table = self.table();
        match feed {
            Feed::ListStarted => table.list_started(),
            Feed::Listed(item) | Feed::Event(KvEvent::Put(item)) => put(&mut table, item, now),
            Feed::Event(KvEvent::Delete { key, mod_rev }) => match DirKey::parse(&key) {
                Some(DirKey::Unit(unit)) => table.remove_unit(&unit, mod_rev),
                Some(DirKey::Node(name)) => table.remove_node(&name, mod_rev, now),
                Some(DirKey::Gateway(_)) | None => {}
            },
            Feed::ListDone => table.list_done(now),
            Feed::Resumed | Feed::Progress => table.heard(),
            Feed::Trouble(e) => tracing::debug!(error = %e, "the directory's watch broke"),
        }
        drop(table);
        self.wake.notify_one();
    }
}

fn put(table: &mut Table, item: Item, now: u64) {
    match DirKey::parse(&item.key) {
        Some(DirKey::Unit(unit)) => {
            if let Ok(placement) = Placement::decode(item.value.clone()) {
                let unknown = unknown::fields(&item.value, unknown::PLACEMENT_KNOWN);
                table.put_unit(unit, placement, unknown, item.mod_rev);
            }
        }
        Some(DirKey::Node(name)) => {
            if let Ok(info) = NodeInfo::decode(item.value) {
                table.put_node(&name, info, item.mod_rev, now);
            }
        }
        Some(DirKey::Gateway(_)) | None => {}
    }
}

/// A lock that outlives a panic of its holder.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
