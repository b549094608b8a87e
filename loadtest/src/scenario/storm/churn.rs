//! `--churn`: the admission itself at full rate: upgrade, hello, welcome, gone.

use std::sync::Arc;

use serde_json::json;

use super::args::Storm;
use super::herd::DIALS;
use super::visit::{self, Answer};
use super::wave;
use crate::client::dial::Dial;
use crate::local::{Cluster, Spec, proc};
use crate::report::Report;

/// Sustained: so many of a hundred are welcomed, and the 99th within half a second of its intended time.
const WELCOMED_PERCENT: f64 = 99.0;
const ANSWERED_S: f64 = 0.5;
/// Tokens to choose from: signing one for each visit would be the client's own cost.
pub const TOKENS: usize = 64;
/// Rates tried, each three quarters of the one before.
const TRIES: usize = 8;

pub async fn run(storm: &Storm, seconds: u64, report: &mut Report) -> anyhow::Result<()> {
    let spec = Spec { gateways: 1, owners: 1, admit_per_s: Some(storm.rate() * 2), ..wave::spec(storm) };
    let cluster = Cluster::start(spec).await?;
    let dial = Dial::new(cluster.gateway_addrs(), cluster.tls.clone(), DIALS);
    let tokens = tokens(&cluster)?;
    let mut rate = storm.rate();
    let mut tried = Vec::new();
    for _ in 0..TRIES {
        let (cpu, client) = (cluster.gateways[0].proc.cpu_s(), proc::cpu_s("self"));
        let visits = visit::many(&dial, &tokens, rate * seconds, rate, false).await;
        let cpu = cluster.gateways[0].proc.cpu_s() - cpu;
        let client = proc::cpu_s("self") - client;
        let welcomed = visit::count(&visits, |a| *a == Answer::Welcome);
        let percent = 100.0 * welcomed as f64 / visits.len().max(1) as f64;
        let p99 = visit::answered_s(&visits, 0.99);
        let us = (cpu * 1e7 / welcomed.max(1) as f64).round() / 10.0;
        println!("{rate}/s for {seconds} s: {percent:.1} % welcomed, p99 {:.0} ms, {us} us of CPU each", p99 * 1e3);
        let kept = percent >= WELCOMED_PERCENT && p99 <= ANSWERED_S;
        tried.push(json!({"rate": rate, "welcomed_percent": percent, "p99_s": p99, "sustained": kept,
            "cpu_us_per_admission": us, "client_cpu_us": (client * 1e6 / visits.len().max(1) as f64).round(),
            "a_core_carries_per_s": (1e6 / us.max(1.0)).round()}));
        if kept {
            break;
        }
        rate = rate * 3 / 4;
    }
    let sustained = tried.last().is_some_and(|t| t["sustained"] == true);
    report.set("churn", json!(tried));
    report.at_least("sustained rate, per second", if sustained { rate as f64 } else { 0.0 }, 1.0);
    if rate < storm.rate() {
        report.notes.push(format!("{}/s was not sustained: clients and gateway share these cores", storm.rate()));
    }
    Ok(())
}

/// A few tokens.
pub fn tokens(cluster: &Cluster) -> anyhow::Result<Arc<[String]>> {
    let one = |i: usize| cluster.signer.token(&format!("v{i}"), "none");
    Ok((0..TOKENS).map(one).collect::<anyhow::Result<Vec<_>>>()?.into())
}
