//! Scenarios: one body of load for all of them, and a file for each fault.

mod crash;
mod drain;
mod etcd_outage;
mod gateway_crash;
mod held;
mod idle;
mod load;
mod restore;
mod steady;
mod store_sick;
pub mod storm;
mod zombie;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use serde_json::json;

use crate::args::{Run, Switch, Transport, What};
use crate::client::traffic::Kind;
use crate::dump;
use crate::journal::{self, What as Heard};
use crate::local::metrics::{self, Buckets};
use crate::local::{Cluster, Spec, http};
use crate::report::Report;
use crate::stats;
use crate::verify;
use load::Load;

/// The fault comes this long after the load began, µs.
const FAULT_AFTER_US: u64 = 5_000_000;

/// One session in so many is of the second kind, where there is one.
const SECOND_KIND: usize = 20;

/// What a scenario needs besides the command line.
struct Shape {
    name: &'static str,
    kinds: Vec<Kind>,
    owners: usize,
    sessions: usize,
    reactions_per_s: u64,
    duration_s: u64,
}

/// What was done, for the judgement afterwards.
enum Fault {
    None,
    Crash(crash::Fault),
    Zombie(zombie::Fault),
    Directory(etcd_outage::Fault),
    Store(store_sick::Fault),
    Gateway(gateway_crash::Fault),
    Rollback(restore::Fault),
    Drain(drain::Fault),
    OwnerDrain(drain::Fault),
}

/// Runs one scenario. `Ok(true)`: every promise kept.
pub async fn run(what: What) -> anyhow::Result<bool> {
    let (name, run) = match &what {
        What::Storm(storm) => return storm::run(storm).await,
        What::Steady(run) => ("steady", run.clone()),
        What::Crash(run) => ("crash", run.clone()),
        What::Zombie(run) => ("zombie", run.clone()),
        What::EtcdOutage(run) => ("etcd-outage", run.clone()),
        What::StoreSick(run) => ("store-sick", run.clone()),
        What::GatewayCrash(run) => ("gateway-crash", run.clone()),
        What::Drain(run) => ("drain", run.clone()),
        What::OwnerDrain(run) => ("owner-drain", run.clone()),
        What::Restore(run) => ("restore", run.clone()),
        What::Verify { .. } => anyhow::bail!("not a scenario"),
    };
    anyhow::ensure!(run.local, "only --local is supported so far: say --local");
    let run = match name {
        "gateway-crash" => gateway_crash::usual(run),
        "drain" => drain::usual(run),
        _ => run,
    };
    anyhow::ensure!(
        !matches!(name, "gateway-crash" | "drain") || run.gateways_or(1) > 1,
        "one gateway of several goes: --gateways 3"
    );
    anyhow::ensure!(!run.kill_owner || name == "drain", "--kill-owner is for drain");
    anyhow::ensure!(run.held.is_none() || name == "crash", "--held is for crash");
    let run = held::usual(run);
    let shape = shape(name, &run);
    let started = Instant::now();
    let mut report = Report::default();
    report.set("scenario", json!(name));
    report.set("seed", json!(run.seed));
    report.set("params", json!(format!("{run:?}")));
    println!("starting 2 etcds, placement, {} owners, {} gateways", shape.owners, run.gateways_or(1));
    let mut cluster = Cluster::start(Spec {
        gateways: run.gateways_or(1).into(),
        owners: shape.owners,
        kinds: shape.kinds.clone(),
        cap: run.cap,
        fast_path: run.fast_path == Switch::On,
        tls: run.transport == Transport::Wss,
        admit_per_s: run.admit_per_s,
        hop: name == "zombie",
    })
    .await?;
    let done = measure(&run, &shape, &mut cluster, &mut report).await;
    report.set("wall_s", json!(started.elapsed().as_secs()));
    if let Some(path) = &run.report {
        cluster.keep_logs(&path.with_extension("logs"))?;
    }
    done?;
    if let Some(path) = &run.report {
        report.write(path)?;
    }
    report.print();
    Ok(report.ok())
}

