//! A listener on a real socket with a fake session port behind it.

mod admitted;
mod balancer;
mod cli;
mod harness;
mod open;
mod refused;
