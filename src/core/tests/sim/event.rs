//! Things that happen.

use holdfast_core::{
    proto::{client_frame, gateway_msg, owner_msg, server_frame},
    session::Route,
};

use crate::{
    client::Wake,
    store::{Answer, Request},
};

/// A process: the index of its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proc {
    /// A gateway.
    Gateway(usize),
    /// An owner.
    Owner(usize),
}

/// One thing that happens at one time.
#[derive(Debug)]
pub enum Event {
    /// A frame reaches a gateway.
    ToGateway { gw: usize, conn: usize, frame: client_frame::F },
    /// A gateway notices that a connection is gone.
    GatewayLost { gw: usize, conn: usize },
    /// The first byte of a stamped event left.
    Delivered { gw: usize, session: usize, conn: usize, ver: u64 },
    /// A slow client reads again.
    Unblock { gw: usize, conn: usize },
    /// A frame reaches a client.
    ToClient { client: usize, conn: usize, frame: server_frame::F },
    /// A client notices that its connection is gone.
    ClientLost { client: usize, conn: usize, close: u16 },
    /// Something a client meant to do by now.
    ClientWake { client: usize, wake: Wake },
    /// A message reaches an owner.
    ToOwner { owner: usize, link: usize, msg: gateway_msg::M },
    /// An owner notices that a link is gone.
    OwnerLinkLost { owner: usize, link: usize },
    /// A message reaches a gateway.
    FromOwner { gw: usize, link: usize, msg: owner_msg::M },
    /// A gateway notices that a link is gone.
    GatewayLinkLost { gw: usize, link: usize },
    /// A gateway dials a life of a node.
    Dial { gw: usize, boot: u64 },
    /// The dial succeeded.
    LinkUp { gw: usize, boot: u64, link: usize },
    /// The directory's watch says this, to watchers of that life of the directory.
    Watch { proc: Proc, session: usize, route: Route, life: u32 },
    /// A linearizable read arrives at the directory.
    Resolve { gw: usize, session: usize },
    /// Its answer.
    Resolved { gw: usize, session: usize, route: Route },
    /// A request is executed by the store (or not: see `Request`).
    StoreDo { owner: usize, session: usize, incarnation: u64, request: Request },
    /// The store's answer reaches an owner.
    StoreAnswer { owner: usize, session: usize, incarnation: u64, answer: Answer },
    /// An owner renews its lease and looks at its clock.
    Lease { owner: usize },
    /// The directory looks whether this life's lease has run out.
    Expiry { node: usize, boot: u64 },
    /// Placement gives the sessions of this life away.
    Rehome { boot: u64 },
    /// Placement moves one session that is still at `epoch`.
    Moved { session: usize, epoch: u64 },
    /// A stopped process goes on.
    Resume { proc: Proc },
    /// A drained life ends.
    Retire { owner: usize },
    /// A node's owner process starts.
    StartOwner { node: usize },
    /// A gateway process starts.
    StartGateway { slot: usize },
    /// The directory is reachable again.
    Thaw,
    /// The store is up again.
    StoreUp,
}

impl Event {
    /// Where it happens; `None` = not in a process that can die or stop.
    pub fn proc(&self) -> Option<Proc> {
        match self {
            Self::ToGateway { gw, .. }
            | Self::GatewayLost { gw, .. }
            | Self::Delivered { gw, .. }
            | Self::Unblock { gw, .. }
            | Self::FromOwner { gw, .. }
            | Self::GatewayLinkLost { gw, .. }
            | Self::Dial { gw, .. }
            | Self::LinkUp { gw, .. }
            | Self::Resolved { gw, .. } => Some(Proc::Gateway(*gw)),
            Self::ToOwner { owner, .. }
            | Self::OwnerLinkLost { owner, .. }
            | Self::StoreAnswer { owner, .. }
            | Self::Lease { owner } => Some(Proc::Owner(*owner)),
            Self::Watch { proc, .. } => Some(*proc),
            _ => None,
        }
    }
}
