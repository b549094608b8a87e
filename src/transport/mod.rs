//! Bytes to frames and back: thin adapters, no decisions.

pub mod outgoing;
