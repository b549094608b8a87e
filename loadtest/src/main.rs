//! Load, faults and the verifier for Holdfast (design section 12).

mod client;
mod clock;
mod dump;
mod journal;
mod local;
mod record;
mod verify;

fn main() {}
