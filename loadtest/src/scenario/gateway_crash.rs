//! `gateway-crash`: SIGKILL of one gateway under load. Its clients come back elsewhere, games first, and send again what
//! was not settled.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::load::Load;
use super::storm::densest_second;
use super::{Shape, kind_of};
use crate::args::Run;
use crate::client::traffic::Kind;
use crate::clock::now_us;
use crate::journal::{Line, What};
use crate::local::Cluster;
use crate::report::Report;
use crate::scenario::storm::figures;

/// Admissions a second of each gateway: so few that the order of the classes shows.
const ADMIT_PER_S: u64 = 50;
/// Two to a connection, and two clients to a session: 600 clients, 200 of them at the gateway that dies.
const SESSIONS: usize = 600;
/// Clients hear of the others' rates within 10 s + a ping (design 8.1, 9.2): their ranks count from then on.
const HINTS: Duration = Duration::from_secs(13);
/// The victim stands still this long before it is killed, so that ops are under way in it.
const IN_FLIGHT: Duration = Duration::from_millis(300);
/// Coming back by rank: at most this part of N / (S R) (design 9.1), and the way from a welcome to the last `attached`.
const BOUND: f64 = 1.25;
const ATTACH_S: f64 = 1.5;

pub struct Fault {
    at_us: u64,
}

/// The numbers this scenario takes where none are given.
pub fn usual(run: Run) -> Run {
    Run {
        gateways: Some(run.gateways_or(3)),
        sessions: run.sessions.or(Some(SESSIONS)),
        sessions_per_conn: run.sessions_per_conn.or(Some(2)),
        admit_per_s: run.admit_per_s.or(Some(ADMIT_PER_S)),
        ..run
    }
}

/// Seconds of load: hints, the wave, and time to settle.
pub fn duration_s() -> u64 {
    HINTS.as_secs() + 5 + 20
}

pub async fn fault(load: &Load, cluster: &mut Cluster) -> anyhow::Result<Fault> {
    load.fault_time().await;
    tokio::time::sleep(HINTS).await;
    cluster.gateways[0].proc.stop()?;
    tokio::time::sleep(IN_FLIGHT).await;
    let at_us = now_us();
    cluster.gateways[0].proc.kill_now()?;
    println!("gw-0 killed");
    Ok(Fault { at_us })
}

/// One client's way back, µs after the kill.
struct Way {
    kind: Kind,
    welcome: Option<u64>,
    /// Its last session is attached again.
    attached: Option<u64>,
}

pub fn judge(run: &Run, shape: &Shape, lines: &[Line], fault: &Fault, report: &mut Report) {
    let rate = run.admit_per_s.unwrap_or(ADMIT_PER_S);
    let ways = ways(run, shape, lines, fault.at_us);
    let survivors = u64::from(run.gateways_or(3)) - 1;
    let ideal_s = ways.len() as f64 / (survivors * rate).max(1) as f64;
    let worst = |of: fn(&Way) -> Option<u64>| {
        let all = ways.values().map(|w| of(w).map_or(f64::INFINITY, |us| us as f64 / 1e6));
        all.fold(0.0, f64::max)
    };
    let (back, attached) = (worst(|w| w.welcome), worst(|w| w.attached));
    let medians = [Kind::Game, Kind::Meeting, Kind::Document].map(|kind| median_s(&ways, kind));
    let mine: Vec<Line> = lines.iter().filter(|l| ways.contains_key(&l.client)).cloned().collect();
    let all = figures::of(&mine, lines, fault.at_us);
    let densest = figures::max_in_1s(lines.iter());
    let mut admission = all.json(rate, ideal_s);
    admission["max_admitted_in_1s"] = json!(densest);
    admission["attached_s"] = json!(attached);
    admission["median_s"] = json!({"game": medians[0], "meeting": medians[1], "document": medians[2]});
    report.set("admission", admission);
    report.at_least("clients of the gateway that died", ways.len() as f64, 1.0);
    report.at_most("all welcomed elsewhere, over ideal", back / ideal_s, BOUND);
    report.at_most("all attached, s", attached, BOUND * ideal_s + ATTACH_S);
    report.at_most("max_admitted_in_1s", densest as f64, densest_second(rate));
    let present: Vec<f64> = medians.iter().copied().flatten().collect();
    for (pair, name) in
        present.windows(2).zip(["second kind's median over the first's", "third kind's over the second's"])
    {
        report.at_least(name, pair[1] / pair[0], 1.0);
    }
    let resent = report.fields["ops"]["resent"].as_f64().unwrap_or(0.0);
    report.at_least("resent", resent, 1.0);
}

/// The clients whose connection the kill cut.
fn ways(run: &Run, shape: &Shape, lines: &[Line], at_us: u64) -> HashMap<Arc<str>, Way> {
    let mut ways: HashMap<Arc<str>, Way> = HashMap::new();
    for line in lines.iter().filter(|l| l.t_us >= at_us) {
        if line.what == What::Closed && &*line.code == "1006" {
            let kind = client_kind(run, shape, &line.client);
            ways.entry(line.client.clone()).or_insert(Way { kind, welcome: None, attached: None });
        } else if let Some(way) = ways.get_mut(&line.client) {
            match line.what {
                What::Welcome => _ = way.welcome.get_or_insert(line.t_us - at_us),
                What::Attached if way.welcome.is_some() => way.attached = Some(line.t_us - at_us),
                _ => {}
            }
        }
    }
    ways
}

/// Kind of a client's sessions: those of one client are alike here. Clients are named `u<group>-<seat>`.
fn client_kind(run: &Run, shape: &Shape, client: &str) -> Kind {
    let group = client.strip_prefix('u').and_then(|c| c.split('-').next()?.parse::<usize>().ok()).unwrap_or(0);
    kind_of(shape, run.per_conn(), group * run.per_conn())
}

fn median_s(ways: &HashMap<Arc<str>, Way>, kind: Kind) -> Option<f64> {
    let mut all: Vec<u64> = ways.values().filter(|w| w.kind == kind).filter_map(|w| w.welcome).collect();
    all.sort_unstable();
    all.get(all.len() / 2).map(|us| *us as f64 / 1e6)
}