fn shape(name: &'static str, run: &Run) -> Shape {
    let first = if matches!(name, "zombie" | "store-sick") { Kind::Meeting } else { Kind::Game };
    let kind = run.lease.unwrap_or(first);
    let owners = run.owners.map_or(
        if matches!(name, "steady" | "store-sick" | "gateway-crash" | "restore" | "drain" | "owner-drain") {
            3
        } else {
            6
        },
        usize::from,
    );
    let lease_s = kind.lease_ms() / 1_000;
    let sessions = run.sessions.or(run.victim_sessions.map(|n| n * owners)).unwrap_or(1_000);
    let (reactions, duration_s) = match name {
        // with a cap that is hit, time for the node that comes later
        "crash" => (100, 5 + lease_s + if run.cap as usize * (owners - 1) < sessions { 14 + lease_s } else { 8 }),
        "zombie" => (400, 5 + lease_s + 12),
        "etcd-outage" => (100, 65),
        "store-sick" => (100, 35),
        "gateway-crash" => (100, gateway_crash::duration_s()),
        "restore" => (100, 10 + restore::AFTER_S),
        "drain" => (100, drain::DURATION_S),
        "owner-drain" => (100, drain::OWNER_DURATION_S),
        _ => (100, 30),
    };
    let reactions = if kind == Kind::Meeting { reactions } else { 0 };
    // an outage of the directory must show that documents become read-only
    let kinds = match (name, kind) {
        ("etcd-outage", Kind::Game) => vec![kind, Kind::Document],
        ("gateway-crash", _) if run.lease.is_none() => vec![Kind::Game, Kind::Meeting, Kind::Document],
        _ => vec![kind],
    };
    Shape {
        name,
        kinds,
        owners,
        sessions,
        reactions_per_s: run.reactions_per_s.unwrap_or(reactions),
        duration_s: run.duration.unwrap_or(duration_s),
    }
}

async fn measure(run: &Run, shape: &Shape, cluster: &mut Cluster, report: &mut Report) -> anyhow::Result<()> {
    if shape.name == "steady" && run.idle > 0 {
        idle::measure(run, cluster, report).await?;
    }
    let mut load = Load::prepare(run, shape, cluster).await?;
    let cpu_before = cluster.cpu_s();
    load.start(shape.duration_s);
    let mut fault = match shape.name {
        "crash" => Fault::Crash(crash::fault(run, &load, cluster).await?),
        "zombie" => Fault::Zombie(zombie::fault(&load, cluster).await?),
        "etcd-outage" => Fault::Directory(etcd_outage::fault(&load, cluster, report).await?),
        "store-sick" => Fault::Store(store_sick::fault(&load, cluster).await?),
        "gateway-crash" => Fault::Gateway(gateway_crash::fault(&load, cluster).await?),
        "drain" => Fault::Drain(drain::gateway(run, &load, cluster).await?),
        "owner-drain" => Fault::OwnerDrain(drain::owner(&load, cluster).await?),
        "restore" => Fault::Rollback(restore::fault(&load, cluster).await?),
        _ => Fault::None,
    };
    let lines = load.finish().await?;
    report.at_most("clients sent away for good", load.live.stopped.load(Relaxed) as f64, 0.0);
    let cpu = cluster.cpu_s();
    if let Fault::Crash(crash::Fault { held: Some(held), .. }) = &mut fault {
        held.read(cluster).await;
    }
    let raws = dump::read_store(&cluster.store_url).await?;
    if let Some(path) = &run.report {
        journal::write(&mut file(&path.with_extension("journal.jsonl"))?, &lines)?;
        dump::write(&mut file(&path.with_extension("record.jsonl"))?, &raws)?;
    }
    let record = dump::decode(&raws)?;
    let verdict = verify::judge(&lines, &record);
    report.verdict(&verdict, told(shape.name));
    let ops = stats::ops(&lines);
    common(&lines, &ops, &verdict, report);
    let names = ["gateway", "owner", "placement", "etcd", "client"];
    let spent = names
        .iter()
        .zip(cpu.iter().zip(cpu_before))
        .map(|(n, (a, b))| ((*n).to_owned(), json!(((a - b) * 100.0).round() / 100.0)));
    report.set("cpu_s", spent.collect::<serde_json::Map<_, _>>().into());
    gateway_times(cluster, report).await;
    match &fault {
        Fault::Crash(fault) => crash::judge(run, shape, &load, &ops, &record, (fault, report)),
        Fault::Zombie(fault) => zombie::judge(&load, &lines, &record, fault, report),
        Fault::Directory(fault) => etcd_outage::judge(&load, &lines, &ops, fault, report),
        Fault::Store(fault) => store_sick::judge(&lines, &ops, fault, report),
        Fault::Gateway(fault) => gateway_crash::judge(run, shape, &lines, fault, report),
        Fault::Rollback(fault) => restore::judge(&lines, &ops, &verdict, fault, report),
        Fault::Drain(fault) => drain::judge_gateway(&lines, fault, report),
        Fault::OwnerDrain(fault) => drain::judge_owner(&load, &lines, &ops, fault, report),
        Fault::None => steady::judge(&verdict, &cpu, &cpu_before, report),
    }
    Ok(())
}

