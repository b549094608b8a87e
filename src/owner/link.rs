//! One gateway's stream: a bounded queue turned into batches, and the messages that come in.

use std::{
    collections::HashSet,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::Stream;
use holdfast_core::{
    id::{LinkId, SessionId},
    proto::{GatewayBatch, GatewayMsg, OwnerBatch, OwnerMsg, gateway_msg, owner_msg},
};
use prost::Message;
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, MissedTickBehavior, interval},
};
use tonic::{Status, Streaming};

use super::sessions::Sessions;

/// Messages waiting for one gateway. Payloads are shared with the record's tail, so a place costs about 250 bytes: 4 MiB a
/// full queue. A gateway that does not read for that long is dropped; it joins again and catches up.
const QUEUE_MSGS: usize = 16_384;
/// A batch goes out with this many messages, this many bytes or after this long (design 7.1).
const BATCH_MSGS: usize = 64;
const BATCH_BYTES: usize = 16 * 1024;
const BATCH_WAIT: Duration = Duration::from_micros(500);
/// Pings inside the stream, and the silence that ends it.
pub(super) const PING_EVERY: Duration = Duration::from_secs(1);
pub(super) const DEAD_AFTER: Duration = Duration::from_secs(3);
/// Pings in a row without a word: [`DEAD_AFTER`].
const SILENT_PINGS_MAX: u32 = 3;

/// The sending side. Sending never blocks; over the queue the link is dropped.
#[derive(Clone, Debug)]
pub(super) struct LinkTx {
    pub id: LinkId,
    queue: mpsc::Sender<owner_msg::M>,
    end: Arc<End>,
}

#[derive(Debug, Default)]
struct End {
    over: AtomicBool,
    notify: Notify,
    through_us: AtomicU64,
}

impl LinkTx {
    pub fn new(id: LinkId) -> (Self, Batches) {
        let (queue, rx) = mpsc::channel(QUEUE_MSGS);
        let end = Arc::new(End::default());
        let batches = Batches { rx, end: end.clone(), open: Vec::new(), bytes: 0, since: None, yielded: false, seq: 0 };
        (Self { id, queue, end }, batches)
    }

    pub fn send(&self, msg: owner_msg::M) {
        if matches!(self.queue.try_send(msg), Err(mpsc::error::TrySendError::Full(_))) {
            tracing::warn!(link = self.id.0, "a gateway does not read: {QUEUE_MSGS} messages wait; dropped");
            self.close();
        }
    }

    /// Ends the link, both ways.
    pub fn close(&self) {
        self.end.over.store(true, Ordering::Release);
        self.end.notify.notify_waiters();
        self.end.notify.notify_one();
    }

    /// Every op of an attached participant that arrived at that gateway until then has come in (its clock).
    #[allow(dead_code, reason = "read by the deadline rule")]
    pub fn through_us(&self) -> u64 {
        self.end.through_us.load(Ordering::Acquire)
    }
}

/// The response stream of one link.
pub(super) struct Batches {
    rx: mpsc::Receiver<owner_msg::M>,
    end: Arc<End>,
    open: Vec<OwnerMsg>,
    bytes: usize,
    since: Option<Instant>,
    yielded: bool,
    seq: u64,
}

impl Batches {
    fn push(&mut self, m: owner_msg::M) {
        if self.since.is_none() {
            self.since = Some(Instant::now());
        }
        let msg = OwnerMsg { m: Some(m) };
        self.bytes += msg.encoded_len();
        self.open.push(msg);
    }

    fn flush(&mut self) -> OwnerBatch {
        self.seq += 1;
        (self.bytes, self.since, self.yielded) = (0, None, false);
        OwnerBatch { msgs: std::mem::take(&mut self.open), seq: self.seq }
    }
}

impl Stream for Batches {
    type Item = Result<OwnerBatch, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.end.over.load(Ordering::Acquire) {
            this.rx.close();
            this.open.clear();
            return Poll::Ready(None);
        }
        loop {
            if this.open.len() >= BATCH_MSGS || this.bytes >= BATCH_BYTES {
                return Poll::Ready(Some(Ok(this.flush())));
            }
            match this.rx.poll_recv(cx) {
                Poll::Ready(Some(msg)) => this.push(msg),
                Poll::Ready(None) if this.open.is_empty() => return Poll::Ready(None),
                Poll::Ready(None) => return Poll::Ready(Some(Ok(this.flush()))),
                Poll::Pending if this.open.is_empty() => return Poll::Pending,
                // the queue is dry: the tasks that were ready have one turn to add to the batch
                Poll::Pending if this.yielded || this.since.is_some_and(|s| s.elapsed() >= BATCH_WAIT) => {
                    return Poll::Ready(Some(Ok(this.flush())));
                }
                Poll::Pending => {
                    this.yielded = true;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }
}

/// Reads a link until it ends, then tells its sessions.
pub(super) async fn read(
    tx: LinkTx,
    early: Vec<GatewayMsg>,
    mut inbound: Streaming<GatewayBatch>,
    sessions: Arc<Sessions>,
) {
    let mut reader = Reader { tx, touched: HashSet::new(), seq: 1, silent: 0 };
    for msg in early {
        reader.take(msg, &sessions);
    }
    let mut ping = interval(PING_EVERY);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = reader.tx.end.clone();
    let why = loop {
        tokio::select! {
            batch = inbound.message() => match batch {
                Ok(Some(batch)) => if let Err(why) = reader.batch(batch, &sessions) { break why },
                Ok(None) => break "it ended",
                Err(_) => break "it broke",
            },
            _ = ping.tick() => {
                // Counted in ticks, so that our own standstill is not taken for the gateway's.
                reader.silent += 1;
                if reader.silent > SILENT_PINGS_MAX {
                    break "it was silent for 3 s";
                }
                let now_us = sessions.clock.now().wall.0;
                reader.tx.send(owner_msg::M::Ping(owner_msg::Ping { n: now_us, now_us }));
            }
            () = end.notify.notified() => break "it was dropped",
        }
    };
    tracing::info!(link = reader.tx.id.0, why, "a gateway's link is over");
    reader.tx.close();
    sessions.link_gone(reader.tx.id, reader.touched);
}

struct Reader {
    tx: LinkTx,
    /// Sessions that know this link.
    touched: HashSet<SessionId>,
    seq: u64,
    /// Pings since the last batch.
    silent: u32,
}

impl Reader {
    fn batch(&mut self, batch: GatewayBatch, sessions: &Arc<Sessions>) -> Result<(), &'static str> {
        self.silent = 0;
        if batch.seq != self.seq + 1 {
            return Err("a batch is missing");
        }
        self.seq = batch.seq;
        for msg in batch.msgs {
            self.take(msg, sessions);
        }
        self.tx.end.through_us.fetch_max(batch.through_us, Ordering::AcqRel);
        Ok(())
    }

    fn take(&mut self, msg: GatewayMsg, sessions: &Arc<Sessions>) {
        match msg.m {
            Some(gateway_msg::M::Ping(p)) => {
                let now_us = sessions.clock.now().wall.0;
                self.tx.send(owner_msg::M::Pong(owner_msg::Pong { n: p.n, now_us, echo_us: p.now_us }));
            }
            Some(msg) => {
                if let Some(session) = sessions.handle(&self.tx, msg) {
                    self.touched.insert(session);
                }
            }
            None => sessions.counters.unknown_msgs.add(1),
        }
    }
}
