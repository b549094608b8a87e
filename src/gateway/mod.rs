//! Connections of clients and the sessions they are attached to.
//!
//! [`listener`] accepts, [`connection`] is one client (one task), [`outbox`] its downstream queue with the policy of
//! [`queue`], [`auth`] checks tokens; [`port`] is the seam between them and the sessions.

pub mod admission;
pub mod auth;
pub mod connection;
pub mod handle;
mod identify;
pub mod jwks;
pub mod limits;
pub mod listener;
pub mod outbox;
pub mod port;
pub mod queue;
mod reload;
pub mod run;
pub mod sessions;
mod shake;

#[cfg(test)]
mod tests;
