//! The owner's half of one session: claim, write before send, lane outcomes, checkpoint and tail (design 7).
//! No I/O, no clock, no tokio: the store and the links are effects, their answers are calls.

mod app;
mod authority;
mod lanes;
mod links;
mod queue;
mod reactions;
mod tail;
#[cfg(test)]
mod tests;
mod types;
mod write;

pub use app::{App, Deadline, Draft, OpView, Reject, STAMP_DELIVERY, URGENT};
pub use authority::Authority;
pub use queue::session_of;
pub use types::{AuthorityConfig, Effect, Loaded, StoreError, WriteSet, Written};
