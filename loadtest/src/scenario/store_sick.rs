//! `store-sick`: the store hangs for 10 s and comes back by itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::load::Load;
use crate::clock::now_us;
use crate::journal::{Line, What};
use crate::local::Cluster;
use crate::report::Report;
use crate::stats::{self, Op};

const SICK: Duration = Duration::from_secs(10);

pub struct Fault {
    stop_us: u64,
    cont_us: u64,
    start_us: u64,
}

pub async fn fault(load: &Load, cluster: &mut Cluster) -> anyhow::Result<Fault> {
    load.fault_time().await;
    let stop_us = now_us();
    cluster.store.stop()?;
    println!("store stopped");
    tokio::time::sleep(SICK).await;
    let cont_us = now_us();
    cluster.store.cont()?;
    println!("store continued");
    Ok(Fault { stop_us, cont_us, start_us: load.start_us })
}

pub fn judge(lines: &[Line], ops: &[Op], fault: &Fault, report: &mut Report) {
    let sick = fault.stop_us..fault.cont_us;
    let mut told: HashMap<Arc<str>, u64> = HashMap::new();
    for line in lines.iter().filter(|l| l.what == What::Status && &*l.code == "store_down" && sick.contains(&l.t_us)) {
        let at = told.entry(line.session.clone()).or_insert(line.t_us);
        *at = (*at).min(line.t_us);
    }
    let detect = told.values().map(|t| t - fault.stop_us).max().unwrap_or(u64::MAX) as f64 / 1e3;
    // an op sent after its session was told: how long until the refusal
    let refusals = ops.iter().filter(|o| sick.contains(&o.sent_us)).filter_map(|o| {
        let after = told.get(&o.session).is_some_and(|t| o.sent_us > *t);
        let (at, code) = o.nack.as_ref()?;
        (after && &**code == "STORE_UNAVAILABLE").then(|| at.saturating_sub(o.sent_us))
    });
    let refusals = stats::histogram(refusals);
    let p99 = refusals.value_at_quantile(0.99) as f64 / 1e3;
    let before =
        stats::histogram(stats::reaction_ages(lines, fault.start_us, fault.stop_us)).value_at_quantile(0.99) as f64;
    let during =
        stats::histogram(stats::reaction_ages(lines, fault.stop_us, fault.cont_us)).value_at_quantile(0.99) as f64;
    let acked =
        ops.iter().filter_map(|o| o.echo).filter(|e| e.0 > fault.stop_us + 200_000 && e.0 < fault.cont_us).count();
    let recovered = ops.iter().filter_map(|o| o.echo).map(|e| e.0).filter(|t| *t > fault.cont_us).min();
    let recovered = recovered.map_or(f64::INFINITY, |t| (t - fault.cont_us) as f64 / 1e3);
    report.set(
        "store_sick",
        json!({"detected_ms": detect, "sessions_told": told.len(), "refused": refusals.len(), "refused_p99_ms": p99,
            "acked_while_down": acked, "recovered_ms": recovered, "reaction_p99_us": {"before": before, "during": during}}),
    );
    report.at_most("detection, ms", detect, 1_000.0);
    report.at_least("refused with 201", refusals.len() as f64, 1.0);
    report.at_most("refusal p99, ms", p99, 100.0);
    report.at_most("acked while the store was down", acked as f64, 0.0);
    report.at_most("recovery, ms", recovered, 5_000.0);
    if before > 0.0 {
        report.at_most("reaction p99, during over before", during / before, 2.0);
        report.at_least("reactions during", during, 1.0);
    }
}
