//! One established stream to an owner: the hello, the outgoing queue, life and death (design 7.1).
//!
//! ```text
//! dial ──Hello, boot checked──▶ up ──▶ run: batches out, messages in, a ping each second
//!   │ refused, wrong boot, …     │ silence 3 s, queue full, stream over, unused
//!   ▼                            ▼
//! DialError                    End
//! ```

use std::{
    error::Error,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use holdfast_core::{
    id::{Boot, LinkId},
    proto::{OwnerBatch, gateway_msg, owner_msg},
    time::{Mono, Wall},
};
use tokio::{
    sync::{Notify, mpsc},
    time::{MissedTickBehavior, timeout},
};
use tonic::{
    Code, Request, Status, Streaming,
    transport::{Channel, Endpoint},
};

use super::{
    LinkEvents,
    batch::{Batches, Queued},
    rpc::owner_client::OwnerClient,
};
use crate::{clock::Clock, metrics::Metrics};

/// Messages waiting for one link. An op's bytes are shared with the hold, so a place costs about 200 bytes: 3.2 MiB a
/// full queue. At 20,000 messages a second it bridges 0.8 s of a stalled owner; over it the link is torn down (what is
/// held is sent again on the next one) rather than anybody being made to wait.
pub const QUEUE_MSGS: usize = 16_384;
/// Until the TCP connection stands.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// From the connection to the owner's hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(3);
/// Between pings inside the stream.
pub const PING_EVERY: Duration = Duration::from_secs(1);
/// Pings in a row without a word from the owner: dead, after 3 s.
pub const SILENT_PINGS_MAX: u32 = 3;
/// HTTP/2 windows (measured, design 17).
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Largest batch taken: a snapshot of a document is the largest message, 1 MiB with room.
const RECEIVE_MAX: usize = 16 << 20;
/// Protocol versions of the link.
const VERSION: u32 = 1;

/// Who dials, and how.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// This gateway's stable name.
    pub gateway_id: String,
    /// Sent as `authorization: Bearer`; `None` = nothing.
    pub token: Option<Arc<str>>,
    /// Silence that ends a link is `SILENT_PINGS_MAX` of these; [`PING_EVERY`] but in tests.
    pub ping_every: Duration,
    /// A link no session is bound to is closed after this long; 60 s but in tests.
    pub unused_max: Duration,
}

impl LinkConfig {
    /// The defaults.
    #[must_use]
    pub fn new(gateway_id: &str) -> Self {
        Self { gateway_id: gateway_id.into(), token: None, ping_every: PING_EVERY, unused_max: Duration::from_secs(60) }
    }
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Nothing listens at the node's own address: its process is gone.
    #[error("refused")]
    Refused,
    /// Another life of the node answers, or the owner found us mistaken: the directory will say more.
    #[error("another boot, or no common version: {0}")]
    NotTheOne(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

/// Why a link ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Three pings in a row unanswered.
    Silent,
    /// The outgoing queue was full.
    Overflow,
    /// The stream ended or broke.
    Broken(String),
    /// No session was bound to it for long.
    Unused,
}

/// The sending side of a link. Cheap to clone; sending never blocks.
#[derive(Clone, Debug)]
pub struct LinkTx {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Queued>,
}

/// What both halves of a link know.
#[derive(Debug)]
pub(super) struct Shared {
    pub id: LinkId,
    pub boot: Boot,
    pub node: Arc<str>,
    pub clock: Clock,
    pub metrics: Arc<Metrics>,
    replayed: AtomicBool,
    /// When the batch that is being handled was read, in microseconds of the monotonic clock.
    read_at_us: AtomicU64,
    overflowed: AtomicBool,
    overflow: Notify,
}

impl Shared {
    pub fn is_replayed(&self) -> bool {
        self.replayed.load(Ordering::Acquire)
    }

    pub fn set_replayed(&self) {
        self.replayed.store(true, Ordering::Release);
    }
}

impl LinkTx {
    /// Unique within the process.
    #[must_use]
    pub fn id(&self) -> LinkId {
        self.shared.id
    }

    /// The life of the node at the other end.
    #[must_use]
    pub fn boot(&self) -> Boot {
        self.shared.boot
    }

    /// The node at the other end.
    #[must_use]
    pub fn node(&self) -> &Arc<str> {
        &self.shared.node
    }

    /// Free places in the queue.
    #[must_use]
    pub fn room(&self) -> usize {
        self.queue.capacity()
    }

    /// All places of the queue.
    #[must_use]
    pub fn places(&self) -> usize {
        self.queue.max_capacity()
    }

