//! Simulated clients: the JSON protocol of design section 4 over WebSocket.

pub mod conn;
pub mod seat;
pub mod traffic;
pub mod wire;
