//! The decisions of Holdfast. This crate opens no socket, starts no task, reads no clock, draws no
//! random number and takes no lock: time and randomness are arguments, effects are values.
//!
//! Two halves face each other across the owner link (`holdfast.proto`, part 2):
//! * the gateway's: [`admission`], [`session`] (hold, fence, stamp, ring, attachments), [`directory`], [`backoff`];
//! * the owner's: [`record`] (claim, write before send, lane outcomes, checkpoint and tail).
//!
//! [`assign`] belongs to placement, [`drain`] to a gateway that stops.

pub mod admission;
pub mod assign;
pub mod backoff;
pub mod directory;
pub mod drain;
pub mod id;
pub mod message;
pub mod mutant;
pub mod proto;
pub mod record;
pub mod session;
pub mod time;
