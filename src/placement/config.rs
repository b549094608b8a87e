//! Settings of the placement service.

use std::time::Duration;

use crate::upstream::security::Security;

/// TTL of the leader's lease (design 8.1); renewed each third of it.
pub const LEADER_TTL: Duration = Duration::from_secs(3);

/// How a placement service runs.
#[derive(Clone, Debug)]
pub struct PlacementConfig {
    /// Stable name.
    pub node: String,
    /// Address of the gRPC service, `host:port`; port 0 = a free one.
    pub listen: String,
    /// `host:port` others dial; empty = the bound address.
    pub advertise: String,
    /// Revoke the lease of a node whose process is gone for sure (design 8.2).
    pub fast_path: bool,
    /// Hold re-homing when many nodes vanish at once.
    pub guard: bool,
    /// What callers must show.
    pub link: Security,
}

impl Default for PlacementConfig {
    fn default() -> Self {
        Self {
            node: "placement-1".into(),
            listen: "127.0.0.1:7100".into(),
            advertise: String::new(),
            fast_path: true,
            guard: true,
            link: Security::default(),
        }
    }
}
