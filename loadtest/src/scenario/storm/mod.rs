//! `storm`: a gateway dies and its clients come back at once (design 9).

pub mod args;
mod bystanders;
mod churn;
pub mod figures;
mod herd;
mod judge;
mod overload;
mod price;
mod raw;
mod visit;
mod wave;

use std::time::Instant;

use serde_json::json;

use crate::client::policy::{Crowd, Policy};
use crate::report::Report;
use args::{Protocol, Storm};
pub use judge::densest_second;

/// Runs it in the mode the command line asks for.
pub async fn run(storm: &Storm) -> anyhow::Result<bool> {
    let started = Instant::now();
    let mut report = Report::default();
    report.set("scenario", json!("storm"));
    report.set("seed", json!(storm.seed));
    report.set("params", json!(format!("{storm:?}")));
    if storm.protocol == Protocol::Raw {
        raw::run(storm, &mut report).await?;
    } else {
        anyhow::ensure!(storm.local, "say --local, or --protocol raw --target ws://…");
        anyhow::ensure!(storm.target.is_empty(), "--target is for --protocol raw");
        if let Some(times) = storm.overload {
            overload::run(storm, times, &mut report).await?;
        } else if storm.price {
            price::run(storm, &mut report).await?;
        } else if let Some(seconds) = storm.churn {
            churn::run(storm, seconds, &mut report).await?;
        } else {
            waves(storm, &mut report).await?;
        }
    }
    report.set("wall_s", json!(started.elapsed().as_secs()));
    if let Some(path) = &storm.report {
        report.write(path)?;
    }
    report.print();
    Ok(report.ok())
}

/// The storm asked for, and with `--compare` the same with other manners beside it.
async fn waves(storm: &Storm, report: &mut Report) -> anyhow::Result<()> {
    let mut crowds = vec![storm.policy];
    if storm.compare {
        let others = [Policy::Slots, Policy::Ranks, Policy::FullJitter];
        let others = others.map(|polite| Crowd { polite, hammer_percent: 0 });
        crowds.extend(others.into_iter().filter(|c| *c != storm.policy));
    }
    let mut shown = Vec::new();
    for crowd in crowds {
        let keep = storm.report.as_ref().map(|path| path.with_extension(crowd.to_string().replace(':', "-")));
        let wave = wave::run(storm, crowd, keep.as_deref()).await?;
        judge::judge(storm, &wave, report);
        if shown.is_empty() {
            report.set("admission", wave.json(storm.rate()));
        } else {
            report.set(&crowd.to_string(), wave.json(storm.rate()));
        }
        shown.push(wave.line());
    }
    println!("\n  at best {:.2} s", storm.clients as f64 / ((u64::from(storm.gateways) - 1) * storm.rate()) as f64);
    shown.iter().for_each(|line| println!("  {line}"));
    Ok(())
}
