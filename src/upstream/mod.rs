//! The link between gateway and owner: one gRPC stream per gateway and life of an owner, dialled by the gateway.
//!
//! [`pool`] keeps one peer per life of a node and dials it ([`dial`]), [`link`] runs one established stream, [`batch`] turns its
//! outgoing queue into batches. What is heard goes to a [`LinkEvents`], which the sessions implement.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use holdfast_core::{id::Boot, proto::owner_msg};

pub mod batch;
pub mod dial;
pub mod link;
pub mod pool;
pub mod security;
#[cfg(test)]
mod security_tests;

/// The schema's gRPC services; their messages are [`holdfast_core::proto`].
#[allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]
pub mod rpc {
    tonic::include_proto!("holdfast.v1");
}

/// Where the pool asks which nodes live, and at which address.
pub trait Nodes: Send + Sync {
    /// The life of a node that the directory knows now, and `host:port` of its Owner service.
    fn node(&self, name: &str) -> Option<(Boot, Arc<str>)>;
}

/// What a link tells the sessions. Calls about one link never overlap, but for `up`, during which messages come already.
pub trait LinkEvents: Send + Sync {
    /// The link is established: replay the sessions bound to its life of the node. Paced by the link's queue.
    fn up<'a>(&'a self, link: &'a link::LinkTx) -> BoxFuture<'a, ()>;
    /// The link is gone; nothing more is heard from it.
    fn down<'a>(&'a self, link: &'a link::LinkTx) -> BoxFuture<'a, ()>;
    /// A message that is not the link's own business (hello, ping, pong, credit).
    fn message(&self, link: &link::LinkTx, msg: owner_msg::M);
    /// The node's own address refused a connection: evidence that its process is gone.
    fn refused(&self, node: &Arc<str>, boot: Boot);
    /// Sessions bound to this life of a node. Called with the pool's lock held: must take no lock that is held while
    /// the pool is called, but the index's own.
    fn bound(&self, boot: Boot) -> usize;
}
