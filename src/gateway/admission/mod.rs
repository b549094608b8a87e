//! Who gets in, and what everybody else is told (design 9). One [`Gate`] per process, shared by all its listeners.
//!
//! ```text
//! accept ─▶ before TLS: prefix, place, turn ─▶ TLS, HTTP header ─▶ upgrade: class, slot ─▶ hello: token ─▶ attach: owner
//!   RST            RST                            close               101 + 1013, or 503     4001, 4101     detached
//! ```
//! The dear work comes late and the refusals early: before TLS a socket is reset; at the upgrade, where the class is
//! known, nothing of a connection exists yet. What decides is pure (`core::admission`, one short lock, under 1 µs);
//! here are the stages around it, their limits, which may change while they are in use, and their counts.

mod attach;
mod handshakes;
pub mod keys;
mod member;
mod prefix;
mod refusal;
pub mod settings;
mod table;
mod upgrade;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use holdfast_core::{
    admission::{Admission, Class, FleetKeys},
    time::Now,
};

use self::{
    attach::Attaches,
    handshakes::{Handshakes, NoTurn},
    prefix::Prefixes,
};
pub use self::{
    attach::{Turn as AttachTurn, UnderWay, Waiting},
    handshakes::{Place, Turn},
    member::{Member, Resumed},
    prefix::TABLES_BYTES_MAX,
    refusal::Refusal,
    settings::Settings,
    upgrade::resume_of,
};
use crate::{
    metrics::{Admission as Counts, Point, Transport},
    transport::Peer,
};

/// The gate of one process.
pub struct Gate {
    /// This gateway in what it seals.
    label: [u8; 8],
    settings: ArcSwap<Settings>,
    keys: ArcSwap<FleetKeys>,
    /// Connections, handshakes included.
    open: AtomicUsize,
    /// Connections there may be at all: nine tenths of the descriptors.
    descriptors: usize,
    handshakes: Arc<Handshakes>,
    prefixes: Prefixes,
    admission: Mutex<Admission>,
    attaches: Attaches,
    /// Connections that have said hello, by class.
    members: [AtomicU32; Class::ALL.len()],
    counts: Arc<Counts>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// One connection among those that are open, until dropped.
#[derive(Debug)]
pub struct Open(Arc<Gate>);

impl Gate {
    /// A gate for the gateway of that name. It counts into `counts`.
    #[must_use]
    pub fn new(settings: Settings, keys: FleetKeys, gateway: &str, counts: Arc<Counts>) -> Arc<Self> {
        Arc::new(Self {
            label: label(gateway),
            open: AtomicUsize::new(0),
            descriptors: settings::descriptors_for_clients(),
            handshakes: Handshakes::new(settings.handshake_turns),
            prefixes: Prefixes::new(),
            admission: Mutex::new(upgrade::admission(&settings)),
            attaches: Attaches::default(),
            members: Default::default(),
            counts,
            settings: ArcSwap::from_pointee(settings),
            keys: ArcSwap::from_pointee(keys),
        })
    }

    /// The limits in force.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Other limits, from now on. Nobody's connection ends by it, and no schedule, bucket or slot starts anew: what was
    /// spent is spent, and slots given stay good.
    pub fn set(&self, now: Now, settings: Settings) {
        self.handshakes.resize(settings.handshake_turns);
        self.admission().configure(now.mono, upgrade::config(&settings));
        self.settings.store(Arc::new(settings));
    }

    /// Other keys of the fleet, from now on.
    pub fn set_keys(&self, keys: FleetKeys) {
        self.keys.store(Arc::new(keys));
    }

    /// Accept: one more connection, if there may be. Counted here, not when it has become something.
    pub fn accept(self: &Arc<Self>, transport: Transport) -> Option<Open> {
        let max = self.settings.load().connections_max;
        let room = |n: usize| (n < max.min(self.descriptors)).then_some(n + 1);
        if self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok() {
            return Some(Open(self.clone()));
        }
        let point = if max <= self.descriptors { Point::Connections } else { Point::Descriptors };
        self.counts.count(point, transport, None);
        None
    }

    /// Before TLS: whether a connection may come from there.
    pub fn connect(&self, now: Now, peer: Peer, transport: Transport) -> bool {
        let may = self.prefixes.connect(now.mono, peer, &self.settings.load());
        if !may {
            self.counts.count(Point::Prefix, transport, None);
        }
        may
    }

    /// Before TLS, when the client has spoken: a place among the handshakes under way and a turn to compute.
    pub(super) async fn handshake(&self, transport: Transport) -> Option<(Place, Turn)> {
        let (max, longest) = {
            let settings = self.settings.load();
            (settings.handshakes_max, settings.handshake_queue)
        };
        let begun = tokio::time::Instant::now();
        let outcome = match self.handshakes.place(max) {
            Ok(place) => self.handshakes.turn(longest).await.map(|turn| (place, turn)),
            Err(no) => Err(no),
        };
        match outcome {
            Ok(both) => {
                self.counts.queued(begun.elapsed());
                Some(both)
            }
            Err(no) => {
                let point = if no == NoTurn::Full { Point::Handshakes } else { Point::QueueTime };
                self.counts.count(point, transport, None);
                None
            }
        }
    }

    /// Handshakes under way.
    #[must_use]
    pub fn handshakes(&self) -> usize {
        self.handshakes.under_way()
    }

    /// Auth: how long no token from there is looked at; zero = it is.
    #[must_use]
    pub fn barred(&self, now: Now, peer: Peer) -> Duration {
        self.prefixes.barred(now.mono, peer, &self.settings.load())
    }

    /// A token from there did not verify (an expired one did: it is none of these).
    pub fn auth_failed(&self, now: Now, peer: Peer) {
        self.prefixes.failed(now.mono, peer, &self.settings.load());
    }

    /// Attach: a turn at an owner (`""` = not known yet); the error is when to ask again.
    ///
    /// # Errors
    /// The turn would be later than an attach may wait.
    pub fn attach(&self, now: Now, owner: &str) -> Result<Waiting, Duration> {
        self.attaches.queue(now.mono, owner, &self.settings.load())
    }

    /// What is counted here.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    fn admission(&self) -> MutexGuard<'_, Admission> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A gateway's name in 8 bytes: enough to tell a fleet's apart, and it says nothing to clients.
fn label(gateway: &str) -> [u8; 8] {
    let hash =
        gateway.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    hash.to_be_bytes()
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
