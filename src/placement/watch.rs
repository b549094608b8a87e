//! The driver of the directory cache: keeps a [`Directory`] in step with etcd and tells one sink what changed. Gateways
//! use it to find owners, owners to see their own sessions come and go (design 8.3, 7.3).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::{Duration, Instant},
};

use holdfast_core::{
    directory::{self, Directory, Guarded, Merge, PlacementUnit, State},
    id::{Boot, SessionId},
    proto::{GatewayInfo, NodeInfo, Placement},
    session::Route,
    time::Mono,
};
use prost::Message as _;
use tokio::{sync::watch, task::JoinHandle};

use super::{
    feed::follow,
    keys,
    kv::{Kv, KvError},
};

mod apply;

use apply::{handle, tell_swept};

/// Linearizable reads under way at once; more answer [`KvError::Unavailable`]: 4,096 x ~300 bytes = 1.2 MB.
const RESOLVES_MAX: usize = 4096;

/// News from the directory.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A session has (another) owner, was parked, or has ended.
    Route(SessionId, Route),
    /// A complete list or a linearizable read no longer has the session.
    Gone(SessionId),
    /// A node registered, or changed what it says of itself.
    Node(Arc<str>, NodeInfo),
    /// A node's lease ended.
    NodeGone(Arc<str>, Boot),
    /// A gateway registered or changed; `None` = its lease ended.
    Gateway(Arc<str>, Option<GatewayInfo>),
    /// The cache is complete and the watch is alive.
    Synced,
    /// The cache may be old from now on.
    Stale,
}

/// Where news go. Called without locks held; must not block.
pub type Sink = Arc<dyn Fn(Change) + Send + Sync>;

/// How fresh the cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// The state.
    pub state: State,
    /// Time since it was last known to be current; `None` = never was.
    pub age: Option<Duration>,
    /// The guard holds back a sweep until [`Watcher::accept`].
    pub guarded: Option<Guarded>,
}

impl Freshness {
    /// Complete and alive.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.state == State::Synced
    }
}

type Resolved = Result<Option<Route>, KvError>;

struct Inner {
    kv: Kv,
    start: Instant,
    directory: RwLock<Directory>,
    gateways: Mutex<HashMap<Arc<str>, GatewayInfo>>,
    resolves: Mutex<HashMap<SessionId, watch::Receiver<Option<Resolved>>>>,
    state: watch::Sender<State>,
    sink: Sink,
}

/// A running follower of the directory; it stops when the last clone is dropped.
#[derive(Clone)]
pub struct Watcher {
    inner: Arc<Inner>,
    _task: Arc<Task>,
}

struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Watcher {
    /// Starts to follow.
    #[must_use]
    pub fn spawn(kv: Kv, sink: Sink) -> Self {
        let inner = Arc::new(Inner {
            kv: kv.clone(),
            start: Instant::now(),
            directory: RwLock::default(),
            gateways: Mutex::default(),
            resolves: Mutex::default(),
            state: watch::channel(State::Cold).0,
            sink,
        });
        let feed = inner.clone();
        let task = tokio::spawn(follow(kv, move |f| handle(&feed, f)));
        Self { inner, _task: Arc::new(Task(task)) }
    }

    /// What the cache knows of a session; no I/O.
    #[must_use]
    pub fn lookup(&self, session: &SessionId) -> Option<Route> {
        self.inner.read().lookup(&PlacementUnit::of(session))
    }

    /// The address of one life of a node.
    #[must_use]
    pub fn addr(&self, node: &str, boot: Boot) -> Option<Arc<str>> {
        self.inner.read().addr(node, boot)
    }

    /// What a node says of itself.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<NodeInfo> {
        self.inner.read().node(name).cloned()
    }

    /// The nodes that are registered, with what they say of themselves.
    #[must_use]
    pub fn nodes(&self) -> Vec<(Arc<str>, NodeInfo)> {
        self.inner.read().nodes().map(|(name, info)| (name.clone(), info.clone())).collect()
    }

    /// The gateways that live, with what they last said.
    #[must_use]
    pub fn gateways(&self) -> Vec<(Arc<str>, GatewayInfo)> {
        lock(&self.inner.gateways).iter().map(|(n, g)| (n.clone(), g.clone())).collect()
    }

    /// Known units owned by this life of a node.
    #[must_use]
    pub fn owned_by(&self, boot: Boot) -> Vec<(SessionId, Route)> {
        self.inner.read().owned_by(boot).map(|(u, r)| (u.session().clone(), r.clone())).collect()
    }

    /// How fresh the cache is.
    #[must_use]
    pub fn state(&self) -> Freshness {
        let directory = self.inner.read();
        Freshness { state: directory.state(), age: directory.age(self.inner.now()), guarded: directory.guarded() }
    }

    /// Counts since start.
    #[must_use]
    pub fn counters(&self) -> directory::Counters {
        self.inner.read().counters()
    }

    /// Waits for the first complete list (or a later one).
    pub async fn synced(&self) {
        let mut state = self.inner.state.subscribe();
        let _closed = state.wait_for(|s| *s == State::Synced).await;
    }

    /// An operator accepts that what the last list lacked is gone.
    pub fn accept(&self) {
        let swept = self.inner.write().accept();
        tell_swept(&self.inner, swept);
    }

    /// Merges what an owner said of a session's owner; `true` = it is news (a larger epoch).
    pub fn hint(&self, session: &SessionId, route: Route) -> bool {
        self.inner.merge(session, Route { revision: 0, ..route }) == Merge::Changed
    }

    /// A linearizable read of a session's placement, merged into the cache; `None` = there is none. One read at a time
    /// per session: who comes meanwhile gets the same answer.
    ///
    /// # Errors
    /// The read failed; the cache is as it was.
    pub async fn resolve(&self, session: &SessionId) -> Result<Option<Route>, KvError> {
        let mut answer = self.read_or_join(session)?;
        match answer.wait_for(Option::is_some).await {
            Ok(result) => result.clone().unwrap_or_else(|| Err(KvError::Unknown("the read was dropped".into()))),
            Err(_) => Err(KvError::Unknown("the read was dropped".into())),
        }
    }

    /// The receiver of the read under way, which is started if there is none.
    fn read_or_join(&self, session: &SessionId) -> Result<watch::Receiver<Option<Resolved>>, KvError> {
        let mut resolves = lock(&self.inner.resolves);
        if let Some(under_way) = resolves.get(session) {
            return Ok(under_way.clone());
        }
        if resolves.len() >= RESOLVES_MAX {
            return Err(KvError::Unavailable(format!("{RESOLVES_MAX} reads are under way")));
        }
        let (tx, rx) = watch::channel(None);
        resolves.insert(session.clone(), rx.clone());
        let (inner, session) = (self.inner.clone(), session.clone());
        // a task of its own, so that whoever asked first may go away; it ends within the timeout of one read
        tokio::spawn(async move {
            let result = inner.read_placement(&session).await;
            lock(&inner.resolves).remove(&session);
            tx.send_replace(Some(result));
        });
        Ok(rx)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    fn now(&self) -> Mono {
        Mono(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Directory> {
        self.directory.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Directory> {
        self.directory.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one way in for placements.
    fn merge(&self, session: &SessionId, route: Route) -> Merge {
        let unit = PlacementUnit::of(session);
        let (merge, now) = {
            let mut directory = self.write();
            (directory.merge(&unit, route), directory.lookup(&unit))
        };
        if matches!(merge, Merge::Changed | Merge::Updated)
            && let Some(route) = now
        {
            (self.sink)(Change::Route(session.clone(), route));
        }
        merge
    }

    async fn read_placement(&self, session: &SessionId) -> Resolved {
        let (item, revision) = self.kv.get(&keys::session(session)).await?;
        let unit = PlacementUnit::of(session);
        match item.and_then(|i| Some(directory::route(&Placement::decode(i.value).ok()?, i.mod_rev))) {
            Some(route) => {
                if self.merge(session, route) == Merge::Alarm {
                    tracing::error!(%session, "the directory names two owners for one epoch");
                }
            }
            None => {
                let gone = self.write().handle_absent(&unit, revision);
                if gone {
                    (self.sink)(Change::Gone(session.clone()));
                }
            }
        }
        Ok(self.read().lookup(&unit))
    }
}