/// Counts of the verifier that are no broken promise under this fault. A stamp dies with its gateway, and with it the
/// proof that a player had moved in time; a record that went back takes its clocks along.
fn told(scenario: &str) -> &'static [&'static str] {
    match scenario {
        "gateway-crash" => &["charged_outage"],
        "restore" => &["charged_outage", "rolled_back"],
        _ => &[],
    }
}

/// Kind of the i-th session, with `per_conn` on each connection.
fn kind_of(shape: &Shape, per_conn: usize, i: usize) -> Kind {
    match (&shape.kinds[..], shape.name) {
        // those of one connection are alike, so that it has a class
        (kinds, "gateway-crash") => kinds[i / per_conn % kinds.len()],
        ([_, second, ..], _) if i.is_multiple_of(SECOND_KIND) => *second,
        (kinds, _) => kinds[0],
    }
}

fn file(path: &std::path::Path) -> anyhow::Result<std::io::BufWriter<std::fs::File>> {
    Ok(std::io::BufWriter::new(std::fs::File::create(path)?))
}

fn common(lines: &[journal::Line], ops: &[stats::Op], verdict: &verify::Verdict, report: &mut Report) {
    let count = |what| lines.iter().filter(|l| l.what == what).count() as u64;
    let ages = stats::reaction_ages(lines, 0, u64::MAX);
    let late = ages.iter().filter(|a| **a > verify::REACTION_LATE_US).count();
    let sent = count(Heard::ReactionSent);
    if sent > 0 {
        report.set(
            "reactions",
            json!({"sent": sent, "delivered": ages.len(), "late_delivered": late,
                "stale_epoch_delivered": verdict.stale_epoch_delivered,
                "age_us": stats::quantiles(&stats::histogram(ages), 1.0, &[("p50", 0.5), ("p99", 0.99)])}),
        );
        report.at_most("reactions.late_delivered", late as f64, 0.0);
    }
    let echo = ops.iter().filter_map(|o| o.echo.map(|e| e.0.saturating_sub(o.intended_us)));
    let echo = stats::quantiles(&stats::histogram(echo), 1.0, &[("p50", 0.5), ("p99", 0.99), ("p999", 0.999)]);
    report.set("latency_us", json!({"op_to_echo": echo}));
}

/// The gateways' own time up and down, from their metrics.
async fn gateway_times(cluster: &Cluster, report: &mut Report) {
    let mut texts = Vec::new();
    for gateway in &cluster.gateways {
        texts.extend(http::get(&gateway.admin(), "/metrics").await.map(|(_, text)| text));
    }
    for (field, metric) in
        [("gateway_up", "holdfast_gateway_up_seconds"), ("gateway_down", "holdfast_gateway_down_seconds")]
    {
        let times = Buckets::read(&texts, metric);
        let of = |q| times.quantile(q).map(|s| (s * 1e6).round());
        if let (Some(p50), Some(p99)) = (of(0.5), of(0.99)) {
            report.fields["latency_us"][field] = json!({"p50": p50, "p99": p99});
        }
    }
    let resent = texts.iter().filter_map(|t| metrics::total(t, "holdfast_ops_resent_total")).sum::<f64>();
    report.set("gateway", json!({"ops_resent": resent}));
}
