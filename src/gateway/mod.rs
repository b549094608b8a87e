//! Connections of clients and the sessions they are attached to.
//!
//! `listener` accepts, `connection` is one client (one task), `outbox` its bounded downstream queue, `auth` checks tokens;
//! [`port`] is the seam between them and the sessions.

pub mod port;
pub mod run;
