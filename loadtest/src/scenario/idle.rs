//! Resident memory of the gateway per idle connection.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::args::{Run, Transport};
use crate::client::conn::{Client, Live, Phase};
use crate::client::dial::Dial;
use crate::local::{Cluster, wait_for};
use crate::report::Report;

/// Connections opened and closed first, so that pools and allocator are warm.
const WARM: usize = 200;
/// Dials at once.
const DIALS: usize = 64;
/// Buffers of a handshake are given back in this time.
const REST: Duration = Duration::from_secs(4);
/// Bytes per idle connection (issue: plain 8 KiB, TLS 16 KiB).
const LIMITS: [f64; 2] = [8.0 * 1024.0, 16.0 * 1024.0];

pub async fn measure(run: &Run, cluster: &Cluster, report: &mut Report) -> anyhow::Result<()> {
    open(WARM, cluster).await?;
    let rss = || cluster.gateways.iter().map(|g| g.proc.rss_bytes()).sum::<u64>();
    let before = rss();
    let (phase, mut clients) = connect(run.idle, cluster).await?;
    tokio::time::sleep(REST).await;
    let after = rss();
    phase.send_replace(Phase::Stop);
    while clients.join_next().await.is_some() {}
    let each = after.saturating_sub(before) as f64 / run.idle as f64;
    report
        .set("rss_bytes", json!({"gateway": after, "per_idle_connection": each.round(), "idle_connections": run.idle}));
    report.at_most("RSS per idle connection, bytes", each, LIMITS[usize::from(run.transport == Transport::Wss)]);
    println!("{} idle connections: {each:.0} bytes each", run.idle);
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(())
}

async fn open(count: usize, cluster: &Cluster) -> anyhow::Result<()> {
    let (phase, mut clients) = connect(count, cluster).await?;
    phase.send_replace(Phase::Stop);
    while clients.join_next().await.is_some() {}
    Ok(())
}

async fn connect(
    count: usize,
    cluster: &Cluster,
) -> anyhow::Result<(watch::Sender<Phase>, JoinSet<Vec<crate::journal::Line>>)> {
    let (phase, heard) = watch::channel(Phase::Setup);
    let (live, mut clients) = (Arc::new(Live::default()), JoinSet::new());
    let dial = Dial::new(cluster.gateway_addrs(), cluster.tls.clone(), DIALS);
    for index in 0..count {
        let sub: Arc<str> = Arc::from(format!("idle-{index}"));
        let token = cluster.signer.token(&sub, "none")?;
        let client = Client::idle(index, sub, token, dial.clone(), live.clone());
        clients.spawn(client.run(heard.clone()));
    }
    wait_for(|| async { live.welcomed.load(Relaxed) >= count as i64 }).await?;
    Ok((phase, clients))
}
