//! A small abstraction over etcd v3: what the directory, the leases and the owners' store need, and no more.
//!
//! [`Kv`] is either a real etcd ([`etcd`]) or a shared object in this process ([`memory`]) with the same observable
//! behaviour: one revision per writing transaction, leases, watches with history and compaction. Both pass the same
//! conformance test (`conformance`).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

#[cfg(test)]
pub(crate) mod conformance;
pub mod etcd;
pub mod memory;

/// Most compares and most operations of one transaction: etcd's `--max-txn-ops` default.
pub const TXN_OPS_MAX: usize = 128;

/// Watches report progress at least this often; three missed = broken (design 8.3).
pub const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// A watch that was silent for this long is an error (design 8.3).
pub const WATCH_SILENCE_MAX: Duration = Duration::from_secs(3);

/// One key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Bytes,
    /// Revision of the key's creation.
    pub create_rev: i64,
    /// Revision of its last change.
    pub mod_rev: i64,
    /// Lease it hangs on; 0 = none.
    pub lease: i64,
}

/// A condition of a transaction; revision 0 = the key is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key's last change was at this revision.
    ModRev(Vec<u8>, i64),
    /// The key was created at this revision.
    CreateRev(Vec<u8>, i64),
}

/// A write of a transaction. No key may be written twice in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a key; `lease` 0 = none.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its new value.
        value: Bytes,
        /// Lease to hang it on; 0 = none.
        lease: i64,
    },
    /// Deletes one key, if it is there.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
    /// Deletes the keys of `[from, to)`.
    DeleteRange {
        /// First key.
        from: Vec<u8>,
        /// First key that stays.
        to: Vec<u8>,
    },
}

impl Op {
    /// A put without a lease.
    pub fn put(key: impl Into<Vec<u8>>, value: impl Into<Bytes>) -> Self {
        Self::Put { key: key.into(), value: value.into(), lease: 0 }
    }
}

/// One page of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The items, in key order.
    pub items: Vec<Item>,
    /// There are more after the last one.
    pub more: bool,
    /// Revision of the cluster when this was read; pin the next page to that of the first.
    pub revision: i64,
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxnReply {
    /// Every compare held and the operations were applied.
    pub succeeded: bool,
    /// Revision of the cluster afterwards; the `mod_rev` of what was written, if it was.
    pub revision: i64,
}

/// A change seen by a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// A key was set.
    Put(Item),
    /// A key was deleted, by a client or by the end of its lease.
    Delete {
        /// The key.
        key: Vec<u8>,
        /// Revision of the deletion.
        mod_rev: i64,
    },
}

/// What a watch heard at once. No events: only proof of life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Changes, in order of revision.
    pub events: Vec<KvEvent>,
    /// Revision of the responding member. Never resume from it: resume from events (design 8.3).
    pub revision: i64,
}

/// Why an operation failed, by what it means for a write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// Surely not applied: never sent, or refused as a whole.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// Timed out or broke after it was sent: it may have been applied. Read again before the next write.
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// The revision asked for is older than the history kept; what is kept starts at this one (0 = not said).
    #[error("compacted: history starts at revision {0}")]
    Compacted(i64),
    /// The lease does not exist (any more). Not applied.
    #[error("the lease is gone")]
    LeaseGone,
}

/// A key-value store with etcd's semantics. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Kv {
    /// A real cluster.
    Etcd(Arc<etcd::Etcd>),
    /// An object in this process.
    Memory(Arc<memory::Memory>),
}

/// A running watch; dropping it ends it.
#[derive(Debug)]
pub enum Watch {
    /// On a real cluster.
    Etcd(Box<etcd::EtcdWatch>),
    /// On the object in this process.
    Memory(memory::MemoryWatch),
}

impl Kv {
    /// A cluster, connected when it is first used; one endpoint at a time, the next one after a failure.
    #[must_use]
    pub fn etcd(endpoints: Vec<String>, options: etcd::Options) -> Self {
        Self::Etcd(Arc::new(etcd::Etcd::new(endpoints, options)))
    }

    /// A fresh, empty store in this process.
    #[must_use]
    pub fn memory() -> Self {
        Self::Memory(memory::Memory::create())
    }

    /// The key's item, if there is one, and the revision read at. Linearizable.
    ///
    /// # Errors
    /// See [`KvError`]; every call ends within the configured timeout.
    pub async fn get(&self, key: &[u8]) -> Result<(Option<Item>, i64), KvError> {
        match self {
            Self::Etcd(e) => e.get(key).await,
            Self::Memory(m) => m.get(key).await,
        }
    }

