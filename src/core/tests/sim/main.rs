//! Seeded simulation of gateways, owners, a store, a directory and clients (design 15, invariants marked M).
//!
//! `cargo test --release -p holdfast-core --features mutants --test sim`
//! * `HOLDFAST_SIM_SEEDS=n` runs n seeds; `HOLDFAST_SIM_SEED=n` replays one with a trace on stderr, with
//!   `HOLDFAST_SIM_MUTANT=Name` under a defect; `HOLDFAST_SIM_ALL=1` lists what every seed breaks.

// Tests may stop at once; sizes here are small; indices are ids.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod app;
mod check;
mod client;
mod config;
mod counts;
mod cut;
mod directory;
mod event;
mod faults;
mod gateway;
mod hear;
mod links;
mod net;
mod owner;
mod rng;
mod run;
mod show;
mod store;
mod watch;
mod world;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use counts::Counts;
use holdfast_core::mutant::Mutant;

/// Seeds of the full run.
const SEEDS: u64 = 2_000;
/// Seeds that may be spent on finding one defect.
const SEEDS_PER_MUTANT: u64 = 500;

const MUTANTS: [Mutant; 9] = [
    Mutant::AckBeforeWrite,
    Mutant::NoClaim,
    Mutant::GatewayFinalOnResend,
    Mutant::NoLaneOrder,
    Mutant::RejectionNotStored,
    Mutant::LaneTableTrimmed,
    Mutant::StampRemade,
    Mutant::StaleEpochDelivered,
    Mutant::RingOldEpoch,
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

/// Runs seeds on all cores until one breaks a promise: the lowest that does, what it broke, and what happened.
fn search(seeds: u64, defect: Option<Mutant>) -> (Option<(u64, u32, String)>, Counts) {
    let all = number("HOLDFAST_SIM_ALL").is_some();
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let found = Mutex::new((None::<(u64, u32, String)>, Counts::default()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                let mut counts = Counts::default();
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        break;
                    }
                    let mut outcome = run::run(seed, defect, false);
                    if defect.is_some() && outcome.violation.is_some() {
                        // it counts only if the defect is the reason
                        outcome.violation =
                            outcome.violation.filter(|_| run::run(seed, None, false).violation.is_none());
                    }
                    counts.add(&outcome.counts);
                    if let Some((number, what)) = outcome.violation {
                        if all {
                            println!("seed {seed} breaks {number}: {what}");
                            continue;
                        }
                        stop.store(true, Ordering::Relaxed);
                        let mut found = found.lock().unwrap();
                        if found.0.as_ref().is_none_or(|f| seed < f.0) {
                            found.0 = Some((seed, number, what));
                        }
                    }
                }
                found.lock().unwrap().1.add(&counts);
            });
        }
    });
    found.into_inner().unwrap()
}

#[test]
fn every_seed_keeps_the_promises() {
    if let Some(seed) = number("HOLDFAST_SIM_SEED") {
        let name = std::env::var("HOLDFAST_SIM_MUTANT").unwrap_or_default();
        let defect = MUTANTS.into_iter().find(|m| format!("{m:?}") == name);
        let outcome = run::run(seed, defect, true);
        println!("{}", outcome.counts.table());
        assert_eq!(outcome.violation, None, "seed {seed}, defect {defect:?}");
        return;
    }
    let seeds = number("HOLDFAST_SIM_SEEDS").unwrap_or(SEEDS);
    let (found, counts) = search(seeds, None);
    println!("{}", counts.table());
    if let Some((seed, number, what)) = found {
        panic!("seed {seed} breaks invariant {number}: {what}\n  replay: HOLDFAST_SIM_SEED={seed}");
    }
    if seeds >= SEEDS {
        assert!(counts.missing().is_empty(), "never happened: {:?}", counts.missing());
    }
}

#[test]
fn each_mutant_is_found() {
    if number("HOLDFAST_SIM_SEED").is_some() {
        return;
    }
    let mut missed = Vec::new();
    for mutant in MUTANTS {
        match search(SEEDS_PER_MUTANT, Some(mutant)).0 {
            Some((seed, number, what)) => println!("{mutant:?}: seed {seed}, invariant {number}: {what}"),
            None => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "not found in {SEEDS_PER_MUTANT} seeds: {missed:?}");
}
