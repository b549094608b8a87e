//! Bytes to frames and back: thin adapters, no decisions.
//!
//! `websocket` upgrades and frames, `tls` terminates, `json` and [`proto`] are the two forms of the client protocol
//! (design 4.2), [`outgoing`] is a frame encoded once for many clients, [`rtt`] turns pongs into round trips (5.3),
//! [`peer`] is who is at the other end, by [`proxy_protocol`] or `X-Forwarded-For` if [`trust`] allows it.

pub mod json;
pub mod outgoing;
pub mod peer;
pub mod proto;
pub mod proxy_protocol;
pub mod rtt;
pub mod socket;
pub mod tls;
pub mod trust;
pub mod websocket;

pub use peer::Peer;

/// The two forms of the client protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `holdfast.v1.json`: text, objects separated by LF.
    Json,
    /// `holdfast.v1.proto`: binary, varint-delimited.
    Proto,
}

/// What one frame of a client turned out to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded {
    /// A frame of the protocol, `op.attempt` at least 1.
    Frame(holdfast_core::proto::client_frame::F),
    /// A frame type this version does not know; the name, if it has one.
    Unknown(String),
    /// Not a frame: why, for the developer of the client.
    Bad(String),
    /// A frame above the frame limit: its length in bytes.
    TooLarge(usize),
}
