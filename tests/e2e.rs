//! End-to-end tests: real processes (etcd, placement, owners, gateways) and clients that speak only the documented protocol.
//!
//! Every wait has a condition and a deadline far above what a slow machine needs; no test sleeps and hopes. Processes die with
//! the test, also when it panics or is interrupted.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

mod e2e {
    mod bystander;
    mod client;
    mod cluster;
    mod process;
    mod proxy;
    mod seat;
    mod tokens;

    mod bad_config;
    mod bad_frames;
    mod bad_hello;
    mod bad_ops;
    mod bad_pace;
    mod balancer;
    mod dev;
    mod drain;
    mod faults;
    mod limits;
    mod play;
}
