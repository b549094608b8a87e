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
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

use super::{
    keys,
    kv::{Compare, Kv, KvError, Op},
};

/// Wait after a failed registration or renewal.
const RETRY: Duration = Duration::from_millis(250);

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

struct Keeper<T: Info> {
    kv: Kv,
    name: String,
    times: (Duration, Duration),
    info: watch::Receiver<T>,
    state: watch::Sender<Held>,
    stop: watch::Receiver<bool>,
}

/// What a keeper does next.
enum Turn {
    Stop,
    Lapse,
    Renew,
    Publish,
}

/// Why a life ended.
enum End {
    Stopped,
    LeaseGone,
}

impl<T: Info> Keeper<T> {
    async fn run(mut self) {
        let mut first = true;
        loop {
            let Some((lease, deadline)) = self.register_until_done(first).await else { return };
            first = false;
            tracing::info!(name = self.name, boot = %self.boot(), lease, "registered");
            match self.keep(lease, deadline).await {
                End::Stopped => {
                    self.state.send_modify(|s| s.held = false);
                    if let Err(e) = self.kv.revoke(lease).await {
                        tracing::warn!(name = self.name, error = %e, "the lease could not be revoked and will run out");
                    }
                    return;
                }
                End::LeaseGone => {
                    let old = self.boot();
                    self.state.send_replace(Held { held: false, boot: Boot(rand::random::<u64>().max(1)), lease: 0 });
                    tracing::warn!(name = self.name, %old, new = %self.boot(), "the lease is gone: registering anew");
                }
            }
        }
    }

    fn boot(&self) -> Boot {
        self.state.borrow().boot
    }

    /// Tries until it works; `None` = stopped.
    async fn register_until_done(&mut self, first: bool) -> Option<(i64, Instant)> {
        loop {
            let since = Instant::now();
            match self.register(first).await {
                Ok(lease) => {
                    self.state.send_modify(|s| (s.held, s.lease) = (true, lease));
                    return Some((lease, since + self.times.0));
                }
                Err(e) => tracing::warn!(name = self.name, error = %e, "registration failed"),
            }
            tokio::select! {
                () = sleep(RETRY) => {}
                _ = self.stop.wait_for(|s| *s) => return None,
            }
        }
    }

    async fn register(&mut self, first: bool) -> Result<i64, KvError> {
        let key = T::key(&self.name);
        let (there, _) = self.kv.get(&key).await?;
        // a process that lost its lease does not push out the one that took its name meanwhile
        if !first && let Some(item) = &there {
            let other = T::decode(item.value.clone()).is_ok_and(|i| i.boot() != self.boot());
            if other {
                return Err(KvError::Unavailable("another process is registered under this name".into()));
            }
        }
        let lease = self.kv.grant(self.times.0).await?;
        let value = self.value(lease);
        let guard = Compare::ModRev(key.clone(), there.map_or(0, |i| i.mod_rev));
        let reply = self.kv.txn(vec![guard], vec![Op::Put { key, value, lease }]).await;
        match reply {
            Ok(r) if r.succeeded => Ok(lease),
            Ok(_) => Err(KvError::Unavailable("somebody registered at the same time".into())),
            Err(e) => Err(e),
        }
    }

    fn value(&mut self, lease: i64) -> bytes::Bytes {
        let mut info = self.info.borrow_and_update().clone();
        info.set_life(self.boot(), lease);
        info.encode_to_vec().into()
    }

    /// Keeps one life alive.
    async fn keep(&mut self, lease: i64, mut deadline: Instant) -> End {
        let mut renew = Instant::now() + self.times.1;
        loop {
            let held = self.state.borrow().held;
            let turn = tokio::select! {
                biased;
                _ = self.stop.wait_for(|s| *s) => Turn::Stop,
                () = sleep_until(deadline), if held => Turn::Lapse,
                () = sleep_until(renew) => Turn::Renew,
                changed = self.info.changed() => if changed.is_ok() { Turn::Publish } else { Turn::Stop },
            };
            match turn {
                Turn::Stop => return End::Stopped,
                Turn::Lapse => self.lapse(),
                Turn::Publish => {
                    if self.publish(lease).await == Err(KvError::LeaseGone) {
                        return End::LeaseGone;
                    }
                }
                Turn::Renew => {
                    let asked = Instant::now();
                    match self.renew(lease, deadline).await {
                        Ok(left) if left.is_zero() => return End::LeaseGone,
                        Ok(_) => {
                            (deadline, renew) = (asked + self.times.0, asked + self.times.1);
                            self.state.send_if_modified(|s| !std::mem::replace(&mut s.held, true));
                        }
                        Err(e) => {
                            tracing::warn!(name = self.name, error = %e, "the lease was not renewed");
                            renew = Instant::now() + RETRY;
                        }
                    }
                }
            }
        }
    }

    fn lapse(&self) {
        self.state.send_modify(|s| s.held = false);
        tracing::warn!(name = self.name, boot = %self.boot(), "past the lease's TTL by the own clock");
    }

    /// Renews; notices the deadline also while it waits.
    async fn renew(&self, lease: i64, deadline: Instant) -> Result<Duration, KvError> {
        let renewal = self.kv.keep_alive(lease);
        tokio::pin!(renewal);
        let held = self.state.borrow().held;
        tokio::select! {
            left = &mut renewal => return left,
            () = sleep_until(deadline), if held => self.lapse(),
        }
        renewal.await
    }

    /// Writes changed information; an error other than a lost lease is tried again by the next change or renewal.
    async fn publish(&mut self, lease: i64) -> Result<(), KvError> {
        let value = self.value(lease);
        let result = self.kv.txn(vec![], vec![Op::Put { key: T::key(&self.name), value, lease }]).await;
        match result {
            Ok(_) => Ok(()),
            Err(e) => {
                tracing::warn!(name = self.name, error = %e, "the registration was not updated");
                self.info.mark_changed();
                sleep(RETRY).await;
                Err(e)
            }
        }
    }
}
