//! Holdfast: a stateless edge gateway for stateful real-time sessions.
//!
//! The data path, in order: `transport` (bytes to frames, arrival stamped) -> `gateway` (connection, session under one
//! short lock, decisions by [`holdfast_core`]) -> `upstream` (one stream per owner) -> `owner` (durable write, echo)
//! and the same way back. `placement` says who the owner is.

// the documentation is read beside the source, so that it may point at what is private
#![allow(rustdoc::private_intra_doc_links)]

pub mod admin;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod dev;
pub mod gateway;
pub mod metrics;
pub mod owner;
pub mod placement;
pub mod transport;
pub mod upstream;
