//! `drain`: SIGTERM to one gateway of several under load. Everybody on it is told a moment, goes elsewhere, and loses nothing.
//! `owner-drain`: the same to an owner, whose sessions go to the others (design 7.3, 10).

use std::collections::HashMap;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::load::Load;
use super::storm::figures;
use crate::args::Run;
use crate::clock::now_us;
use crate::journal::{Line, What};
use crate::local::{Cluster, http, wait_for};
use crate::report::Report;
use crate::stats::{self, Op};

/// Two to a connection, and two clients to a session: 600 clients, 200 of them at the gateway that goes.
const SESSIONS: usize = 600;
/// Admissions a second of each gateway: the drain takes as much as the others admit, so it lasts a few seconds.
const ADMIT_PER_S: u64 = 50;
/// Gateways hear of each other's rates within 10 s (design 8.1): the pace of the drain is made of them.
const HINTS: Duration = Duration::from_secs(13);
/// With `--kill-owner`, so long after the signal.
const KILL_AFTER: Duration = Duration::from_secs(1);
/// Beyond any deadline of a drain that has one by itself.
const END_MAX: Duration = Duration::from_secs(120);
/// Ops due so long before and after a session's move are those that can meet it.
const AROUND_US: u64 = 500_000;
/// Longest pause of an op that meets the move of its session (p99).
const PAUSE_MS: f64 = 200.0;
/// What the pace may be above the configured one in any second: the burst of 20 ms, and the dither of clients.
const PACE_OVER: f64 = 1.10;

pub struct Fault {
    at_us: u64,
    end_us: u64,
    status: ExitStatus,
    /// What the gateway said of its drain when it began.
    said: Value,
    /// The owner that drained, and its sessions.
    owner: Option<(String, Vec<Arc<str>>)>,
}

/// The numbers a gateway's drain takes where none are given.
pub fn usual(run: Run) -> Run {
    Run {
        gateways: Some(run.gateways_or(3)),
        sessions: run.sessions.or(Some(SESSIONS)),
        sessions_per_conn: run.sessions_per_conn.or(Some(2)),
        admit_per_s: run.admit_per_s.or(Some(ADMIT_PER_S)),
        ..run
    }
}

/// Seconds of load: hints, the drain (and a lease, if an owner dies in it), and time to settle.
pub const DURATION_S: u64 = 5 + HINTS.as_secs() + 25;
/// The same for an owner: 1,000 sessions move in a second or two.
pub const OWNER_DURATION_S: u64 = 20;

pub async fn gateway(run: &Run, load: &Load, cluster: &mut Cluster) -> anyhow::Result<Fault> {
    load.fault_time().await;
    tokio::time::sleep(HINTS).await;
    let admin = cluster.gateways[0].admin();
    cluster.gateways[0].proc.terminate()?;
    let at_us = now_us();
    wait_for(|| async { drain(&admin).await.is_some_and(|said| said["state"] == "telling") }).await?;
    let said = drain(&admin).await.context("gw-0 says nothing of its drain")?;
    println!("gw-0 drains: {said}");
    if run.kill_owner {
        tokio::time::sleep(KILL_AFTER).await;
        let (victim, _) = load.victim()?;
        cluster.owners[victim].proc.kill_now()?;
        println!("owner-{victim} killed");
    }
    let status = cluster.gateways[0].proc.ended(END_MAX).await?;
    Ok(Fault { at_us, end_us: now_us(), status, said, owner: None })
}

pub async fn owner(load: &Load, cluster: &mut Cluster) -> anyhow::Result<Fault> {
    load.fault_time().await;
    let (index, sessions) = load.victim()?;
    cluster.owners[index].proc.terminate()?;
    let at_us = now_us();
    let status = cluster.owners[index].proc.ended(END_MAX).await?;
    let owner = Some((format!("owner-{index}"), sessions));
    Ok(Fault { at_us, end_us: now_us(), status, said: Value::Null, owner })
}

async fn drain(admin: &str) -> Option<Value> {
    let (_, body) = http::get(admin, "/drain").await.ok()?;
    serde_json::from_str(&body).ok()
}