    /// When the batch that is being handled (or was, last) was read.
    #[must_use]
    pub fn read_at(&self) -> Mono {
        Mono(self.shared.read_at_us.load(Ordering::Relaxed))
    }

    /// Every session bound to this life of the node has been replayed: the watermark may move.
    pub fn set_replayed(&self) {
        self.shared.set_replayed();
    }

    /// Queues a message, or tears the link down if there is no place for it. `arrived`: of an op sent for the first time.
    pub fn send(&self, msg: gateway_msg::M, arrived: Option<Wall>) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.queue.try_send(Queued { msg, arrived })
            && !self.shared.overflowed.swap(true, Ordering::AcqRel)
        {
            self.shared.overflow.notify_one();
        }
    }

    /// A link to nobody, for tests of the sessions; what is sent comes out of the receiver.
    #[cfg(test)]
    pub(crate) fn fake(id: u64, boot: Boot, places: usize) -> (Self, mpsc::Receiver<Queued>) {
        let (queue, rx) = mpsc::channel(places);
        let shared = Arc::new(Shared::new(LinkId(id), boot, "n1".into(), Clock::start(), Arc::new(Metrics::new())));
        (Self { shared, queue }, rx)
    }
}

impl Shared {
    fn new(id: LinkId, boot: Boot, node: Arc<str>, clock: Clock, metrics: Arc<Metrics>) -> Self {
        let clock_us = clock.now().mono.0;
        Self {
            id,
            boot,
            node,
            clock,
            metrics,
            replayed: AtomicBool::new(false),
            read_at_us: AtomicU64::new(clock_us),
            overflowed: AtomicBool::new(false),
            overflow: Notify::new(),
        }
    }
}

/// Whom to dial.
#[derive(Clone, Debug)]
pub struct Target {
    /// The node's name.
    pub node: Arc<str>,
    /// The life of it that is meant.
    pub boot: Boot,
    /// `host:port`.
    pub addr: Arc<str>,
    /// Id of the link to be.
    pub link: LinkId,
}

/// A link after its hello.
#[derive(Debug)]
pub struct Link {
    /// The sending side.
    pub tx: LinkTx,
    inbound: Streaming<OwnerBatch>,
    /// What came with the owner's hello.
    early: Vec<owner_msg::M>,
    seq: u64,
}

/// Connects, says hello and checks the answer.
///
/// # Errors
/// See [`DialError`]; ends within about 4 s.
pub async fn dial(
    config: &LinkConfig,
    target: Target,
    clock: &Clock,
    metrics: &Arc<Metrics>,
) -> Result<Link, DialError> {
    let channel = connect(&target.addr).await?;
    let (queue, rx) = mpsc::channel(QUEUE_MSGS);
    let shared = Arc::new(Shared::new(target.link, target.boot, target.node, clock.clone(), metrics.clone()));
    let tx = LinkTx { shared: shared.clone(), queue };
    tx.send(gateway_msg::M::Hello(hello(config, &shared)), None);
    let mut request = Request::new(Batches::new(rx, shared));
    if let Some(token) = &config.token {
        let value = format!("Bearer {token}").parse().map_err(|_| DialError::Failed("link token: not ASCII".into()))?;
        request.metadata_mut().insert("authorization", value);
    }
    let mut client = OwnerClient::new(channel).max_decoding_message_size(RECEIVE_MAX);
    let greeting = async {
        let mut inbound = client.link(request).await.map_err(|s| refused(&s))?.into_inner();
        let first = inbound.message().await.map_err(|s| refused(&s))?;
        let first = first.ok_or_else(|| DialError::Failed("the stream ended before a hello".into()))?;
        Ok((inbound, first))
    };
    let (inbound, first) =
        timeout(HELLO_TIMEOUT, greeting).await.map_err(|_| DialError::Failed("no hello within 3 s".into()))??;
    let seq = first.seq;
    let mut msgs = first.msgs.into_iter().filter_map(|m| m.m);
    match msgs.next() {
        Some(owner_msg::M::Hello(h)) if h.boot == target.boot.0 => {}
        Some(owner_msg::M::Hello(h)) => {
            return Err(DialError::NotTheOne(format!("boot {} answers, {} was meant", Boot(h.boot), target.boot)));
        }
        _ => return Err(DialError::Failed("the first message is not a hello".into())),
    }
    Ok(Link { tx, inbound, early: msgs.collect(), seq })
}

