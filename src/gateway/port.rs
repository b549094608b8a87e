//! The seam between a connection and the sessions: two traits, both non-blocking.
//!
//! `connection` -> [`SessionPort`] (implemented by `gateway::sessions`), sessions -> [`Downstream`] (implemented by
//! `gateway::outbox`). Nothing here awaits, so a caller may hold a session's lock while it delivers.

use std::{sync::Arc, time::Duration};

use holdfast_core::{
    id::{ConnId, Lane, SessionId},
    proto::{self, client_frame},
    time::Wall,
};

pub use holdfast_core::session::Arrival;

use crate::transport::outgoing::Outgoing;

/// What an attach says about the client, checked by the connection (token, role, ids). Everything of
/// `core::session::Client` except `att`, which the port gives out.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientSpec {
    /// The connection.
    pub conn: ConnId,
    /// `sub` of the verified token.
    pub principal: Arc<str>,
    /// Seat or member id from the token; empty = none.
    pub participant: Arc<str>,
    /// 1 participant, 2 spectator.
    pub role: u32,
    /// Lane of this attachment: the attach's own, else the hello's.
    pub lane: Lane,
    /// `hello.conn_seq`: grows with every connection of a lane.
    pub conn_seq: u32,
    /// `attach.n`, echoed in `attached`.
    pub n: u32,
    /// What the client has; {0,0} = nothing.
    pub seen: proto::Pos,
    /// The client was attached somewhere before (`hello.attempt` > 0 or `seen` is not {0,0}).
    pub reconnect: bool,
}

/// The sessions, as a connection sees them. Calls never block and never await; answers come through [`Downstream`].
///
/// In an `op`, an empty lane means the lane of this connection's attachment to that session.
pub trait SessionPort: Send + Sync {
    /// A client said a valid hello: `down` is where its frames go. Before any other call about `conn`.
    fn register(&self, conn: ConnId, down: Arc<dyn Downstream>, principal: Arc<str>);
    /// The connection is gone; every attachment of it ends. `reason` as in `proto::gateway_msg::Detach`: 1 bye 2 lost 3 kicked 4 slow.
    fn unregister(&self, conn: ConnId, reason: u32);
    /// Attach, or attach again with a higher `n`.
    fn attach(&self, session: &SessionId, client: ClientSpec);
    /// Node of the owner and kind of a session, as far as the directory's cache knows.
    fn place(&self, _session: &SessionId) -> Option<(Arc<str>, Arc<str>)> {
        None
    }
    /// The client leaves one session.
    fn detach(&self, session: &SessionId, conn: ConnId, reason: u32);
    /// A durable op, within its size limits.
    fn op(&self, session: &SessionId, conn: ConnId, op: client_frame::Op, arrival: Arrival);
    /// An ephemeral frame.
    fn reaction(&self, session: &SessionId, conn: ConnId, reaction: client_frame::Reaction);
    /// The client found a hole.
    fn resync(&self, session: &SessionId, conn: ConnId, resync: client_frame::Resync);
    /// The downstream queue overflowed and this session's backlog was dropped: send one snapshot.
    fn slow(&self, session: &SessionId, conn: ConnId);
    /// The kernel took a frame made by [`Outgoing::with_stamp`] for this client at `sent_at`. `ver` of the event or snapshot.
    fn delivered(&self, session: &SessionId, conn: ConnId, ver: u64, sent_at: Wall);
    /// Whether time runs against a participant of this connection now: it is not cut off while it can wait.
    fn is_on_the_move(&self, _conn: ConnId) -> bool {
        false
    }
    /// The kernel took a frame this long after it was read from a link; see [`Outgoing::read_at`].
    fn relayed(&self, _took: Duration) {}
}

/// One client's queue, as the sessions see it. Non-blocking and bounded; a slow client is the queue's business.
pub trait Downstream: Send + Sync {
    /// Queues a frame. Cheap: the frame is shared and encoded at most once per form.
    fn deliver(&self, frame: Outgoing);
    /// Ends the connection with a close code of design 4.4 and a reason for a developer (<= 123 bytes are sent), after what is queued.
    fn close(&self, code: u16, reason: &str);
}
