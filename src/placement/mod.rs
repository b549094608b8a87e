//! Who owns a session: the directory in etcd, its followers and the service that writes it (design 8).
//!
//! * [`kv`]: etcd or a store in memory, behind one interface;
//! * [`watch`]: the directory cache of gateways and owners; [`lease`]: how a process says that it lives;
//! * [`run`]: the placement service: one leader creates, ends and re-homes sessions; [`client`] speaks to it.

pub mod client;
mod config;
mod feed;
pub mod keys;
pub mod kv;
mod leader;
pub mod lease;
mod operations;
mod probe;
mod rehome;
mod service;
mod shared;
mod suspect;
mod table;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod txn;
mod unknown;
pub mod watch;

pub use config::{LEADER_TTL, PlacementConfig};
pub use service::{run, run_on};
