//! What goes in and out of an [`Authority`](super::Authority): effects, and what it asks of the store.

use std::time::Duration;

use crate::{
    id::{Boot, Lane, LinkId},
    proto::{
        owner_msg,
        record::{self, Checkpoint, Entry, Header},
    },
};

/// What the driver must do, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Read the whole record at one revision; answer with `handle_loaded`.
    Load,
    /// Write conditionally; answer with `handle_written`.
    Write(Box<WriteSet>),
    /// Send to a gateway; silently dropped if the link is gone.
    Send {
        /// The stream.
        link: LinkId,
        /// The message.
        msg: owner_msg::M,
    },
    /// The record has a higher epoch: drop the authority. Everything queued has been answered.
    Deposed {
        /// The record's epoch.
        by_epoch: u64,
    },
    /// Drained: tell placement `Handed`; nothing more will be written.
    Handed {
        /// The record's last ver.
        ver: u64,
    },
    /// With `Deposed`, when this epoch was never claimed: the directory may be behind the record (`ReportEpoch`, design 8.1).
    Behind {
        /// The record's epoch.
        record_epoch: u64,
    },
}

/// A whole record, read at one revision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// Modification revision of the header; 0 = there is no record yet.
    pub rev: i64,
    /// The header.
    pub header: Option<Header>,
    /// The newest checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// The tail in ver order.
    pub entries: Vec<Entry>,
    /// Every lane: principal, lane, what was decided.
    pub lanes: Vec<(String, Lane, record::Lane)>,
}

/// One conditional write. Every one puts the header, so its revision moves and fences other writers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WriteSet {
    /// The header's modification revision must be this (0 = absent).
    pub expect_rev: i64,
    /// New header.
    pub header: Header,
    /// New entries, ver order.
    pub entries: Vec<Entry>,
    /// Changed lanes, whole.
    pub lanes: Vec<(String, Lane, record::Lane)>,
    /// Lanes evicted for room: delete their keys.
    pub lanes_evicted: Vec<(String, Lane)>,
    /// New checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// Delete entries with ver < this.
    pub trim_below: Option<u64>,
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Durable; the header's new revision.
    Ok {
        /// Modification revision of the header now.
        rev: i64,
    },
    /// The condition did not hold; nothing was written.
    Conflict,
    /// Timed out: it may have been written, or still will be.
    Unknown,
    /// Surely not written.
    Unavailable,
}

/// The record could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError(pub String);

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StoreError {}

/// What every authority of one owner process shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityConfig {
    /// This owner's node id, for hints.
    pub node: String,
    /// This process's boot, for hints.
    pub boot: Boot,
    /// This owner's address, for hints.
    pub addr: String,
    /// Told to gateways in `Joined`: lease TTL + 10 s (design 4.5), milliseconds.
    pub hold_ttl_ms: u32,
    /// Told to gateways in `Joined`.
    pub max_payload_bytes: u32,
    /// A checkpoint at the latest after this many events (design 7.2).
    pub checkpoint_events: u64,
    /// A checkpoint at the latest after this many bytes of payload.
    pub checkpoint_bytes: usize,
    /// Events kept in the tail.
    pub tail_events: usize,
    /// Lanes kept; the least recently used are evicted beyond.
    pub lanes_max: usize,
    /// A write in flight this long means `Health{DOWN}` (detection within 1 s, design 6.7).
    pub write_late: Duration,
    /// The same for the reads and the claim of a takeover, which may queue behind thousands of others; a store that is
    /// down is noticed by its probe and by those who write.
    pub claim_late: Duration,
    /// The app's own timer does not fire for this long after a claim or after the store was down: ops held at gateways come
    /// first (design 5.4: nobody is flagged while an op that arrived in time is held).
    pub app_grace: Duration,
    /// First pause before a load is retried; doubles up to `retry_max`.
    pub retry_min: Duration,
    /// Longest pause before a load is retried.
    pub retry_max: Duration,
}

impl Default for AuthorityConfig {
    fn default() -> Self {
        Self {
            node: String::new(),
            boot: Boot(0),
            addr: String::new(),
            hold_ttl_ms: 13_000,
            max_payload_bytes: 16 * 1024,
            checkpoint_events: 256,
            checkpoint_bytes: 64 * 1024,
            tail_events: 512,
            lanes_max: 10_000,
            write_late: Duration::from_millis(800),
            claim_late: Duration::from_secs(3),
            app_grace: Duration::from_secs(10),
            retry_min: Duration::from_millis(50),
            retry_max: Duration::from_secs(1),
        }
    }
}
