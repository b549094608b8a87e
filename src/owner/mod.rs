//! The reference owner: the authority over sessions of three kinds (design 7).
//!
//! ```text
//! service (hello) -> link (batches in and out) -> sessions (one lock each) -> holdfast_core::record (decides)
//!                                                    |  effects: link queue, work (store requests, notices), timers
//! placement::watch (who owns what) ------------------+
//! ```

mod config;
mod early;
pub mod kinds;
mod link;
mod run;
mod service;
mod sessions;
pub mod store;
#[cfg(test)]
mod tests;
mod timers;
mod work;

pub use config::OwnerConfig;
pub use run::{run, run_with};
pub use sessions::{Count, Counters};
