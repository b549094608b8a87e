//! Builds a gateway from its parts and runs it until it is told to stop.
//!
//! ```text
//! start ── listeners bound ──▶ serving ── shutdown, drain, or a part ended ──▶ draining ([`drain`])
//! ── clients gone and held ops settled, or the deadline ──▶ links told and closed, lease revoked
//! ```

use std::{
    future::Future,
    net::SocketAddr,
    sync::{Arc, OnceLock, atomic::Ordering},
    time::Duration,
};

use anyhow::Context as _;
use holdfast_core::proto::{GatewayInfo, gateway_msg};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{MissedTickBehavior, sleep},
};

pub use config::{DrainConfig, GatewayConfig, HeldBudget};
pub use drain::{DrainAsk, DrainStatus};
pub use fleet::{Forecast, GatewayView, OwnerView};
pub use handle::{DirectoryState, GatewayHandle, HeldOp, SessionSummary};

use super::{
    admission::Gate,
    handle::Handle,
    limits::ListenerConfig,
    listener::Listener,
    port::SessionPort,
    sessions::{Parts, SUSPECTS_QUEUED, Sessions},
};
use crate::{
    clock::Clock,
    metrics::{Metrics, REFUSALS},
    placement::{kv::Kv, lease::GatewayLease, watch::Watcher},
    transport::websocket::Ready,
    upstream::{LinkEvents, dial::LinkConfig, pool::Pool},
};
use directory::Follower;
use drain::{Control, Drainer};
use keys::KeysFile;
use suspect::Reporter;

mod config;
mod directory;
mod drain;
mod fleet;
mod handle;
mod keys;
mod suspect;
#[cfg(test)]
mod tests;
mod told;

/// How often the numbers of listeners, directory and clock are brought into the metrics.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the directory hears how many connections there are, in looks.
const ANNOUNCE_LOOKS: u32 = 10;
/// Longest spread told to clients: beyond it they may as well ask.
const SPREAD_MS_MAX: u64 = 60_000;
/// The links' streams get this long to take a last word.
const LAST_WORD: Duration = Duration::from_millis(20);

/// Runs a gateway on `directory` until `shutdown` completes or the handle's `drain` is called, then drains. `started`
/// gets the admin's handle once the listeners are bound.
///
/// # Errors
/// A listener cannot be bound, or a part of the gateway ended on its own.
pub async fn run(
    config: GatewayConfig,
    listeners: Vec<ListenerConfig>,
    directory: Kv,
    shutdown: impl Future<Output = ()> + Send,
    started: impl FnOnce(GatewayHandle) + Send,
) -> anyhow::Result<()> {
    let mut gateway = Gateway::start(&config, listeners, directory)?;
    started(gateway.handle.clone());
    let asked = gateway.handle.clone();
    let outcome = tokio::select! {
        () = shutdown => Ok(()),
        () = asked.drain.asked() => Ok(()),
        ended = gateway.tasks.join_next() => Err(ended),
        Some(ended) = gateway.listening.join_next() => Err(Some(ended.map(|()| "a listener"))),
    };
    gateway.handle.drain(DrainAsk::default());
    gateway.drain(&config).await;
    outcome.map_err(|ended| match ended {
        Some(Ok(part)) => anyhow::anyhow!("{part} ended on its own"),
        Some(Err(e)) => anyhow::Error::from(e).context("a part of the gateway panicked"),
        None => anyhow::anyhow!("no part of the gateway runs"),
    })
}

/// A running gateway. Each part is a task in `tasks`, which yields its name when it ends.
struct Gateway {
    handle: GatewayHandle,
    pool: Pool,
    lease: Arc<GatewayLease>,
    tasks: JoinSet<&'static str>,
    listening: JoinSet<()>,
    /// Ends the accepting, the listeners, then everything else.
    stop_accepting: watch::Sender<bool>,
    stop_listening: watch::Sender<bool>,
    stop: watch::Sender<bool>,
}

