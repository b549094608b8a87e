//! From an accepted socket to a connection: PROXY header, TLS, HTTP header and the stages of admission between them.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use holdfast_core::id::ConnId;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tokio_rustls::StartHandshake;

use super::{
    admission::Refusal,
    auth::allowed,
    connection::{Connection, label},
    handle::Handle,
    limits::{ListenerConfig, Stats},
    listener::reset,
    outbox::Outbox,
    queue::Budget,
};
use crate::{
    metrics::Point,
    transport::{
        Peer,
        socket::{Stream, Timed},
        tls::Tls,
        websocket::{self, Hooks, Refused, Socket, Upgrade, Upgraded, Wish},
    },
};

/// Connection ids are unique in the process, whatever the listener.
static NEXT: AtomicU64 = AtomicU64::new(1);
/// Told to a client behind a balancer whose address asks too often; it is known only from the HTTP header.
const PREFIX_WAIT_MS: std::ops::Range<u64> = 1000..5000;

/// A client that has said something.
enum Spoken {
    Plain(Timed),
    /// Boxed: rustls' beginnings are 1.4 KB, the socket 72 B.
    Tls(Box<StartHandshake<Timed>>),
}

impl Spoken {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(timed) => timed.socket(),
            Self::Tls(begun) => begun.io.socket(),
        }
    }
}

impl Handle {
    /// PROXY header, TLS and upgrade, in bounded time together.
    pub(super) async fn client(&self, mut socket: TcpStream, from: SocketAddr) -> Option<(ConnId, Connection)> {
        let shared = &self.shared;
        let by = Instant::now() + shared.gate.settings().handshake_timeout;
        let (peer, early) = self.identify(&mut socket, from, by).await?;
        let direct = shared.config.trust.direct(from);
        if peer != direct && !shared.gate.connect(shared.clock.now(), peer, shared.config.transport()) {
            Stats::add(&shared.stats.refused_prefix);
            reset(&socket);
            return None;
        }
        let timed = Timed::new(socket, early, shared.clock.clone());
        let upgraded =
            timeout_at(by, self.shake(timed, peer)).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match upgraded {
            Ok(Upgraded::Client(upgrade, socket)) => Some(self.connection(peer, upgrade, socket)),
            Ok(Upgraded::Refused | Upgraded::Served) => None,
            Err(e) => {
                Stats::add(&shared.stats.handshakes_failed);
                let late = e.kind() == io::ErrorKind::TimedOut;
                let point = if late { Point::Silent } else { Point::Failed };
                shared.gate.counts().count(point, shared.config.transport(), None);
                tracing::debug!(%peer, error = %e, "handshake failed");
                None
            }
        }
    }

    /// From the first bytes on: nothing computes before its turn has come.
    async fn shake(&self, socket: Timed, peer: Peer) -> io::Result<Upgraded> {
        let (gate, config) = (&self.shared.gate, &self.shared.config);
        socket.socket().set_nodelay(true)?;
        let spoken = match &config.tls {
            Some(_) => Spoken::Tls(Box::new(Tls::hello(socket).await?)),
            None => Spoken::Plain(socket),
        };
        let Some((_place, turn)) = gate.handshake(config.transport()).await else {
            Stats::add(&self.shared.stats.refused_handshakes);
            reset(spoken.socket());
            return Ok(Upgraded::Refused);
        };
        let hold_us = AtomicU64::new(0);
        let upgraded = turn.spend(async {
            let stream = match (spoken, &config.tls) {
                (Spoken::Tls(begun), Some(tls)) => tls.accept(*begun).await?,
                (Spoken::Plain(timed), _) => Stream::Plain(timed),
                (Spoken::Tls(_), None) => return Ok(Upgraded::Refused),
            };
            let hold = |d: Duration| hold_us.store(u64::try_from(d.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
            let admit = |wish: &Wish<'_>| self.admit(wish, peer).map(hold).map_err(refused);
            let hooks = Hooks { pages: config.pages.as_ref(), ready: config.ready.as_ref(), admit: &admit };
            websocket::upgrade(stream, &hooks, config.limits.message_bytes_max).await
        });
        let upgraded = upgraded.await;
        // Its turn is somebody else's by now.
        match hold_us.into_inner() {
            0 => {}
            us => tokio::time::sleep(Duration::from_micros(us)).await,
        }
        upgraded
    }

    /// The admission point, with what only the request tells: how long the client is kept waiting, if it gets in.
    fn admit(&self, wish: &Wish<'_>, peer: Peer) -> Result<Duration, Refusal> {
        let (gate, config, now) = (&self.shared.gate, &self.shared.config, self.shared.clock.now());
        if !allowed(&config.origins, wish.origin) {
            gate.counts().count(Point::Origin, config.transport(), None);
            return Err(Refusal::origin());
        }
        let client = config.trust.forwarded(peer, wish.forwarded_for);
        if client != peer && !gate.connect(now, client, config.transport()) {
            Stats::add(&self.shared.stats.refused_prefix);
            return Err(Refusal::full(Duration::from_millis(rand::random_range(PREFIX_WAIT_MS))));
        }
        gate.upgrade(now, wish.query, config.transport()).map(|(_, hold)| hold)
    }

    fn connection(&self, peer: Peer, mut upgrade: Upgrade, socket: Socket) -> (ConnId, Connection) {
        let config = &self.shared.config;
        // Taken: it is the client's, as long as it likes, and not needed again.
        let peer = config.trust.forwarded(peer, upgrade.forwarded_for.take().as_deref());
        let conn = ConnId(NEXT.fetch_add(1, Ordering::Relaxed));
        tracing::debug!(conn = label(conn), %peer, "upgraded");
        let outbox = Arc::new(Outbox::new(conn, peer, upgrade.form, budget(config), self.shared.clock.clone()));
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(conn, outbox.clone());
        (conn, Connection::new(self.shared.clone(), outbox, upgrade, socket))
    }
}

fn refused(refusal: Refusal) -> Refused {
    Refused { frame: refusal.frame(), retry_after_s: refusal.retry_after_s(), body: refusal.reason }
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
