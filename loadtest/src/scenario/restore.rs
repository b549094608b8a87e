//! `restore`: the store is lost and comes back as it was 5 s ago. Nobody can be spared that, but everybody can be told:
//! each client hears which of its settled ops are gone, and nothing is done again by itself (design 4.3 rule 4).
//!
//! As an operator would: owners stopped, the store restored from its snapshot, owners started.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use super::load::Load;
use crate::clock::now_us;
use crate::journal::{Line, What};
use crate::local::{Cluster, http, wait_for};
use crate::report::Report;
use crate::stats::Op;
use crate::verify::Verdict;

/// The store goes back by this much.
const BACK: Duration = Duration::from_secs(5);
/// Load after the fault: leases, the guard against mass expiry, and then some.
pub const AFTER_S: u64 = 40;

pub struct Fault {
    snapshot_us: u64,
    stop_us: u64,
    up_us: u64,
}

pub async fn fault(load: &Load, cluster: &mut Cluster) -> anyhow::Result<Fault> {
    load.fault_time().await;
    let file = cluster.path("store.snapshot");
    let snapshot_us = now_us();
    etcdctl(&["--endpoints", &cluster.store_url, "snapshot", "save", &file.display().to_string()]).await?;
    tokio::time::sleep(BACK.saturating_sub(Duration::from_micros(now_us() - snapshot_us))).await;
    let stop_us = now_us();
    for owner in &mut cluster.owners {
        owner.proc.kill().await?;
    }
    cluster.store.kill().await?;
    println!("owners and store killed; the store goes back {} ms", (stop_us - snapshot_us) / 1_000);
    restore(cluster, &file).await?;
    cluster.store.restart()?;
    wait_for(|| http::is_ok(cluster.store_url.trim_start_matches("http://"), "/health")).await.context("the store")?;
    for owner in &mut cluster.owners {
        owner.proc.restart()?;
    }
    for owner in &cluster.owners {
        let admin = owner.admin();
        wait_for(|| http::is_ok(&admin, "/readyz")).await.context("an owner")?;
    }
    println!("store and owners are up again");
    Ok(Fault { snapshot_us, stop_us, up_us: now_us() })
}

/// Puts the snapshot in the place of the store's data.
async fn restore(cluster: &Cluster, file: &Path) -> anyhow::Result<()> {
    let data = PathBuf::from(cluster.store.flag("data-dir").context("the store has no data-dir")?);
    tokio::fs::remove_dir_all(&data).await?;
    let mut args = vec!["snapshot".to_owned(), "restore".to_owned(), file.display().to_string()];
    for flag in ["data-dir", "name", "initial-cluster", "initial-advertise-peer-urls"] {
        args.extend([format!("--{flag}"), cluster.store.flag(flag).context(flag)?.to_owned()]);
    }
    etcdctl(&args.iter().map(String::as_str).collect::<Vec<_>>()).await
}

/// etcd 3.6 has moved `snapshot restore` to etcdutl.
async fn etcdctl(args: &[&str]) -> anyhow::Result<()> {
    let program =
        if args.contains(&"restore") && Path::new("/usr/bin/etcdutl").exists() { "etcdutl" } else { "etcdctl" };
    let mut command = tokio::process::Command::new(program);
    let done = command.args(args).env("ETCDCTL_API", "3").kill_on_drop(true).output().await.context(program)?;
    anyhow::ensure!(done.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

pub fn judge(lines: &[Line], ops: &[Op], verdict: &Verdict, fault: &Fault, report: &mut Report) {
    let snapshots = lines.iter().filter(|l| l.what == What::Snapshot && &*l.code == "diverged");
    let resumed = ops.iter().filter_map(|o| o.echo).map(|e| e.0).filter(|t| *t > fault.up_us);
    let resumed_ms = resumed.clone().min().map_or(f64::INFINITY, |t| (t - fault.stop_us) as f64 / 1e3);
    let window = fault.snapshot_us..fault.stop_us;
    let in_window = ops.iter().filter_map(|o| o.echo).filter(|e| window.contains(&e.0)).count();
    report.set(
        "restore",
        json!({"back_ms": (fault.stop_us - fault.snapshot_us) / 1_000, "down_ms": (fault.up_us - fault.stop_us) / 1_000,
            "acked_in_the_window": in_window, "rolled_back": verdict.rolled_back, "told_to_check": verdict.told_to_check,
            "diverged_snapshots": snapshots.count(), "first_echo_after_ms": resumed_ms,
            "re_raised": verdict.re_raised}),
    );
    report.at_least("settled ops rolled back", verdict.rolled_back as f64, 1.0);
    report.at_least("settled ops told to be checked", verdict.told_to_check as f64, verdict.rolled_back as f64);
    report.at_most("re-raised by themselves", verdict.re_raised as f64, 0.0);
    report.at_least("ops acked afterwards", resumed.count() as f64, 1.0);
}
