//! Accepts connections, bounds them, and owns their tasks (design 9.4).
//!
//! Admission beyond the numbers here (slots, shares, prefixes) has its place in [`admit`], before TLS, and in `client`
//! after the upgrade, where the query and the origin are known.

use std::{
    fs::File,
    io,
    net::SocketAddr,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use holdfast_core::id::ConnId;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, timeout, timeout_at},
};

pub use super::handle::{ConnectionView, Handle};
use super::{
    connection::{Connection, Shared},
    limits::{Held, ListenerConfig, Stats},
    outbox::Outbox,
    port::SessionPort,
    queue::Budget,
    reload::Reload,
};
use crate::{
    clock::Clock,
    transport::{
        socket::{Stream, Timed},
        websocket,
    },
};

/// Accepts before other work gets its turn.
const ACCEPTS_PER_TURN: usize = 64;
/// First pause after the descriptors ran out; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(5);
/// Longest pause after the descriptors ran out.
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How often the scheduler's lag is measured.
const LAG_EVERY: Duration = Duration::from_millis(100);

/// How often everybody is told to go while the listener stops.
const CLOSE_ALL_EVERY: Duration = Duration::from_millis(200);
/// Tokio's timers are this coarse: not lag.
const TIMER_STEP_US: u64 = 1000;
/// Connection ids are unique in the process, whatever the listener.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A bound listener.
pub struct Listener {
    socket: TcpListener,
    handle: Handle,
    /// Given up to accept, and refuse, one more when the descriptors run out: else the kernel would report it for ever.
    reserve: Option<File>,
    backoff: Duration,
}

/// Listens until `shutdown` turns true, then closes every connection and waits for their ends.
pub async fn serve(
    config: ListenerConfig,
    port: Arc<dyn SessionPort>,
    clock: Clock,
    shutdown: watch::Receiver<bool>,
) -> io::Result<()> {
    Listener::bind(config, port, clock)?.run(shutdown.clone(), shutdown).await;
    Ok(())
}

impl Listener {
    /// Binds the address. Inside a tokio runtime.
    pub fn bind(config: ListenerConfig, port: Arc<dyn SessionPort>, clock: Clock) -> io::Result<Self> {
        let address = config.listen;
        let socket = listen(address, config.limits.backlog)
            .map_err(|e| io::Error::new(e.kind(), format!("listen on {address}: {e}")))?;
        let shared = Arc::new(Shared { config, port, clock, stats: Arc::default() });
        let handle = Handle { shared, open: Arc::default() };
        handle.stats().accepting.store(1, Ordering::Release);
        Ok(Self { socket, handle, reserve: spare(), backoff: BACKOFF_MIN })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// For operators and metrics.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Accepts until `no_more` turns true, serves what is open until `shutdown` does, then closes what is left. A sender
    /// that is gone says the same as true.
    pub async fn run(mut self, mut no_more: watch::Receiver<bool>, mut shutdown: watch::Receiver<bool>) {
        let mut tasks = JoinSet::new();
        let mut reload = Reload::new(&self.handle.shared.config);
        let mut lag = interval(LAG_EVERY);
        lag.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stopped(&mut no_more) => break,
                due = lag.tick() => {
                    self.handle.measure(due);
                    reload.tick().await;
                }
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => self.handle.ended(&ended),
                accepted = self.socket.accept() => self.accepted(accepted, &mut tasks).await,
            }
        }
        let handle = self.stop_accepting(&mut tasks);
        loop {
            tokio::select! {
                biased;
                () = stopped(&mut shutdown) => break,
                due = lag.tick() => {
                    handle.measure(due);
                    reload.tick().await;
                }
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => handle.ended(&ended),
            }
        }
        let until = Instant::now() + handle.shared.config.limits.close_timeout + Duration::from_secs(1);
        // Past that the set is dropped, which aborts what is left.
        while !tasks.is_empty() && Instant::now() < until {
            // Again and again: handshakes under way become connections.
            handle.close_all();
            let _ = timeout(CLOSE_ALL_EVERY, async { while tasks.join_next().await.is_some() {} }).await;
        }
    }

    async fn accepted(&mut self, mut accepted: io::Result<(TcpStream, SocketAddr)>, tasks: &mut JoinSet<()>) {
        for _ in 0..ACCEPTS_PER_TURN {
            match accepted {
                Ok((socket, from)) => {
                    self.backoff = BACKOFF_MIN;
                    self.start(socket, from, tasks);
                }
                Err(e) => return self.failed(&e).await,
            }
            match self.socket.accept().now_or_never() {
                Some(next) => accepted = next,
                None => return,
            }
        }
        tokio::task::yield_now().await;
    }

    /// Takes what the kernel has accepted already (closing the socket would reset it), then closes the socket.
    fn stop_accepting(self, tasks: &mut JoinSet<()>) -> Handle {
        for _ in 0..self.handle.shared.config.limits.backlog {
            match self.socket.accept().now_or_never() {
                Some(Ok((socket, from))) => self.start(socket, from, tasks),
                Some(Err(_)) => {}
                None => break,
            }
        }
        self.handle.stats().accepting.store(0, Ordering::Release);
        self.handle
    }

    fn start(&self, socket: TcpStream, from: SocketAddr, tasks: &mut JoinSet<()>) {
        Stats::add(&self.handle.stats().accepted);
        match admit(&self.handle.shared) {
            Some((open, handshake)) => {
                let handle = self.handle.clone();
                tasks.spawn(async move {
                    // Boxed apart: a task is as large as its largest state, and the handshake's is gone soon.
                    if let Some(connection) = Box::pin(handle.client(socket, from, handshake)).await {
                        let conn = connection.0;
                        Box::pin(connection.1.run()).await;
                        handle.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&conn);
                    }
                    drop(open);
                });
            }
            None => reset(&socket),
        }
    }

    async fn failed(&mut self, e: &io::Error) {
        // Anything else (ECONNABORTED, EPROTO…) is about one client that is gone already.
        let out_of_descriptors = matches!(e.raw_os_error(), Some(23 | 24));
        if !out_of_descriptors {
            return;
        }
        Stats::add(&self.handle.stats().no_descriptors);
        tracing::warn!(
            backoff_ms = self.backoff.as_millis(),
            "out of descriptors: refusing connections; raise LimitNOFILE"
        );
        self.reserve = None;
        if let Some(Ok((socket, _))) = self.socket.accept().now_or_never() {
            reset(&socket);
        }
        self.reserve = spare();
        tokio::time::sleep(self.backoff).await;
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
    }
}