async fn connect(addr: &str) -> Result<Channel, DialError> {
    let endpoint = Endpoint::from_shared(format!("http://{addr}"))
        .map_err(|e| DialError::Failed(format!("address {addr}: {e}")))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    // The timeout of the endpoint covers TCP only; a listener that never speaks HTTP/2 is cut off here.
    match timeout(CONNECT_TIMEOUT * 2, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(e)) if is_refused(&e) => Err(DialError::Refused),
        Ok(Err(e)) => Err(DialError::Failed(format!("{e:?}"))),
        Err(_) => Err(DialError::Failed("connecting took too long".into())),
    }
}

fn is_refused(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(e) = cause {
        if e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
            return true;
        }
        cause = e.source();
    }
    false
}

fn refused(status: &Status) -> DialError {
    match status.code() {
        Code::FailedPrecondition => DialError::NotTheOne(status.message().into()),
        _ => DialError::Failed(status.to_string()),
    }
}

fn hello(config: &LinkConfig, link: &Shared) -> gateway_msg::Hello {
    gateway_msg::Hello {
        version_min: VERSION,
        version_max: VERSION,
        gateway_id: config.gateway_id.clone(),
        boot: link.clock.boot().0,
        // Link ids only grow, so they order the dials of this boot.
        link_seq: link.id.0,
        expect_boot: link.boot.0,
        clock_id: link.clock.clock_id(),
        now_us: link.clock.now().wall.0,
        features: Vec::new(),
        max_batch_bytes: u32::try_from(RECEIVE_MAX).unwrap_or(u32::MAX),
    }
}

impl Link {
    /// Runs until the link ends. The caller tells the sessions of its rise (concurrently) and fall.
    pub async fn run(mut self, config: &LinkConfig, events: &dyn LinkEvents) -> End {
        for msg in std::mem::take(&mut self.early) {
            self.handle(events, msg);
        }
        let mut ticks = tokio::time::interval(config.ping_every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut pings, mut silent, mut unused) = (0, 0, Duration::ZERO);
        let shared = self.tx.shared.clone();
        loop {
            tokio::select! {
                () = shared.overflow.notified() => return End::Overflow,
                batch = self.inbound.message() => match batch {
                    Ok(Some(batch)) => {
                        silent = 0;
                        if let Err(end) = self.take(events, batch) {
                            return end;
                        }
                    }
                    Ok(None) => return End::Broken("the owner ended the stream".into()),
                    Err(status) => return End::Broken(status.to_string()),
                },
                _ = ticks.tick() => {
                    // Counted in ticks, so that our own standstill is not taken for the owner's.
                    silent += 1;
                    if silent > SILENT_PINGS_MAX {
                        return End::Silent;
                    }
                    pings += 1;
                    self.tx.send(gateway_msg::M::Ping(gateway_msg::Ping { n: pings, now_us: now_us(&shared) }), None);
                    unused = if events.bound(shared.boot) == 0 { unused + config.ping_every } else { Duration::ZERO };
                    if unused > config.unused_max {
                        return End::Unused;
                    }
                }
            }
        }
    }

    fn take(&mut self, events: &dyn LinkEvents, batch: OwnerBatch) -> Result<(), End> {
        if batch.seq != self.seq + 1 {
            return Err(End::Broken(format!("batch {} after {}", batch.seq, self.seq)));
        }
        self.seq = batch.seq;
        let shared = &self.tx.shared;
        shared.read_at_us.store(shared.clock.now().mono.0, Ordering::Relaxed);
        for msg in batch.msgs {
            match msg.m {
                Some(m) => self.handle(events, m),
                None => self.tx.shared.metrics.link_unknown(),
            }
        }
        Ok(())
    }

    fn handle(&self, events: &dyn LinkEvents, msg: owner_msg::M) {
        match msg {
            owner_msg::M::Ping(p) => {
                let now_us = now_us(&self.tx.shared);
                self.tx.send(gateway_msg::M::Pong(gateway_msg::Pong { n: p.n, now_us, echo_us: p.now_us }), None);
            }
            owner_msg::M::Pong(p) => {
                let rtt_us = now_us(&self.tx.shared).saturating_sub(p.echo_us);
                self.tx.shared.metrics.link_rtt(rtt_us);
            }
            // Credit: the hold's own budgets are below every owner's default of 4,096.
            owner_msg::M::Hello(_) | owner_msg::M::Credit(_) => {}
            other => events.message(&self.tx, other),
        }
    }
}

fn now_us(shared: &Shared) -> u64 {
    shared.clock.now().wall.0
}

#[cfg(test)]
pub(super) mod tests;
