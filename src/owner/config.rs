//! What an owner process is told.

use std::time::Duration;

use holdfast_core::{id::Boot, record::AuthorityConfig};

use crate::{
    placement::{kv::Kv, lease::node_lease},
    upstream::security::Security,
};

/// A store request not answered by then has an unknown outcome. Above `write_late` (800 ms), so that gateways hear of a sick
/// store before ops are given up.
const STORE_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Time a client's op may be held beyond the lease (design 4.5).
const HOLD_BEYOND_LEASE: Duration = Duration::from_secs(10);

/// An owner process.
#[derive(Clone, Debug)]
pub struct OwnerConfig {
    /// Stable name of the node.
    pub node: String,
    /// Address to listen on; port 0 = any.
    pub listen: String,
    /// `host:port` gateways dial; empty = where it listens.
    pub advertise: String,
    /// Kinds served.
    pub kinds: Vec<String>,
    /// Most sessions.
    pub cap: u32,
    /// Failure zone, for placement.
    pub zone: String,
    /// Where placement is.
    pub directory: Kv,
    /// Where records are.
    pub store: Kv,
    /// What gateways must show, and what is shown to placement.
    pub link: Security,
    /// Placement services to tell of drains, `host:port`; empty = the leader the directory names.
    pub placement: Vec<String>,
    /// See [`STORE_TIMEOUT`].
    pub store_timeout: Duration,
    /// Sessions handed over per second in a drain.
    pub drain_per_s: u32,
    /// Longest drain; what is left then is found by placement when the lease ends.
    pub drain_max: Duration,
}

impl OwnerConfig {
    /// The defaults, for all kinds, on any port of the loopback address.
    #[must_use]
    pub fn new(node: &str, directory: Kv, store: Kv) -> Self {
        Self {
            node: node.to_owned(),
            listen: "127.0.0.1:0".to_owned(),
            advertise: String::new(),
            kinds: ["game", "meeting", "document"].map(str::to_owned).to_vec(),
            cap: 10_000,
            zone: String::new(),
            directory,
            store,
            link: Security::default(),
            placement: Vec::new(),
            store_timeout: STORE_TIMEOUT,
            drain_per_s: 2_000,
            drain_max: Duration::from_secs(30),
        }
    }

    pub(super) fn authority(&self, boot: Boot, addr: &str) -> AuthorityConfig {
        let hold = node_lease(&self.kinds).0 + HOLD_BEYOND_LEASE;
        AuthorityConfig {
            node: self.node.clone(),
            boot,
            addr: addr.to_owned(),
            hold_ttl_ms: u32::try_from(hold.as_millis()).unwrap_or(u32::MAX),
            ..AuthorityConfig::default()
        }
    }
}