impl Handle {
    fn ended(&self, ended: &Result<(), tokio::task::JoinError>) {
        if ended.as_ref().is_err_and(tokio::task::JoinError::is_panic) {
            Stats::add(&self.stats().panicked);
            tracing::error!("a connection's task panicked");
            // Its outbox closed itself when the connection was dropped.
            self.open.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, o| !o.lock().closed);
        }
    }

    /// How late this task ran is how late a read may have been: the newest quarter of it weighs.
    fn measure(&self, due: Instant) {
        let late = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX).saturating_sub(TIMER_STEP_US);
        let lag = &self.stats().sched_lag_us;
        let old = lag.load(Ordering::Relaxed);
        lag.store(late.max(old - old / 4), Ordering::Relaxed);
    }

    /// PROXY header, TLS and upgrade, in bounded time together.
    async fn client(&self, mut socket: TcpStream, from: SocketAddr, handshake: Held) -> Option<(ConnId, Connection)> {
        let config = &self.shared.config;
        let by = Instant::now() + config.limits.handshake_timeout;
        let (peer, early) = self.identify(&mut socket, from, by).await?;
        let shake = async {
            socket.set_nodelay(true)?;
            let timed = Timed::new(socket, early, self.shared.clock.clone());
            let stream = match &config.tls {
                Some(tls) => tls.accept(timed).await?,
                None => Stream::Plain(timed),
            };
            websocket::upgrade(stream, config.pages.clone(), config.ready.clone(), config.limits.message_bytes_max)
                .await
        };
        let upgraded = timeout_at(by, shake).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        drop(handshake);
        let (mut upgrade, socket) = match upgraded {
            Ok(upgraded) => upgraded?,
            Err(e) => {
                Stats::add(&self.shared.stats.handshakes_failed);
                tracing::debug!(%peer, error = %e, "handshake failed");
                return None;
            }
        };
        // Taken: it is the client's, as long as it likes, and not needed again.
        let peer = config.trust.forwarded(peer, upgrade.forwarded_for.take().as_deref());
        let conn = ConnId(NEXT.fetch_add(1, Ordering::Relaxed));
        tracing::debug!(conn = super::connection::label(conn), %peer, "upgraded");
        let outbox = Arc::new(Outbox::new(conn, peer, upgrade.form, budget(config), self.shared.clock.clone()));
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(conn, outbox.clone());
        Some((conn, Connection::new(self.shared.clone(), outbox, upgrade, socket)))
    }
}

async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it whoever wanted this listener.
    let _ = shutdown.wait_for(|stop| *stop).await;
}

/// Whether one more connection is let in; the guards count it.
fn admit(shared: &Shared) -> Option<(Held, Held)> {
    let (stats, limits) = (&shared.stats, &shared.config.limits);
    let full = |gauge: &AtomicU64, max: usize| gauge.load(Ordering::Relaxed) >= max as u64;
    if full(&stats.open, limits.connections_max) {
        Stats::add(&stats.refused_connections);
        return None;
    }
    if full(&stats.handshakes, limits.handshakes_max) {
        Stats::add(&stats.refused_handshakes);
        return None;
    }
    Some((stats.hold(|s| &s.open), stats.hold(|s| &s.handshakes)))
}

fn budget(config: &ListenerConfig) -> Budget {
    let limits = &config.limits;
    Budget {
        bytes_max: limits.queue_bytes_max,
        reaction_bytes_max: limits.queue_reaction_bytes_max,
        reaction_ttl: Duration::from_millis(u64::from(limits.reaction_ttl_ms)),
        slow_timeout: limits.slow_timeout,
        sessions_max: limits.sessions_max,
    }
}

fn listen(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    TcpListener::from_std(socket.into())
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

/// Refuses a socket with RST: nothing lingers here, and the client knows at once.
pub(super) fn reset(socket: &TcpStream) {
    // If it cannot be set, the close is an orderly one, which is as good for us.
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}
