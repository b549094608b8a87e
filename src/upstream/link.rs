//! One established stream to an owner: the outgoing queue, life and death (design 7.1).
//!
//! ```text
//! dial ──Hello, boot checked──▶ up ──▶ run: batches out, messages in, a ping each second
//!   │ refused, wrong boot, …     │ silence 3 s, queue full, stream over, unused
//!   ▼                            ▼
//! DialError                    End
//! ```

use std::{
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
    time::MissedTickBehavior,
};
use tonic::Streaming;

use super::{
    LinkEvents,
    batch::{Queued, Since},
    dial::LinkConfig,
};
use crate::{clock::Clock, metrics::Metrics};

/// Messages waiting for one link. An op's bytes are shared with the hold, so a place costs about 200 bytes: 3.2 MiB a
/// full queue. At 20,000 messages a second it bridges 0.8 s of a stalled owner; over it the link is torn down (what is
/// held is sent again on the next one) rather than anybody being made to wait.
pub const QUEUE_MSGS: usize = 16_384;
/// Between pings inside the stream.
pub const PING_EVERY: Duration = Duration::from_secs(1);
/// Pings in a row without a word from the owner: dead, after 3 s.
pub const SILENT_PINGS_MAX: u32 = 3;
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
    pub(super) shared: Arc<Shared>,
    pub(super) queue: mpsc::Sender<Queued>,
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
    stale: AtomicU64,
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

    /// One more frame of an old epoch came from here; how many that makes.
    #[must_use]
    pub fn stale(&self) -> u64 {
        self.shared.stale.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Every session bound to this life of the node has been replayed: the watermark may move.
    pub fn set_replayed(&self) {
        self.shared.set_replayed();
    }

    /// Queues a message, or tears the link down if there is no place for it. `arrived`: of an op sent for the first time.
    pub fn send(&self, msg: gateway_msg::M, arrived: Option<Wall>) {
        self.send_since(msg, arrived.map(Since::Arrival));
    }

    /// As [`LinkTx::send`], saying since when the message waits.
    pub fn send_since(&self, msg: gateway_msg::M, since: Option<Since>) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.queue.try_send(Queued { msg, since })
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
    pub fn new(id: LinkId, boot: Boot, node: Arc<str>, clock: Clock, metrics: Arc<Metrics>) -> Self {
        let clock_us = clock.now().mono.0;
        Self {
            id,
            boot,
            node,
            clock,
            metrics,
            replayed: AtomicBool::new(false),
            read_at_us: AtomicU64::new(clock_us),
            stale: AtomicU64::new(0),
            overflowed: AtomicBool::new(false),
            overflow: Notify::new(),
        }
    }
}

/// A link after its hello.
#[derive(Debug)]
pub struct Link {
    /// The sending side.
    pub tx: LinkTx,
    pub(super) inbound: Streaming<OwnerBatch>,
    /// What came with the owner's hello.
    pub(super) early: Vec<owner_msg::M>,
    pub(super) seq: u64,
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
