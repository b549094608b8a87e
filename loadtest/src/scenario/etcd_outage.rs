//! `etcd-outage`: the directory stops for 20 s, is killed and restarted, and loses the history its watchers need.

use std::time::Duration;

use serde_json::json;

use super::load::Load;
use crate::clock::now_us;
use crate::journal::{Line, What};
use crate::local::{Cluster, http, metrics, placement, wait_for};
use crate::report::Report;
use crate::stats::{self, Op};

const STOP: Duration = Duration::from_secs(20);

pub struct Fault {
    stop_us: u64,
    cont_us: u64,
    end_us: u64,
}

pub async fn fault(load: &Load, cluster: &mut Cluster, report: &mut Report) -> anyhow::Result<Fault> {
    load.fault_time().await;
    let stop_us = now_us();
    cluster.directory.stop()?;
    println!("directory stopped");
    tokio::time::sleep(STOP).await;
    let cont_us = now_us();
    cluster.directory.cont()?;
    let after_stop = converged(cluster, "after SIGSTOP").await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    cluster.directory.kill().await?;
    println!("directory killed");
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster.directory.restart()?;
    wait_for(|| http::is_ok(cluster.directory_url.trim_start_matches("http://"), "/health")).await?;
    let after_kill = converged(cluster, "after SIGKILL").await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    // the gateways stand still while history is made and thrown away: their watches cannot go on from where they were
    cluster.directory.stop()?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    cluster.directory.cont()?;
    placement::compact(&cluster.directory_url).await?;
    let after_compaction = converged(cluster, "after a compaction").await?;
    let worst = after_stop.max(after_kill).max(after_compaction);
    report.set(
        "converge_ms",
        json!({"after_stop": after_stop, "after_kill": after_kill, "after_compaction": after_compaction}),
    );
    report.at_most("cache converges after return, ms", worst, 2_000.0);
    Ok(Fault { stop_us, cont_us, end_us: now_us() })
}

/// Time until every gateway says its directory is current, ms.
async fn converged(cluster: &Cluster, when: &str) -> anyhow::Result<f64> {
    let began = now_us();
    for gateway in &cluster.gateways {
        let admin = gateway.admin();
        wait_for(|| async {
            let text = http::get(&admin, "/metrics").await.map(|(_, text)| text).unwrap_or_default();
            metrics::total(&text, "holdfast_directory_synced") == Some(1.0)
        })
        .await?;
    }
    let took = (now_us() - began) as f64 / 1e3;
    println!("directory current {took:.0} ms {when}");
    Ok(took)
}

pub fn judge(load: &Load, lines: &[Line], ops: &[Op], fault: &Fault, report: &mut Report) {
    let pause = stats::longest_pause(ops, fault.stop_us, fault.cont_us) as f64 / 1e3;
    let echoed = ops.iter().filter_map(|o| o.echo).filter(|e| (fault.stop_us..fault.cont_us).contains(&e.0)).count();
    let moves = load.directory.moves_since(fault.stop_us);
    let (during, moved) = (moves.iter().filter(|m| m.at_us < fault.cont_us).count(), moves.len());
    let pause_after = stats::longest_pause(ops, fault.cont_us, fault.end_us) as f64 / 1e3;
    let refused = lines.iter().filter(|l| {
        l.what == What::Nack && &*l.code == "STORE_UNAVAILABLE" && (fault.stop_us..fault.end_us).contains(&l.t_us)
    });
    let read_only = lines.iter().filter(|l| l.what == What::Status && &*l.code == "read_only").count();
    report.set(
        "outage",
        json!({"echoed": echoed, "longest_pause_ms": pause, "longest_pause_after_ms": pause_after,
            "placements_changed": moved, "placements_changed_during": during,
            "documents_refused": refused.count(), "read_only_statuses": read_only}),
    );
    report.at_least("ops acked during the outage", echoed as f64, 1.0);
    report.at_most("longest pause during the outage, ms", pause, 1_000.0);
    report.at_most("placements changed during the outage", during as f64, 0.0);
    report.at_most("placements changed, returns included", moved as f64, 0.0);
    report.at_least("documents told read_only", read_only as f64, 1.0);
}
