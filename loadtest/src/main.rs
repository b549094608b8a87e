//! Load, faults and the verifier for Holdfast (design section 12).

mod client;
mod dump;
mod journal;
mod record;
mod verify;

fn main() {}
