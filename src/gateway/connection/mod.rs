//! One client, one task, from the upgrade to the last byte.
//!
//! ```text
//! upgraded -> (hello in time?) -> open -> closing: queue, close frame, FIN, wait for theirs -> end
//! ```
//! [`Connection::poll`] is a checklist: reads first (a frame waiting in the kernel would get a late arrival), then timers,
//! then the queue. Everything it calls is synchronous; there is one timer and no buffer while the client is idle.

mod attach;
mod close;
mod frames;
mod hello;
mod timers;

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::StreamExt as _;
use holdfast_core::{
    id::{ConnId, Lane, SessionId},
    proto::{Code, server_frame},
    time::{Mono, Wall},
};
use tokio::time::Sleep;
use tokio_tungstenite::tungstenite::Error as WsError;

use self::{attach::Attaching, close::Closing};
use super::{
    admission::{Gate, Member},
    auth::Identity,
    limits::{ListenerConfig, Stats},
    outbox::Outbox,
    port::{Arrival, SessionPort},
};
use crate::{
    clock::Clock,
    transport::{
        rtt::Rtt,
        websocket::{Socket, Upgrade},
    },
};

/// Messages read before the queue gets its turn.
const READS_PER_TURN: usize = 64;
/// Queued frames joined into one write up to about this many bytes.
const WRITE_BYTES: usize = 16 * 1024;
/// `sent_at` is at most this long after queueing: a client that does not read gains no time by it (design 5.2).
const SENT_AFTER_QUEUED_MAX: Duration = Duration::from_millis(250);

/// What all connections of a listener share.
pub struct Shared {
    /// Limits and keys.
    pub config: ListenerConfig,
    /// Who gets in.
    pub gate: Arc<Gate>,
    /// The sessions.
    pub port: Arc<dyn SessionPort>,
    /// The process's clock.
    pub clock: Clock,
    /// Numbers.
    pub stats: Arc<Stats>,
}

/// One client after its upgrade.
pub struct Connection {
    shared: Arc<Shared>,
    socket: Socket,
    outbox: Arc<Outbox>,
    upgrade: Upgrade,
    client: Option<Client>,
    attaching: Attaching,
    rtt: Rtt,
    clocks: timers::Clocks,
    timer: Pin<Box<Sleep>>,
    /// Start of the current minute and the mistakes in it.
    mistakes: (Mono, u32),
    unknown_told: bool,
    /// Stamped frames given to the socket but not yet taken by the kernel.
    stamps: Vec<Stamped>,
    /// When those of them that came from a link were read from it.
    reads: Vec<Mono>,
    closing: Option<Closing>,
    /// `Detach.reason` for the sessions: 1 bye 2 lost 3 kicked 4 slow.
    reason: u32,
}

/// What hello said.
struct Client {
    identity: Identity,
    lane: Lane,
    conn_seq: u32,
    reconnect: bool,
    member: Member,
    /// What it was last told about coming back.
    told: server_frame::Reconnect,
}

/// A frame whose time of writing is wanted.
struct Stamped {
    session: SessionId,
    ver: u64,
    /// The latest `sent_at` it may get.
    latest: Wall,
}

/// The connection's work is over.
struct Over;

impl Connection {
    /// A connection whose upgrade is done.
    #[must_use]
    pub fn new(shared: Arc<Shared>, outbox: Arc<Outbox>, upgrade: Upgrade, socket: Socket) -> Self {
        let clocks = timers::Clocks::new(shared.clock.now().mono, &shared.config.limits);
        let timer = Box::pin(tokio::time::sleep_until(shared.clock.instant(clocks.opened).into()));
        Self {
            shared,
            socket,
            outbox,
            upgrade,
            client: None,
            attaching: Attaching::default(),
            rtt: Rtt::default(),
            clocks,
            timer,
            mistakes: (Mono(0), 0),
            unknown_told: false,
            stamps: Vec::new(),
            reads: Vec::new(),
            closing: None,
            reason: 2,
        }
    }