    /// The first `limit` items of `[from, to)` in key order, as of revision `at_rev` (0 = now, linearizable).
    ///
    /// # Errors
    /// [`KvError::Compacted`] when `at_rev` is no longer kept.
    pub async fn range(&self, from: &[u8], to: &[u8], limit: usize, at_rev: i64) -> Result<Page, KvError> {
        match self {
            Self::Etcd(e) => e.range(from, to, limit, at_rev).await,
            Self::Memory(m) => m.range(from, to, limit, at_rev).await,
        }
    }

    /// Applies `ops` atomically if every compare holds; at most [`TXN_OPS_MAX`] of each.
    ///
    /// # Errors
    /// [`KvError::Unknown`]: read again before the next write.
    pub async fn txn(&self, compares: Vec<Compare>, ops: Vec<Op>) -> Result<TxnReply, KvError> {
        if compares.len().max(ops.len()) > TXN_OPS_MAX {
            return Err(KvError::Unavailable(format!("more than {TXN_OPS_MAX} operations in one transaction")));
        }
        match self {
            Self::Etcd(e) => e.txn(compares, ops).await,
            Self::Memory(m) => m.txn(compares, ops).await,
        }
    }

    /// A new lease; whole seconds, at least one.
    ///
    /// # Errors
    /// See [`KvError`].
    pub async fn grant(&self, ttl: Duration) -> Result<i64, KvError> {
        match self {
            Self::Etcd(e) => e.grant(ttl).await,
            Self::Memory(m) => m.grant(ttl).await,
        }
    }

    /// Renews a lease; the time it has left, zero = it is gone.
    ///
    /// # Errors
    /// See [`KvError`].
    pub async fn keep_alive(&self, lease: i64) -> Result<Duration, KvError> {
        match self {
            Self::Etcd(e) => e.keep_alive(lease).await,
            Self::Memory(m) => m.keep_alive(lease).await,
        }
    }

    /// Time a lease has left without renewing it, zero = it is gone.
    ///
    /// # Errors
    /// See [`KvError`].
    pub async fn time_to_live(&self, lease: i64) -> Result<Duration, KvError> {
        match self {
            Self::Etcd(e) => e.time_to_live(lease).await,
            Self::Memory(m) => m.time_to_live(lease).await,
        }
    }

    /// Ends a lease and deletes its keys; a lease that is gone already is no error.
    ///
    /// # Errors
    /// See [`KvError`].
    pub async fn revoke(&self, lease: i64) -> Result<(), KvError> {
        match self {
            Self::Etcd(e) => e.revoke(lease).await,
            Self::Memory(m) => m.revoke(lease).await,
        }
    }

    /// Watches `[from, to)` from `start_rev` on.
    ///
    /// # Errors
    /// See [`KvError`]; a compacted start may be said here or by the first [`Watch::next`].
    pub async fn watch(&self, from: &[u8], to: &[u8], start_rev: i64) -> Result<Watch, KvError> {
        match self {
            Self::Etcd(e) => Ok(Watch::Etcd(Box::new(e.watch(from, to, start_rev).await?))),
            Self::Memory(m) => Ok(Watch::Memory(m.watch(from, to, start_rev))),
        }
    }

    /// Turns to the next endpoint and forgets the connection to this one.
    pub fn rotate(&self) {
        if let Self::Etcd(e) = self {
            e.rotate();
        }
    }

    /// Memory only: from now on nothing answers, as if the process were stopped. Leases do not run on.
    pub fn freeze(&self) {
        if let Self::Memory(m) = self {
            m.freeze();
        }
    }

    /// Memory only: ends [`Kv::freeze`]; every lease starts its TTL anew.
    pub fn thaw(&self) {
        if let Self::Memory(m) = self {
            m.thaw();
        }
    }
}

impl Watch {
    /// The next changes; an empty batch at least each [`PROGRESS_EVERY`] as proof of life. Cancel-safe.
    ///
    /// # Errors
    /// [`KvError::Compacted`] = list anew; anything else, silence for [`WATCH_SILENCE_MAX`] included = this watch is
    /// over.
    pub async fn next(&mut self) -> Result<Batch, KvError> {
        match self {
            Self::Etcd(w) => w.next().await,
            Self::Memory(w) => w.next().await,
        }
    }
}
