//! A process's liveness in the directory: its registration under a lease that it renews (design 1, 7.1, 8.1).
//!
//! ```text
//! registering --granted, put--> held <--renewed / past the TTL by the own clock--> not held
//!      ^                          \________ the lease is gone: a new boot ________/
//! ```

use std::time::Duration;

use holdfast_core::{
    id::Boot,
    proto::{GatewayInfo, NodeInfo},
};
use tokio::{sync::watch, task::JoinHandle};

use super::{keys, kv::Kv};

mod keeper;

use keeper::Keeper;

/// TTL and renewal interval of a gateway's registration.
pub const GATEWAY_LEASE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(3));

/// TTL and renewal interval by the kinds a node serves: the shortest among them (design 1).
#[must_use]
pub fn node_lease(kinds: &[String]) -> (Duration, Duration) {
    let of = |kind: &String| match kind.split(':').next() {
        Some("game") => (3, 1),
        Some("meeting") => (10, 3),
        _ => (15, 5),
    };
    let (ttl, renew) = kinds.iter().map(of).min().unwrap_or((15, 5));
    (Duration::from_secs(ttl), Duration::from_secs(renew))
}

/// A value that is registered under a lease.
pub trait Info: prost::Message + Clone + PartialEq + Default + 'static {
    /// Its key.
    fn key(name: &str) -> Vec<u8>;
    /// Writes the life and the lease into it.
    fn set_life(&mut self, boot: Boot, lease: i64);
    /// The life it names.
    fn boot(&self) -> Boot;
}

impl Info for NodeInfo {
    fn key(name: &str) -> Vec<u8> {
        keys::node(name)
    }

    fn set_life(&mut self, boot: Boot, lease: i64) {
        self.boot = boot.0;
        self.lease = lease;
    }

    fn boot(&self) -> Boot {
        Boot(self.boot)
    }
}

impl Info for GatewayInfo {
    fn key(name: &str) -> Vec<u8> {
        keys::gateway(name)
    }

    fn set_life(&mut self, boot: Boot, _lease: i64) {
        self.boot = boot.0;
    }

    fn boot(&self) -> Boot {
        Boot(self.boot)
    }
}

/// The state of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Registered, and within the TTL by the own monotonic clock.
    pub held: bool,
    /// The life that is registered; it changes when a lease was lost.
    pub boot: Boot,
    /// The lease; 0 before the first registration.
    pub lease: i64,
}

/// A node's registration.
pub type NodeLease = Lease<NodeInfo>;
/// A gateway's registration.
pub type GatewayLease = Lease<GatewayInfo>;

/// A registration that is kept alive until [`Lease::close`]; dropping it lets it run out.
pub struct Lease<T: Info> {
    info: watch::Sender<T>,
    state: watch::Receiver<Held>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl NodeLease {
    /// Registers an owner; `boot` is that of its first registration. TTL by the kinds in `info`.
    #[must_use]
    pub fn spawn(kv: Kv, name: &str, boot: Boot, info: NodeInfo) -> Self {
        let times = node_lease(&info.kinds);
        Self::spawn_for(kv, name, (boot, times), info)
    }
}

impl GatewayLease {
    /// Registers a gateway.
    #[must_use]
    pub fn spawn(kv: Kv, name: &str, boot: Boot, info: GatewayInfo) -> Self {
        Self::spawn_for(kv, name, (boot, GATEWAY_LEASE), info)
    }
}

impl<T: Info> Lease<T> {
    fn spawn_for(kv: Kv, name: &str, (boot, times): (Boot, (Duration, Duration)), info: T) -> Self {
        let (state_tx, state) = watch::channel(Held { held: false, boot, lease: 0 });
        let (info, info_rx) = watch::channel(info);
        let (stop, stop_rx) = watch::channel(false);
        let keeper = Keeper { kv, name: name.into(), times, info: info_rx, state: state_tx, stop: stop_rx };
        Self { info, state, stop, task: tokio::spawn(keeper.run()) }
    }

    /// Registered, and within the TTL by the own clock.
    #[must_use]
    pub fn held(&self) -> bool {
        self.state.borrow().held
    }

    /// The state now.
    #[must_use]
    pub fn now(&self) -> Held {
        *self.state.borrow()
    }

    /// The state and its changes.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<Held> {
        self.state.clone()
    }

    /// Waits until registered.
    pub async fn registered(&self) {
        let mut state = self.state.clone();
        let _closed = state.wait_for(|s| s.held).await;
    }

    /// Changes what is registered (draining, connections); boot and lease are set by the lease itself.
    pub fn update(&self, change: impl FnOnce(&mut T)) {
        self.info.send_if_modified(|info| {
            let before = info.clone();
            change(info);
            *info != before
        });
    }

    /// An orderly end: revokes the lease, so that nobody waits for its TTL.
    pub async fn close(mut self) {
        self.stop.send_replace(true);
        let _ended = (&mut self.task).await;
    }
}

impl<T: Info> Drop for Lease<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}
