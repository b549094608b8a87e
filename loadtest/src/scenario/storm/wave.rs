//! One storm: a gateway of several is killed, its clients come back, bystanders look on.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::args::Storm;
use super::bystanders::{self, Times};
use super::figures::{self, Figures};
use super::herd::{self, Herd};
use crate::args::Transport;
use crate::client::dial::Dial;
use crate::client::policy::{Crowd, Policy};
use crate::client::traffic::Kind;
use crate::clock::{instant, now_us};
use crate::dump;
use crate::journal::{self, Line, What};
use crate::local::{Cluster, Spec, proc};
use crate::verify::{self, Verdict};

/// The quiet the storm is compared with, just before it. Also the least pause between the last admission and the kill:
/// gateways tell each other their rates each 10 s, and clients hear of it in a ping (design 8.1, 9.2).
const QUIET_US: u64 = 10_000_000;
/// The herd comes in at this part of R, so that nobody is refused before the storm.
const GATHER_PERCENT: u64 = 85;
const OWNERS: usize = 2;

/// What was measured.
pub struct Wave {
    pub crowd: Crowd,
    pub figures: Figures,
    pub ideal_s: f64,
    /// p99 up + down of the bystanders, µs: quiet, storm.
    pub bystander_us: (f64, f64),
    /// Bystanders that lost their connection.
    pub cut: usize,
    /// Of both cores, during the storm.
    pub cpu_percent: f64,
    /// On the bystanders' ops.
    pub verdict: Verdict,
    /// Median way back, seconds: of the polite and of those that hammer.
    pub medians_s: (f64, f64),
}

/// Runs it on processes of its own; `keep`: where journals and logs go.
pub async fn run(storm: &Storm, crowd: Crowd, keep: Option<&Path>) -> anyhow::Result<Wave> {
    let rate = storm.rate();
    let survivors = u64::from(storm.gateways) - 1;
    let ideal_s = storm.clients as f64 / (survivors * rate) as f64;
    let ideal = Duration::from_secs_f64(ideal_s);
    println!("{crowd}: starting 2 etcds, placement, {OWNERS} owners, {} gateways", storm.gateways);
    let mut cluster = Cluster::start(spec(storm)).await?;
    let quiet_s = storm.idle_before.max(QUIET_US / 1_000_000 + 5);
    let mut load = bystanders::attach(storm, &cluster, quiet_s).await?;
    let dial = Dial::new(cluster.gateway_addrs(), cluster.tls.clone(), herd::DIALS);
    let signer = &cluster.signer;
    let gather = (rate * GATHER_PERCENT / 100).max(1);
    let herd = Herd::gather(storm.clients, gather, crowd, &dial, |sub| signer.token(sub, "none")).await?;
    load.start(quiet_s + 20 * ideal.as_secs().max(1) + 60);
    let kill_us = now_us() + quiet_s * 1_000_000;
    tokio::time::sleep_until(instant(kill_us - QUIET_US)).await;
    let before = Times::read(&cluster).await;
    tokio::time::sleep_until(instant(kill_us)).await;
    let quiet = Times::read(&cluster).await;
    let welcomes = herd.welcomes();
    let (busy, all) = proc::machine();
    let kill_us = now_us();
    cluster.gateways[0].proc.kill_now()?;
    println!("gw-0 killed, {} clients; at best they are back in {ideal_s:.2} s", storm.clients);
    herd.back(welcomes, ideal).await;
    println!("back after {} ms", (now_us() - kill_us) / 1_000);
    let (busy, all) = (proc::machine().0 - busy, proc::machine().1 - all);
    let stormy = Times::read(&cluster).await;
    load.end_now();
    let others = load.finish().await?;
    let lines = herd.disperse().await?;
    let raws = dump::read_store(&cluster.store_url).await?;
    if let Some(path) = keep {
        cluster.keep_logs(&path.with_extension("logs"))?;
        write(&path.with_extension("journal.jsonl"), |out| {
            journal::write(out, &lines)?;
            journal::write(out, &others)
        })?;
        write(&path.with_extension("record.jsonl"), |out| dump::write(out, &raws))?;
    }
    let verdict = verify::judge(&others, &dump::decode(&raws)?);
    let figures = figures::of(&lines, &others, kill_us);
    let storm_us = stormy.p99_us(&quiet).unwrap_or(f64::NAN);
    Ok(Wave {
        crowd,
        ideal_s,
        bystander_us: (quiet.p99_us(&before).unwrap_or(f64::NAN), storm_us),
        cut: cut(&others, kill_us),
        cpu_percent: 100.0 * busy / all.max(1.0),
        verdict,
        medians_s: medians(&figures, crowd),
        figures,
    })
}

/// What a storm needs: gateways with the rate asked for, a few owners for the bystanders.
pub fn spec(storm: &Storm) -> Spec {
    Spec {
        gateways: storm.gateways.into(),
        owners: OWNERS,
        kinds: vec![Kind::Meeting],
        cap: 10_000,
        fast_path: true,
        hop: false,
        tls: storm.transport == Transport::Wss,
        admit_per_s: Some(storm.rate()),
    }
}

fn cut(lines: &[Line], kill_us: u64) -> usize {
    lines.iter().filter(|l| l.what == What::Closed && l.t_us >= kill_us && &*l.code != "1000").count()
}

fn medians(figures: &Figures, crowd: Crowd) -> (f64, f64) {
    let hammers = |client: &str| herd::index(client).is_some_and(|i| crowd.of(i) == Policy::Hammer);
    (figures.back_s(0.5, |c| !hammers(c)), figures.back_s(0.5, hammers))
}

fn write(
    path: &Path,
    with: impl FnOnce(&mut std::io::BufWriter<std::fs::File>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    with(&mut std::io::BufWriter::new(std::fs::File::create(path)?))
}

impl Wave {
    pub fn ratio(&self) -> f64 {
        self.bystander_us.1 / self.bystander_us.0
    }

    /// The `admission` part of the report, with what belongs to this run.
    pub fn json(&self, rate: u64) -> Value {
        let mut all = self.figures.json(rate, self.ideal_s);
        let round = |v: f64| (v * 100.0).round() / 100.0;
        all["policy"] = json!(self.crowd.to_string());
        all["bystander_p99_ratio"] = json!(round(self.ratio()));
        all["bystander_p99_us"] = json!({"quiet": round(self.bystander_us.0), "storm": round(self.bystander_us.1)});
        all["cpu_percent"] = json!(self.cpu_percent.round());
        if self.crowd.hammer_percent > 0 {
            all["median_s"] = json!({"polite": self.medians_s.0, "hammer": self.medians_s.1});
        }
        all
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let f = &self.figures;
        let back = |q| f.back_s(q, |_| true);
        let relative = |s: f64| s / self.ideal_s;
        format!(
            "{:<12} all back {:>6.2} s ({:.2}x)  99 % {:>6.2} s ({:.2}x)  attempts {:.2}  refused {:>6}  in 1 s {:>5}  bystanders {:.1}x",
            self.crowd.to_string(),
            back(1.0),
            relative(back(1.0)),
            back(0.99),
            relative(back(0.99)),
            f.attempts_per_client(),
            f.refused.values().sum::<u64>(),
            f.max_in_1s,
            self.ratio()
        )
    }
}
