//! The gateway's half of one session: attachments, hold, fence, ring (design 4.3, 5, 6).
pub use types::*;

use crate::{
    id::{Boot, ConnId, LinkId, SessionId},
    proto::{client_frame, owner_msg},
    time::{Mono, Now, Wall},
};

mod types;

/// One session at this gateway.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
}

#[allow(unused_variables, missing_docs, clippy::todo, clippy::needless_pass_by_value, clippy::missing_panics_doc, clippy::unused_self, clippy::too_many_arguments)]
impl Session {
    #[must_use]
    pub fn new(id: SessionId) -> Self {
        Self { id }
    }
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.id
    }
    pub fn handle_attach(&mut self, now: Now, client: Client, out: &mut Vec<Action>) {
        todo!()
    }
    /// `reason` as in `GatewayMsg.Detach`: 1 bye 2 lost 3 kicked 4 slow.
    pub fn handle_detach(&mut self, now: Now, conn: ConnId, reason: u32, out: &mut Vec<Action>) {
        todo!()
    }
    /// `room`: the budgets for held ops allow one more.
    pub fn handle_op(&mut self, now: Now, conn: ConnId, op: client_frame::Op, arrival: &Arrival, room: bool, out: &mut Vec<Action>) {
        todo!()
    }
    pub fn handle_reaction(&mut self, now: Now, conn: ConnId, reaction: client_frame::Reaction, out: &mut Vec<Action>) {
        todo!()
    }
    pub fn handle_resync(&mut self, now: Now, conn: ConnId, resync: client_frame::Resync, out: &mut Vec<Action>) {
        todo!()
    }
    /// The connection's queue overflowed and this session's backlog in it was dropped: it gets a snapshot.
    pub fn handle_slow(&mut self, now: Now, conn: ConnId, out: &mut Vec<Action>) {
        todo!()
    }
    /// The first byte of a `stamp` event left for the client.
    pub fn handle_delivered(&mut self, now: Now, conn: ConnId, ver: u64, sent_at: Wall, out: &mut Vec<Action>) {
        todo!()
    }
    pub fn handle_route(&mut self, now: Now, route: &Route, out: &mut Vec<Action>) {
        todo!()
    }
    pub fn handle_absent(&mut self, now: Now, out: &mut Vec<Action>) {
        todo!()
    }
    pub fn handle_link_up(&mut self, now: Now, boot: Boot, link: LinkId, out: &mut Vec<Action>) {
        todo!()
    }
    pub fn handle_link_down(&mut self, now: Now, link: LinkId, out: &mut Vec<Action>) {
        todo!()
    }
    pub fn handle_owner_msg(&mut self, now: Now, link: LinkId, msg: owner_msg::M, out: &mut Vec<Action>) {
        todo!()
    }
    pub fn handle_timeout(&mut self, now: Now, out: &mut Vec<Action>) {
        todo!()
    }
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        todo!()
    }
    /// Nothing is attached and nothing is held: the driver may drop the object.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        todo!()
    }
    /// (boot, epoch) it is bound to; `None` = unbound or parked.
    #[must_use]
    pub fn binding(&self) -> Option<(Boot, u64)> {
        todo!()
    }
    pub fn held(&self) -> impl Iterator<Item = HeldView<'_>> {
        std::iter::empty()
    }
}
