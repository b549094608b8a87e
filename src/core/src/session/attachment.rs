//! One client's attachment to the session.

use crate::{
    id::{ConnId, Lane},
    proto::{self, server_frame},
    session::{Client, bucket::Bucket},
    time::Mono,
};

/// Acks that wait for their events; the client has at most this many ops in flight per lane.
const DEFERRED_MAX: usize = 64;

/// Why a client is given a snapshot (`ServerFrame.Snapshot.reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    First = 1,
    Behind = 2,
    Diverged = 3,
    Asked = 4,
    Slow = 5,
}

/// The answer to an attach, kept until it is known whether events or a snapshot follow.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub lane_seq: u64,
    pub rejected: Vec<proto::Rejected>,
    pub head_ver: u64,
}

/// Where an attachment stands.
#[derive(Debug)]
pub(super) enum Phase {
    /// The owner has not answered yet.
    Waiting,
    /// A catch-up was asked for; session-wide events are skipped until it comes.
    Pulling { why: Why, answer: Option<Answer> },
    /// Gets every event.
    Live,
}

#[derive(Debug)]
pub(super) struct Attachment {
    pub client: Client,
    pub phase: Phase,
    /// Newest version delivered.
    pub ver: u64,
    /// Highest epoch delivered, or claimed by the client: nothing older is ever sent.
    pub epoch: u64,
    pub since: Mono,
    /// It was told `moving` and not yet `live`.
    pub told_moving: bool,
    /// Acks of versions not yet delivered.
    pub deferred: Vec<server_frame::Ack>,
    pub ops: Bucket,
    pub resends: Bucket,
    pub reactions: Bucket,
    pub resyncs: Bucket,
}

impl Attachment {
    pub fn new(client: Client, now: Mono) -> Self {
        let (ver, epoch) = (client.seen.ver, client.seen.epoch);
        Self {
            client,
            phase: Phase::Waiting,
            ver,
            epoch,
            since: now,
            told_moving: false,
            deferred: Vec::new(),
            ops: Bucket::default(),
            resends: Bucket::default(),
            reactions: Bucket::default(),
            resyncs: Bucket::default(),
        }
    }

    pub fn conn(&self) -> ConnId {
        self.client.conn
    }

    pub fn lane(&self) -> Lane {
        self.client.lane
    }

    pub fn is_participant(&self) -> bool {
        self.client.role != 2
    }

    pub fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live)
    }

    pub fn is_answered(&self) -> bool {
        !matches!(self.phase, Phase::Waiting | Phase::Pulling { answer: Some(_), .. })
    }

    /// Keeps an ack until its event is delivered. Over the bound the oldest goes: its op is in `lane_seq` of the
    /// catch-up that is under way.
    pub fn defer(&mut self, ack: server_frame::Ack) {
        if self.deferred.len() == DEFERRED_MAX {
            self.deferred.remove(0);
        }
        self.deferred.push(ack);
    }

    /// Acks whose events have been delivered.
    pub fn due_acks(&mut self) -> Vec<server_frame::Ack> {
        if self.deferred.is_empty() || !self.is_live() {
            return Vec::new();
        }
        let ver = self.ver;
        let (due, rest) =
            std::mem::take(&mut self.deferred).into_iter().partition(|a| a.at.unwrap_or_default().ver <= ver);
        self.deferred = rest;
        due
    }

    /// `op` as this client should see it: without its lane if that is its own.
    pub fn own(&self, op: &proto::OpId) -> Option<proto::OpId> {
        (op.lane == self.lane().as_bytes()).then(|| proto::OpId { lane: bytes::Bytes::new(), seq: op.seq })
    }
}
