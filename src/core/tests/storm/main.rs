//! The reconnect wave in virtual time (design 9.1): a gateway is gone, its clients come back to the survivors.
//!
//! The gates are the real ones; clients follow `admission::client`. What a table of the design says is asserted here.

mod wave;

use std::time::Duration;

use holdfast_core::admission::client::Policy;
use wave::{Outcome, Wave};

const fn wave(policy: Policy) -> Wave {
    Wave { clients: 50_000, rate_per_s: 5000, survivors: 1, policy, hammering: 0.0, plain: false, skew: 0.0, seed: 1 }
}

fn within(got: f64, want: f64, part: f64, what: &str) {
    assert!((got - want).abs() <= part * want, "{what}: {got:.3}, not {want} within {part}");
}

fn show(name: &str, o: &Outcome) {
    println!(
        "{name}: all in {:.2} s, 99 % {:.2} s, attempts {:.3}, refused {}, most in a second {}",
        o.all_in.as_secs_f64(),
        o.p99.as_secs_f64(),
        o.attempts,
        o.refused,
        o.most_in_1_s
    );
}

#[test]
fn the_table() {
    for (policy, all_in, attempts) in [(Policy::Slots, 10.3, 1.99), (Policy::Ranks, 11.5, 1.00)] {
        let o = wave(policy).run();
        show(&format!("{policy:?}"), &o);
        within(o.all_in.as_secs_f64(), all_in, 0.05, &format!("{policy:?}, all in"));
        within(o.attempts, attempts, 0.05, &format!("{policy:?}, attempts"));
        assert!(o.most_in_1_s <= 5350, "1.05 R and the burst: {}", o.most_in_1_s);
    }
}

/// The rows for which clients are told nothing: the end is the luck of the last of 50,000, so a median of seeds.
#[test]
fn what_jitter_alone_comes_to() {
    for (policy, all_in, attempts) in [(Policy::FullJitter, 36.0, 3.65), (Policy::Decorrelated, 24.0, 2.63)] {
        let mut runs: Vec<_> = (1..=5).map(|seed| Wave { plain: true, seed, ..wave(policy) }.run()).collect();
        runs.sort_by_key(|o| o.all_in);
        show(&format!("{policy:?}"), &runs[2]);
        within(runs[2].all_in.as_secs_f64(), all_in, 0.15, &format!("{policy:?}, all in"));
        within(runs[2].attempts, attempts, 0.10, &format!("{policy:?}, attempts"));
    }
}

#[test]
fn survivors_need_no_coordination() {
    for survivors in [1, 2, 5, 10, 20] {
        let rate_per_s = 5000 / survivors;
        let o = Wave { survivors, rate_per_s, ..wave(Policy::Slots) }.run();
        show(&format!("{survivors} survivors"), &o);
        within(o.all_in.as_secs_f64(), 10.3, 0.05, "all in");
    }
}

#[test]
fn a_skewed_balancer_costs_time_and_nobody() {
    // One of two gets two thirds of the clients: it needs 4/3 of the time.
    let o = Wave { survivors: 2, rate_per_s: 2500, skew: 1.0 / 6.0, ..wave(Policy::Slots) }.run();
    show("skewed", &o);
    assert!(o.all_in < Duration::from_secs(15));
}

#[test]
fn hammering_gains_nothing_and_costs_the_polite_nothing() {
    let quiet = wave(Policy::Slots).run();
    let o = Wave { hammering: 0.05, ..wave(Policy::Slots) }.run();
    show("5 % hammer", &o);
    let (cheats, polite) = (o.hammering_median.as_secs_f64(), o.polite_median.as_secs_f64());
    assert!(cheats >= polite, "hammering: {cheats:.2} s, polite: {polite:.2} s (medians)");
    within(o.polite_p99.as_secs_f64(), quiet.polite_p99.as_secs_f64(), 0.02, "p99 of the polite");
}
