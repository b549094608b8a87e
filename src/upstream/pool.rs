//! One link per life of a node, shared by all sessions; dialled while somebody wants it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use holdfast_core::{
    backoff::Backoff,
    id::{Boot, LinkId},
    time::Wall,
};
use tokio::{
    sync::{Notify, watch},
    task::{Id, JoinSet},
};

use super::{
    LinkEvents, Nodes,
    dial::{self, DialError, LinkConfig, Target},
    link::{self, End, LinkTx},
};
use crate::{
    clock::Clock,
    metrics::{Level, Metrics},
};

/// Waits between dials (decorrelated jitter).
const REDIAL_BASE: Duration = Duration::from_millis(50);
const REDIAL_CAP: Duration = Duration::from_secs(1);
/// A refused node is reported at most this often.
const SUSPECT_EVERY: Duration = Duration::from_millis(250);
/// A link that lasted this long starts the waits anew.
const LASTED: Duration = Duration::from_secs(5);

/// The links of a gateway. Cheap to clone.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    config: LinkConfig,
    clock: Clock,
    metrics: Arc<Metrics>,
    nodes: Arc<dyn Nodes>,
    /// One per life of a node that somebody is bound to, or was within the last minute: tens, not thousands.
    peers: Mutex<HashMap<Boot, Arc<Peer>>>,
    /// Peers that have no task yet; the driver starts one for each.
    fresh: Mutex<Vec<Arc<Peer>>>,
    wake: Notify,
    next_link: AtomicU64,
}

/// A link, or one that is wanted, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkView {
    /// The node.
    pub node: Arc<str>,
    /// Which life of it.
    pub boot: Boot,
    /// Whether it is up.
    pub up: bool,
    /// Since when.
    pub since: Wall,
}

struct Peer {
    boot: Boot,
    node: Arc<str>,
    /// Address from a hint or route; the directory's word counts more.
    hint: Mutex<Arc<str>>,
    current: Mutex<Option<LinkTx>>,
    /// When the link last came or went, in microseconds of the wall clock.
    changed_us: AtomicU64,
    /// Dial now: a session wants it, or the directory changed.
    nudge: Notify,
}

impl Pool {
    /// A pool without links. [`Pool::run`] must run for anything to happen.
    #[must_use]
    pub fn new(config: LinkConfig, clock: Clock, metrics: Arc<Metrics>, nodes: Arc<dyn Nodes>) -> Self {
        Self(Arc::new(Inner {
            config,
            clock,
            metrics,
            nodes,
            peers: Mutex::default(),
            fresh: Mutex::default(),
            wake: Notify::new(),
            next_link: AtomicU64::new(1),
        }))
    }

    /// A link to this life of a node is wanted: the one there is, or `None` and [`LinkEvents::up`] later. The caller is
    /// counted by [`LinkEvents::bound`] already. Never blocks.
    pub fn connect(&self, boot: Boot, node: &Arc<str>, addr: &Arc<str>) -> Option<LinkTx> {
        let mut peers = lock(&self.0.peers);
        if let Some(peer) = peers.get(&boot) {
            if !addr.is_empty() {
                lock(&peer.hint).clone_from(addr);
            }
            return lock(&peer.current).clone();
        }
        let peer = Arc::new(Peer {
            boot,
            node: node.clone(),
            hint: Mutex::new(addr.clone()),
            current: Mutex::default(),
            changed_us: self.0.clock.now().wall.0.into(),
            nudge: Notify::new(),
        });
        peers.insert(boot, peer.clone());
        lock(&self.0.fresh).push(peer);
        self.0.wake.notify_one();
        None
    }

    /// The directory has news of this node.
    pub fn node_changed(&self, node: &str) {
        let peers = lock(&self.0.peers);
        peers.values().filter(|p| &*p.node == node).for_each(|p| p.nudge.notify_one());
    }

    /// The links there are and those that are wanted.
    #[must_use]
    pub fn links(&self) -> Vec<LinkView> {
        let view = |p: &Arc<Peer>| LinkView {
            node: p.node.clone(),
            boot: p.boot,
            up: lock(&p.current).is_some(),
            since: Wall(p.changed_us.load(Ordering::Relaxed)),
        };
        lock(&self.0.peers).values().map(view).collect()
    }

    /// Whether an established link to this life of a node exists.
    #[must_use]
    pub fn link_alive(&self, boot: Boot) -> bool {
        lock(&self.0.peers).get(&boot).is_some_and(|p| lock(&p.current).is_some())
    }

    /// Sends `msg` on every link.
    pub fn broadcast(&self, msg: &holdfast_core::proto::gateway_msg::M) {
        for peer in lock(&self.0.peers).values() {
            if let Some(link) = &*lock(&peer.current) {
                link.send(msg.clone(), None);
            }
        }
    }

    /// Drives all links until `stop` is true; a peer's task that panics is forgotten and counted.
    pub async fn run(&self, events: Arc<dyn LinkEvents>, mut stop: watch::Receiver<bool>) {
        let mut tasks: JoinSet<()> = JoinSet::new();
        let mut running: HashMap<Id, Arc<Peer>> = HashMap::new();
        loop {
            for peer in std::mem::take(&mut *lock(&self.0.fresh)) {
                let (inner, events) = (self.0.clone(), events.clone());
                let task = tasks.spawn({
                    let peer = peer.clone();
                    async move { inner.peer(peer, events).await }
                });
                running.insert(task.id(), peer);
            }
            tokio::select! {
                () = self.0.wake.notified() => {}
                Some(ended) = tasks.join_next_with_id() => self.ended(ended, &mut running, &*events).await,
                () = stopped(&mut stop) => break,
            }
        }
        tasks.shutdown().await;
    }

