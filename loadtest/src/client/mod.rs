//! Simulated clients: the JSON protocol of design section 4 over WebSocket.

pub mod conn;
pub mod dial;
mod life;
pub mod policy;
pub mod reconnect;
pub mod seat;
pub mod traffic;
pub mod wire;
