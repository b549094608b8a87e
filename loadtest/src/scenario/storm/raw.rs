//! `--protocol raw`: the same storm against any WebSocket server. Connecting is being admitted; who kills it is up to you.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio_tungstenite::tungstenite::http::Uri;

use super::args::Storm;
use super::figures;
use super::herd::{DIALS, Herd};
use crate::client::dial::Dial;
use crate::clock::now_us;
use crate::report::Report;

pub async fn run(storm: &Storm, report: &mut Report) -> anyhow::Result<()> {
    let dial = dial(storm).await?;
    let herd = Herd::gather(storm.clients, storm.rate(), storm.policy, &dial, |_| Ok(String::new())).await?;
    tokio::time::sleep(Duration::from_secs(storm.idle_before)).await;
    let welcomes = herd.welcomes();
    let kill_us = fault(storm).await?;
    let survivors = dial.addrs.len().max(2) as u64 - 1;
    let ideal_s = storm.clients as f64 / (survivors * storm.rate()) as f64;
    herd.back(welcomes, Duration::from_secs_f64(ideal_s)).await;
    let lines = herd.disperse().await?;
    let figures = figures::of(&lines, &[], kill_us);
    let mut admission = figures.json(storm.rate(), ideal_s);
    admission["policy"] = json!(storm.policy.to_string());
    report.set("admission", admission);
    report.at_least("clients back", figures.admitted() as f64, storm.clients as f64);
    report.at_most("clients sent away for good", figures.stopped as f64, 0.0);
    if let Some(path) = &storm.report {
        let file = std::fs::File::create(path.with_extension("journal.jsonl"))?;
        crate::journal::write(&mut std::io::BufWriter::new(file), &lines)?;
    }
    Ok(())
}

/// Where to; only this machine unless `--remote` says otherwise.
async fn dial(storm: &Storm) -> anyhow::Result<Dial> {
    anyhow::ensure!(!storm.target.is_empty(), "--protocol raw needs --target ws://host:port/path");
    let mut addrs: Vec<SocketAddr> = Vec::new();
    let mut first = None;
    for target in &storm.target {
        let uri: Uri = target.parse().with_context(|| target.clone())?;
        anyhow::ensure!(uri.scheme_str() == Some("ws"), "{target}: only ws:// is supported");
        let host = uri.host().with_context(|| format!("{target}: no host"))?.to_owned();
        let found = tokio::net::lookup_host((host.as_str(), uri.port_u16().unwrap_or(80))).await;
        let addr = found.with_context(|| target.clone())?.next().with_context(|| format!("{target}: no address"))?;
        anyhow::ensure!(storm.remote || addr.ip().is_loopback(), "{target} is not on this machine: --remote allows it");
        addrs.push(addr);
        first.get_or_insert((host, uri.path_and_query().map_or("/", |p| p.as_str()).to_owned()));
    }
    let (host, path) = first.context("no target")?;
    let dial = Dial::new(addrs, None, DIALS);
    Ok(Dial { host: Arc::from(host), path: Arc::from(path), raw: true, ..dial })
}

/// Kills the server, or has it killed; returns when.
async fn fault(storm: &Storm) -> anyhow::Result<u64> {
    if let Some(pid) = storm.kill_pid {
        let pid = Pid::from_raw(i32::try_from(pid)?).context("--kill-pid 0")?;
        let at = now_us();
        kill_process(pid, Signal::KILL).context("--kill-pid")?;
        return Ok(at);
    }
    if let Some(command) = &storm.kill_cmd {
        let at = now_us();
        let status = tokio::process::Command::new("sh").arg("-c").arg(command).status().await?;
        anyhow::ensure!(status.success(), "--kill-cmd: {status}");
        return Ok(at);
    }
    println!("{} clients hold. Press Enter, and kill {} at once.", storm.clients, storm.target[0]);
    // a thread of its own: the runtime would wait for a read of the terminal when the run is interrupted
    let (pressed, wait) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        let _ = pressed.send(now_us());
    });
    Ok(wait.await?)
}
