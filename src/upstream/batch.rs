//! The outgoing half of a link: a bounded queue turned into batches (design 7.1).

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::Stream;
use holdfast_core::{
    proto::{GatewayBatch, GatewayMsg, gateway_msg},
    time::{Mono, Wall},
};
use prost::Message;
use tokio::sync::mpsc;

use super::link::Shared;

/// Messages in one batch at most.
pub const BATCH_MSGS: usize = 64;
/// A batch is closed by the message that brings it to this many bytes; 16 KiB + one message (<= 17 KiB) fit every
/// owner's receive limit.
pub const BATCH_BYTES: usize = 16 * 1024;
/// Longest that a message waits for company. In practice a batch goes out as soon as the queue is dry and the other
/// tasks that were ready have had one turn to add to it.
pub const BATCH_WAIT: Duration = Duration::from_micros(500);
/// How far the watermark stays behind: the way of an op from the socket read that stamped it to this queue is one
/// uninterrupted turn of its connection's task, far below a millisecond; 50 ms covers a descheduled worker thread.
const THROUGH_SLACK_US: u64 = 50_000;

/// One message on its way to an owner.
#[derive(Debug)]
pub struct Queued {
    /// The message.
    pub msg: gateway_msg::M,
    /// For the histograms of what waited.
    pub since: Option<Since>,
}

/// What an op waited for until its hand-over to the stream, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// First sends: its arrival.
    Arrival(Wall),
    /// Resends to another owner or epoch: the directory's word of it.
    Move(Wall),
}

/// The request stream of one link.
#[derive(Debug)]
pub struct Batches {
    queue: mpsc::Receiver<Queued>,
    link: Arc<Shared>,
    open: Vec<GatewayMsg>,
    waits: Vec<Since>,
    bytes: usize,
    since: Option<Mono>,
    yielded: bool,
    seq: u64,
    through_us: u64,
}

impl Batches {
    pub(super) fn new(queue: mpsc::Receiver<Queued>, link: Arc<Shared>) -> Self {
        Self {
            queue,
            link,
            open: Vec::new(),
            waits: Vec::new(),
            bytes: 0,
            since: None,
            yielded: false,
            seq: 0,
            through_us: 0,
        }
    }

    fn push(&mut self, queued: Queued) {
        if self.since.is_none() {
            self.since = Some(self.link.clock.now().mono);
        }
        self.waits.extend(queued.since);
        let msg = GatewayMsg { m: Some(queued.msg) };
        self.bytes += msg.encoded_len();
        self.open.push(msg);
    }

    fn flush(&mut self) -> GatewayBatch {
        let now = self.link.clock.now();
        for wait in self.waits.drain(..) {
            match wait {
                Since::Arrival(at) => self.link.metrics.gateway_up(now.wall.0.saturating_sub(at.0)),
                Since::Move(at) => self.link.metrics.resent_after_move(now.wall.0, at.0),
            }
        }
        // Ops still in the queue, or still to be replayed, are not on the stream: the watermark waits for them.
        if self.queue.is_empty() && self.link.is_replayed() {
            self.through_us = self.through_us.max(now.wall.0.saturating_sub(THROUGH_SLACK_US));
        }
        self.seq += 1;
        self.bytes = 0;
        self.since = None;
        self.yielded = false;
        GatewayBatch { msgs: std::mem::take(&mut self.open), seq: self.seq, through_us: self.through_us }
    }

    fn is_full(&self) -> bool {
        self.open.len() >= BATCH_MSGS || self.bytes >= BATCH_BYTES
    }

    fn is_due(&self) -> bool {
        self.since.is_some_and(|since| self.link.clock.now().mono.since(since) >= BATCH_WAIT)
    }
}

impl Stream for Batches {
    type Item = GatewayBatch;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<GatewayBatch>> {
        let this = &mut *self;
        loop {
            if this.is_full() {
                return Poll::Ready(Some(this.flush()));
            }
            match this.queue.poll_recv(cx) {
                Poll::Ready(Some(queued)) => this.push(queued),
                Poll::Ready(None) if this.open.is_empty() => return Poll::Ready(None),
                Poll::Ready(None) => return Poll::Ready(Some(this.flush())),
                Poll::Pending if this.open.is_empty() => return Poll::Pending,
                Poll::Pending if this.yielded || this.is_due() => return Poll::Ready(Some(this.flush())),
                Poll::Pending => {
                    this.yielded = true;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use holdfast_core::proto::gateway_msg::{M, Ping, Reaction};

    use super::*;
    use crate::upstream::link::tests::shared;

    fn ping(n: u64) -> Queued {
        Queued { msg: M::Ping(Ping { n, now_us: 0 }), since: None }
    }

    #[tokio::test]
    async fn batches_close_at_their_limits_and_count_from_one() {
        let (tx, rx) = mpsc::channel(512);
        let mut batches = Batches::new(rx, shared());
        for n in 0..130 {
            tx.try_send(ping(n)).unwrap();
        }
        let mut sizes = Vec::new();
        for seq in 1..=3 {
            let batch = batches.next().await.unwrap();
            assert_eq!(batch.seq, seq);
            sizes.push(batch.msgs.len());
        }
        assert_eq!(sizes, [64, 64, 2]);
        let big = M::Reaction(Reaction { payload: vec![0; 9000].into(), ..Default::default() });
        for _ in 0..4 {
            tx.try_send(Queued { msg: big.clone(), since: None }).unwrap();
        }
        assert_eq!(batches.next().await.unwrap().msgs.len(), 2);
        drop(tx);
        assert_eq!(batches.next().await.unwrap().msgs.len(), 2);
        assert!(batches.next().await.is_none());
    }

    #[tokio::test]
    async fn the_watermark_waits_for_the_replay_and_for_the_queue() {
        let (tx, rx) = mpsc::channel(512);
        let link = shared();
        let mut batches = Batches::new(rx, link.clone());
        tx.try_send(ping(0)).unwrap();
        assert_eq!(batches.next().await.unwrap().through_us, 0, "not replayed yet");
        link.set_replayed();
        (0..=64).for_each(|n| tx.try_send(ping(n)).unwrap());
        assert_eq!(batches.next().await.unwrap().through_us, 0, "one is still queued");
        let through = batches.next().await.unwrap().through_us;
        let now = link.clock.now().wall.0;
        assert!(through > 0 && through + THROUGH_SLACK_US <= now, "{through} {now}");
    }
}