impl Gateway {
    fn start(config: &GatewayConfig, mut listeners: Vec<ListenerConfig>, directory: Kv) -> anyhow::Result<Self> {
        let clock = Clock::start();
        let metrics = Arc::new(Metrics::new());
        let (keys_file, keys) = KeysFile::open(config.keys_file.clone())?;
        let gate = Gate::new(config.admission.clone(), keys, &config.id, metrics.admission());
        let late = Arc::new(OnceLock::new());
        let watcher = Watcher::spawn(directory.clone(), directory::sink(late.clone(), metrics.clone(), clock.clone()));
        let follower = Arc::new(Follower(watcher.clone()));
        let link = LinkConfig { security: config.link.clone(), ..LinkConfig::new(&config.id) };
        let pool = Pool::new(link, clock.clone(), metrics.clone(), follower.clone());
        let (suspects, refused) = mpsc::channel(SUSPECTS_QUEUED);
        let sessions = Arc::new(Sessions::new(Parts {
            clock: clock.clone(),
            metrics: metrics.clone(),
            pool: pool.clone(),
            directory: follower,
            held: config.held,
            suspects,
        }));
        sessions.set_rates(config.admission.ops);
        // Nobody else sets it.
        drop(late.set(Arc::downgrade(&sessions)));
        let (stop, stopped) = watch::channel(false);
        let (stop_accepting, no_more) = watch::channel(false);
        let (stop_listening, shutdown) = watch::channel(false);
        let mut listening = JoinSet::new();
        let drain = Arc::new(Control::default());
        let ready = readiness(&drain, &watcher, &clock);
        listeners.iter_mut().for_each(|l| l.ready = Some(ready.clone()));
        let handles = listen((listeners, &gate), (&sessions, &clock), (&no_more, &shutdown), &mut listening)?;
        let info = GatewayInfo {
            addr: config.advertise.clone(),
            admit_per_s: config.admission.admit_per_s,
            ..Default::default()
        };
        let lease = Arc::new(GatewayLease::spawn(directory.clone(), &config.id, clock.boot(), info));
        let handle = GatewayHandle {
            metrics: metrics.clone(),
            gate,
            sessions: sessions.clone(),
            watcher,
            pool: pool.clone(),
            node: config.id.as_str().into(),
            clock,
            listeners: handles.into(),
            drain,
        };
        let reporter = config.fast_path.then(|| Reporter {
            gateway: config.id.clone(),
            placement: config.placement.clone(),
            security: config.link.clone(),
            directory,
            pool: pool.clone(),
            metrics,
            refused,
        });
        let tasks = parts(&handle, &pool, (&lease, keys_file), reporter, &stopped);
        Ok(Self { handle, pool, lease, tasks, listening, stop_accepting, stop_listening, stop })
    }

    /// Clients leave and held ops settle (or the deadline passes), then the rest stops.
    async fn drain(mut self, config: &GatewayConfig) {
        self.lease.update(|info| info.draining = true);
        tracing::info!(held = self.handle.sessions.held_ops(), "draining");
        let mut drainer = Drainer::new(&self.handle, config.drain, config.admission.admit_per_s);
        drainer.notice().await;
        self.stop_accepting.send_replace(true);
        drainer.run().await;
        tracing::info!(status = ?self.handle.drain_status(), "drained");
        self.stop_listening.send_replace(true);
        while self.listening.join_next().await.is_some() {}
        let left = self.handle.sessions.held_ops();
        if left > 0 {
            tracing::warn!(held = left, "stopped with ops that did not settle; their outcome is unknown");
        }
        let by_us = self.handle.clock.now().wall.0;
        self.pool.broadcast(&gateway_msg::M::GoingAway(gateway_msg::GoingAway { by_us }));
        sleep(LAST_WORD).await;
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        if let Some(lease) = Arc::into_inner(self.lease) {
            lease.close().await;
        }
    }
}