/// What a gateway's drain did to its clients.
pub fn judge_gateway(lines: &[Line], fault: &Fault, report: &mut Report) {
    let mine = of_gateway(lines, "gw-0", fault.at_us);
    let after = || lines.iter().filter(|l| l.t_us >= fault.at_us && mine.contains_key(&l.client));
    let told = after().filter(|l| l.what == What::Goaway).count();
    let back: Vec<Line> = after().filter(|l| l.what == What::Welcome).cloned().collect();
    let nacks = nacks(after());
    let rate = fault.said["rate_per_s"].as_f64().unwrap_or(0.0);
    let densest = densest(&back);
    let took_s = (fault.end_us - fault.at_us) as f64 / 1e6;
    let limit_s = fault.said["seconds_left"].as_f64().unwrap_or(0.0);
    let closes = after().filter(|l| l.what == What::Closed);
    let mut codes: HashMap<&str, usize> = HashMap::new();
    closes.for_each(|l| *codes.entry(&l.code).or_default() += 1);
    report.set(
        "drain",
        json!({"clients": mine.len(), "told": told, "back": back.len(), "rate_per_s": rate, "max_back_in_1s": densest,
            "took_s": took_s, "deadline_s": limit_s, "nacks": nacks, "closed": codes,
            "attempts_per_client": figures::of(&back, lines, fault.at_us).json(1, 1.0)["attempts_per_client"]}),
    );
    report.at_least("clients of the gateway that goes", mine.len() as f64, 1.0);
    report.at_least("told when to go", told as f64, mine.len() as f64);
    report.at_least("back elsewhere", back.len() as f64, mine.len() as f64);
    report.at_most("ops nacked", nacks as f64, 0.0);
    report.at_most("back in the densest second", densest as f64, (rate * PACE_OVER).ceil());
    report.at_most("ended, s", took_s, limit_s);
    report.at_most("exit status", f64::from(fault.status.code().unwrap_or(255)), 0.0);
}

/// What an owner's drain did to those who play.
pub fn judge_owner(load: &Load, lines: &[Line], ops: &[Op], fault: &Fault, report: &mut Report) {
    let Some((node, sessions)) = &fault.owner else { return };
    let moves: HashMap<Arc<str>, u64> = load
        .directory
        .moves_since(fault.at_us)
        .into_iter()
        .filter(|m| m.owner != *node && !m.owner.is_empty())
        .map(|m| (m.session, m.at_us))
        .collect();
    let met = ops.iter().filter(|o| {
        let at = moves.get(&o.session);
        at.is_some_and(|at| o.intended_us + AROUND_US >= *at && o.intended_us <= at + AROUND_US)
    });
    let pauses = stats::histogram(met.filter_map(|o| o.echo.map(|e| e.0.saturating_sub(o.intended_us))));
    let p99_ms = pauses.value_at_quantile(0.99) as f64 / 1e3;
    let nacks = nacks(lines.iter().filter(|l| l.t_us >= fault.at_us));
    let took_s = (fault.end_us - fault.at_us) as f64 / 1e6;
    report.set(
        "drain",
        json!({"sessions": sessions.len(), "moved": moves.len(), "ops_that_met_it": pauses.len(), "took_s": took_s,
            "pause_ms": stats::quantiles(&pauses, 1e3, &[("p50", 0.5), ("p99", 0.99), ("max", 1.0)]), "nacks": nacks}),
    );
    report.at_least("sessions moved", moves.len() as f64, sessions.len() as f64);
    report.at_least("ops that met a move", pauses.len() as f64, 1.0);
    report.at_most("pause p99, ms", p99_ms, PAUSE_MS);
    report.at_most("ops nacked", nacks as f64, 0.0);
    report.at_most("exit status", f64::from(fault.status.code().unwrap_or(255)), 0.0);
}

/// The clients whose last welcome before was this gateway's.
fn of_gateway(lines: &[Line], name: &str, at_us: u64) -> HashMap<Arc<str>, ()> {
    let mut last: HashMap<Arc<str>, &str> = HashMap::new();
    for line in lines.iter().filter(|l| l.what == What::Welcome && l.t_us < at_us) {
        last.insert(line.client.clone(), &line.code);
    }
    last.into_iter().filter(|(_, gateway)| *gateway == name).map(|(client, _)| (client, ())).collect()
}

fn nacks<'a>(lines: impl Iterator<Item = &'a Line>) -> usize {
    lines.filter(|l| l.what == What::Nack).count()
}

/// Most lines in any second, over all gateways: the pace is that of those who leave.
fn densest(lines: &[Line]) -> usize {
    let mut at: Vec<u64> = lines.iter().map(|l| l.t_us).collect();
    at.sort_unstable();
    (0..at.len()).map(|i| at[i..].partition_point(|t| *t < at[i] + 1_000_000)).max().unwrap_or(0)
}