    async fn ended(
        &self,
        ended: Result<(Id, ()), tokio::task::JoinError>,
        running: &mut HashMap<Id, Arc<Peer>>,
        events: &dyn LinkEvents,
    ) {
        let (id, panicked) = match &ended {
            Ok((id, ())) => (*id, false),
            Err(e) => (e.id(), true),
        };
        let Some(peer) = running.remove(&id).filter(|_| panicked) else { return };
        tracing::error!(node = %peer.node, boot = %peer.boot, "a link's task panicked; it is dialled anew");
        let link = lock(&peer.current).take();
        if let Some(link) = link {
            self.0.metrics.links(-1);
            events.down(&link).await;
        }
        lock(&self.0.fresh).push(peer);
        self.0.wake.notify_one();
    }
}

impl Inner {
    /// Dials, runs the link, dials again; ends when nobody wants it any more.
    async fn peer(self: Arc<Self>, peer: Arc<Peer>, events: Arc<dyn LinkEvents>) {
        let mut backoff = Backoff::new(REDIAL_BASE, REDIAL_CAP);
        let mut suspected: Option<Instant> = None;
        let mut seen = false;
        while !self.forget(&peer, &*events) {
            if let Some(addr) = self.address(&peer, &mut seen) {
                match self.dial(&peer, addr).await {
                    Ok(link) => {
                        let began = Instant::now();
                        self.serve(&peer, link, &*events).await;
                        if began.elapsed() > LASTED {
                            backoff.reset();
                        }
                    }
                    Err(DialError::Refused) => {
                        self.metrics.dial_failed("refused");
                        if suspected.is_none_or(|at| at.elapsed() >= SUSPECT_EVERY) {
                            suspected = Some(Instant::now());
                            events.refused(&peer.node, peer.boot);
                        }
                    }
                    Err(e) => {
                        self.metrics.dial_failed(if matches!(e, DialError::NotTheOne(_)) { "boot" } else { "other" });
                        tracing::debug!(node = %peer.node, boot = %peer.boot, error = %e, "no link");
                    }
                }
            }
            let wait = backoff.next(rand::random());
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = peer.nudge.notified() => {}
            }
        }
    }

    async fn dial(&self, peer: &Peer, addr: Arc<str>) -> Result<link::Link, DialError> {
        let id = LinkId(self.next_link.fetch_add(1, Ordering::Relaxed));
        let target = Target { node: peer.node.clone(), boot: peer.boot, addr, link: id };
        dial::dial(&self.config, target, &self.clock, &self.metrics).await
    }

    async fn serve(&self, peer: &Peer, link: link::Link, events: &dyn LinkEvents) {
        let tx = link.tx.clone();
        tracing::info!(node = %peer.node, boot = %peer.boot, link = tx.id().0, "link up");
        self.metrics.links(1);
        *lock(&peer.current) = Some(tx.clone());
        self.changed(peer);
        let replay = async {
            events.up(&tx).await;
            tx.set_replayed();
            std::future::pending().await
        };
        let end = tokio::select! {
            end = link.run(&self.config, events) => end,
            never = replay => never,
        };
        *lock(&peer.current) = None;
        let now = self.changed(peer);
        self.metrics.links(-1);
        self.metrics.link_ended(&end);
        match &end {
            End::Unused => tracing::info!(node = %peer.node, boot = %peer.boot, "link closed: unused"),
            _ => {
                tracing::warn!(node = %peer.node, boot = %peer.boot, link = tx.id().0, ?end, "link down");
                let sessions = events.bound(peer.boot);
                let text = format!("the link to {} (boot {}) is lost, with {sessions} sessions", peer.node, peer.boot);
                self.metrics.happenings().push(now, Level::Bad, text);
            }
        }
        events.down(&tx).await;
    }

    /// The peer's link came or went now.
    fn changed(&self, peer: &Peer) -> Wall {
        let now = self.clock.now().wall;
        peer.changed_us.store(now.0, Ordering::Relaxed);
        now
    }

    /// Where to dial; `None` while the directory says that this life is over (or knows no address).
    fn address(&self, peer: &Peer, seen: &mut bool) -> Option<Arc<str>> {
        match self.nodes.node(&peer.node) {
            Some((boot, addr)) if boot == peer.boot => {
                *seen = true;
                Some(addr)
            }
            Some(_) => None,
            None if *seen => None,
            None => Some(lock(&peer.hint).clone()).filter(|addr| !addr.is_empty()),
        }
    }

    /// Removes the peer if no session is bound to it. Under the pool's lock, so that a `connect` that comes now makes
    /// a new one.
    fn forget(&self, peer: &Peer, events: &dyn LinkEvents) -> bool {
        let mut peers = lock(&self.peers);
        let unwanted = events.bound(peer.boot) == 0;
        if unwanted {
            peers.remove(&peer.boot);
        }
        unwanted
    }
}

/// Completes when `stop` is true or its sender is gone.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