fn listen(
    (configs, gate): (Vec<ListenerConfig>, &Arc<Gate>),
    (sessions, clock): (&Arc<Sessions>, &Clock),
    (no_more, shutdown): (&watch::Receiver<bool>, &watch::Receiver<bool>),
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<Vec<(SocketAddr, Handle)>> {
    let mut handles = Vec::new();
    for config in configs {
        let port: Arc<dyn SessionPort> = sessions.clone();
        let listener = Listener::bind(config, gate.clone(), port, clock.clone())?;
        handles.push((listener.local_addr().context("listener")?, listener.handle()));
        tasks.spawn(listener.run(no_more.clone(), shutdown.clone()));
    }
    Ok(handles)
}

/// What the listeners' `/readyz` asks.
fn readiness(drain: &Arc<Control>, watcher: &Watcher, clock: &Clock) -> Ready {
    let (drain, watcher, clock) = (drain.clone(), watcher.clone(), clock.clone());
    Arc::new(move || handle::not_ready(&drain, &watcher, &clock).is_empty())
}

/// Starts the parts that run to the very end.
fn parts(
    handle: &GatewayHandle,
    pool: &Pool,
    (lease, keys_file): (&Arc<GatewayLease>, KeysFile),
    reporter: Option<Reporter>,
    stopped: &watch::Receiver<bool>,
) -> JoinSet<&'static str> {
    let mut tasks = JoinSet::new();
    let sessions = &handle.sessions;
    let events: Arc<dyn LinkEvents> = sessions.clone();
    let part = |stop: &watch::Receiver<bool>| stop.clone();
    let (p, stop) = (pool.clone(), part(stopped));
    tasks.spawn(async move {
        p.run(events, stop).await;
        "the pool of links"
    });
    let (s, stop) = (sessions.clone(), part(stopped));
    tasks.spawn(async move {
        s.run_timers(stop).await;
        "the timers"
    });
    let (s, stop) = (sessions.clone(), part(stopped));
    tasks.spawn(async move {
        s.run_resolver(stop).await;
        "the reader of the directory"
    });
    let (h, l, stop) = (handle.clone(), lease.clone(), part(stopped));
    tasks.spawn(async move {
        look(h, l, keys_file, stop).await;
        "the numbers"
    });
    if let Some(reporter) = reporter {
        let stop = part(stopped);
        tasks.spawn(async move {
            reporter.run(stop).await;
            "the fast path"
        });
    }
    tasks
}

/// Brings numbers kept elsewhere into the metrics, and the number of connections into the directory.
async fn look(handle: GatewayHandle, lease: Arc<GatewayLease>, mut keys: KeysFile, mut stop: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looks: u32 = 0;
    let (mut told, mut announced) = (told::Told::default(), 0);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.changed() => return,
        }
        let (connections, dropped) = totals(&handle);
        handle.metrics.reactions_dropped_in_queues(dropped);
        let fresh = handle.watcher.state();
        handle.metrics.directory(fresh.synced(), fresh.age.unwrap_or_default());
        handle.metrics.drift(handle.clock.drift_us());
        told.look(&handle.metrics, handle.clock.now().wall, fresh.synced());
        let spread = spread_ms(connections, handle.admitted_by_others().into());
        handle.listeners.iter().for_each(|(_, l)| l.stats().spread_ms.store(spread, Ordering::Relaxed));
        keys.tick(&handle.gate).await;
        let admit_per_s = handle.gate.settings().admit_per_s;
        if looks.is_multiple_of(ANNOUNCE_LOOKS) || announced != admit_per_s {
            announced = admit_per_s;
            lease.update(|info| {
                info.connections = u32::try_from(connections).unwrap_or(u32::MAX);
                info.admit_per_s = admit_per_s;
            });
        }
        looks = looks.wrapping_add(1);
    }
}

/// How long the others need to take `connections` over, and 5 % (design 9.2), in milliseconds; 0 = there are none.
fn spread_ms(connections: u64, admit_per_s: u64) -> u64 {
    match admit_per_s {
        0 => 0,
        others => (connections.saturating_mul(1050) / others).clamp(1, SPREAD_MS_MAX),
    }
}

/// Sums over the listeners: connections now, and reactions dropped from their queues ever.
fn totals(handle: &GatewayHandle) -> (u64, u64) {
    let (mut open, mut accepted, mut silent, mut dropped, mut refused) = (0, 0, 0, 0, [0; REFUSALS.len()]);
    for (_, listener) in handle.listeners.iter() {
        let s = listener.stats();
        let get = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        open += get(&s.open);
        accepted += get(&s.accepted);
        silent += get(&s.silent);
        dropped += get(&s.reactions_dropped);
        let by_reason = [
            &s.refused_connections,
            &s.refused_handshakes,
            &s.no_descriptors,
            &s.handshakes_failed,
            &s.tokens_refused,
            &s.proxy_untrusted,
            &s.proxy_missing,
            &s.proxy_malformed,
        ];
        refused.iter_mut().zip(by_reason).for_each(|(sum, n)| *sum += get(n));
    }
    handle.metrics.listener(open, (accepted, silent), refused);
    (open, dropped)
}
