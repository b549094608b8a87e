//! A listener on a real socket with a fake session port behind it.

mod harness;
mod open;
mod refused;