    /// Runs it to its end.
    pub async fn run(mut self) {
        poll_fn(|cx| self.poll(cx)).await;
        self.leave();
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.outbox.register(cx.waker());
        let over = self.poll_read(cx).is_err() || self.poll_timers(cx).is_err() || self.poll_write(cx).is_err();
        if over { Poll::Ready(()) } else { Poll::Pending }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Result<(), Over> {
        for _ in 0..READS_PER_TURN {
            if self.closing.is_some() {
                return Ok(());
            }
            match self.socket.poll_next_unpin(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(Ok(message))) => self.message(message),
                Poll::Ready(Some(Err(WsError::Capacity(e)))) => self.close(1009, &format!("message too large: {e}")),
                Poll::Ready(Some(Err(WsError::Utf8(_)))) => self.close(1007, "text message is not UTF-8"),
                Poll::Ready(Some(Err(WsError::Protocol(e)))) if !gone(&e) => {
                    self.close(1002, &format!("not WebSocket: {e}"))
                }
                Poll::Ready(Some(Err(_)) | None) => return Err(Over),
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Result<(), Over> {
        loop {
            match self.socket.get_mut().poll_drain(cx) {
                Poll::Ready(Ok(())) => self.taken(),
                Poll::Ready(Err(_)) => return Err(Over),
                Poll::Pending => return Ok(()),
            }
            let wanted = self.outbox.lock().close.take();
            if let Some((code, reason)) = wanted {
                self.reason = 3;
                self.close(code, &reason);
            }
            if !self.fill() {
                return self.poll_closing(cx);
            }
        }
    }

    /// The kernel has taken everything: stamped frames have their `sent_at`.
    fn taken(&mut self) {
        if self.stamps.is_empty() && self.reads.is_empty() {
            return;
        }
        let now = self.shared.clock.now();
        for read_at in std::mem::take(&mut self.reads) {
            self.shared.port.relayed(now.mono.since(read_at));
        }
        let sent_at = now.wall;
        for stamped in std::mem::take(&mut self.stamps) {
            let sent_at = sent_at.min(stamped.latest);
            self.shared.port.delivered(&stamped.session, self.outbox.conn, stamped.ver, sent_at);
        }
    }

    /// Moves queued frames to the socket, several into one write; `false` = there were none.
    fn fill(&mut self) -> bool {
        let now = self.shared.clock.now();
        let outbox = self.outbox.clone();
        let mut state = outbox.lock();
        let framed = self.socket.get_mut();
        while framed.pending() < WRITE_BYTES
            && let Some((frame, queued_at)) = state.queue.pop(now)
        {
            framed.push(frame.websocket(self.upgrade.form));
            self.attaching.heard(frame.frame());
            self.reads.extend(frame.read_at());
            if frame.stamp() {
                let queued = Wall(now.wall.0.saturating_sub(now.mono.0.saturating_sub(queued_at.0)));
                self.stamps.extend(stamped(frame.frame(), queued.after(SENT_AFTER_QUEUED_MAX)));
            }
        }
        let filled = framed.pending() > 0;
        let slow = state.queue.take_slow();
        let dropped =
            (std::mem::take(&mut state.queue.reactions_dropped), std::mem::take(&mut state.queue.backlogs_dropped));
        drop(state);
        if dropped != (0, 0) {
            self.shared.stats.reactions_dropped.fetch_add(dropped.0, Ordering::Relaxed);
            self.shared.stats.backlogs_dropped.fetch_add(dropped.1, Ordering::Relaxed);
        }
        if !self.stamps.is_empty() {
            self.ping_for_rtt(now.mono);
        }
        for session in slow {
            self.shared.port.slow(&session, self.outbox.conn);
        }
        filled
    }

    /// Queues a frame of our own; `poll_write` comes later in the same turn, so nobody needs waking.
    fn send(&self, frame: server_frame::F) {
        self.outbox.push(frame.into());
    }

    fn error(&self, detail: String) {
        self.send(server_frame::F::Error(server_frame::Error { code: Code::BadFrame.into(), detail }));
    }

    /// Everything about the path, as of the newest read.
    fn arrival(&self) -> Arrival {
        Arrival {
            at: self.socket.get_ref().last_read().wall,
            err_us: u32::try_from(self.shared.stats.sched_lag_us.load(Ordering::Relaxed)).unwrap_or(u32::MAX),
            srtt_us: self.rtt.srtt_us,
            rtt_min_us: self.rtt.min_us(),
            rtt_bound_us: self.rtt.bound_us,
            rtt_samples: self.rtt.samples,
            rtt_source: self.rtt.source(),
            clock_id: self.shared.clock.clock_id(),
        }
    }
}

impl Drop for Connection {
    /// Also when the task panicked or was aborted: sessions never keep a connection that is gone.
    fn drop(&mut self) {
        self.leave();
    }
}

/// The id of a connection as clients and logs see it.
#[must_use]
pub fn label(conn: ConnId) -> String {
    format!("c-{:x}", conn.0)
}

fn stamped(f: &server_frame::F, latest: Wall) -> Option<Stamped> {
    let (session, at) = match f {
        server_frame::F::Event(f) => (&f.session, f.at.as_ref()),
        server_frame::F::Snapshot(f) => (&f.session, f.at.as_ref()),
        _ => return None,
    };
    Some(Stamped { session: SessionId::parse(session).ok()?, ver: at?.ver, latest })
}

fn gone(e: &tokio_tungstenite::tungstenite::error::ProtocolError) -> bool {
    matches!(e, tokio_tungstenite::tungstenite::error::ProtocolError::ResetWithoutClosingHandshake)
}
