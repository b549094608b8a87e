//! Accepts connections, bounds them, and owns their tasks (design 9.4).
//!
//! Every socket passes the stages of [`super::admission`]: here are the accepts and their bounds, in [`super::shake`] what
//! lies between them and a connection.

use std::{
    fs::File,
    io,
    net::SocketAddr,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use futures_util::FutureExt as _;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

pub use super::handle::{ConnectionView, Handle};
use super::{
    admission::Gate,
    connection::Shared,
    limits::{ListenerConfig, Stats},
    port::SessionPort,
    reload::Reload,
};
use crate::clock::Clock;

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
    gate: Arc<Gate>,
    port: Arc<dyn SessionPort>,
    clock: Clock,
    shutdown: watch::Receiver<bool>,
) -> io::Result<()> {
    Listener::bind(config, gate, port, clock)?.run(shutdown.clone(), shutdown).await;
    Ok(())
}

impl Listener {
    /// Binds the address. Inside a tokio runtime.
    pub fn bind(config: ListenerConfig, gate: Arc<Gate>, port: Arc<dyn SessionPort>, clock: Clock) -> io::Result<Self> {
        let address = config.listen;
        let socket = listen(address, config.limits.backlog)
            .map_err(|e| io::Error::new(e.kind(), format!("listen on {address}: {e}")))?;
        let shared = Arc::new(Shared { config, gate, port, clock, stats: Arc::default() });
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
        let shared = &self.handle.shared;
        Stats::add(&shared.stats.accepted);
        let Some(open) = shared.gate.accept(shared.config.transport()) else {
            Stats::add(&shared.stats.refused_connections);
            return reset(&socket);
        };
        // A balancer's own address says nothing; whom it speaks for is asked once that is known.
        let peer = shared.config.trust.direct(from);
        if !shared.gate.connect(shared.clock.now(), peer, shared.config.transport()) {
            Stats::add(&shared.stats.refused_prefix);
            return reset(&socket);
        }
        let (handle, counted) = (self.handle.clone(), shared.stats.hold(|s| &s.open));
        tasks.spawn(async move {
            // Boxed apart: a task is as large as its largest state, and the handshake's is gone soon.
            if let Some(connection) = Box::pin(handle.client(socket, from)).await {
                let conn = connection.0;
                Box::pin(connection.1.run()).await;
                handle.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&conn);
            }
            drop((open, counted));
        });
    }

    async fn failed(&mut self, e: &io::Error) {
        // Anything else (ECONNABORTED, EPROTO…) is about one client that is gone already.
        if !exhausted(e) {
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
}

async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it whoever wanted this listener.
    let _ = shutdown.wait_for(|stop| *stop).await;
}

fn listen(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    TcpListener::from_std(socket.into())
}

/// ENFILE, EMFILE, ENOMEM, ENOBUFS: the next accept would fail too, at once and for ever.
fn exhausted(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(23 | 24 | 12 | 105))
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

/// Refuses a socket with RST: nothing lingers here, and the client knows at once.
pub(super) fn reset(socket: &TcpStream) {
    // If it cannot be set, the close is an orderly one, which is as good for us.
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}
