//! `--price`: what a refusal costs a gateway, and what an admission does.

use std::sync::Arc;

use serde_json::{Value, json};

use super::args::Storm;
use super::churn::tokens;
use super::herd::DIALS;
use super::visit::{self, Answer, Visits};
use super::wave;
use crate::client::dial::Dial;
use crate::local::{Cluster, Spec, http, proc};
use crate::report::Report;

/// Visits of each kind, and their pace: slow enough for one core, so that queues stay empty. CPU is counted in steps of
/// 10 ms: 8,000 visits of 5 us are four steps.
const VISITS: u64 = 8_000;
const PER_S: u64 = 800;
/// A rate that refuses nobody, and one that refuses all but a few.
const OPEN: u64 = 100_000;
const SHUT: u64 = 1;

/// µs of the gateway's CPU for each visit of a kind.
struct Prices {
    admission: f64,
    refusal: f64,
    before_tls: f64,
}

pub async fn run(storm: &Storm, report: &mut Report) -> anyhow::Result<()> {
    for tls in [false, true] {
        let name = if tls { "tls" } else { "plain" };
        let prices = measure(storm, tls).await?;
        report.set(&format!("price_{name}"), prices.json());
        report.at_most(
            &format!("{name}: refusal by 101 and 1013, over an admission"),
            prices.refusal / prices.admission,
            0.6,
        );
        report.at_most(
            &format!("{name}: refusal before TLS, over an admission"),
            prices.before_tls / prices.admission,
            0.05,
        );
    }
    Ok(())
}

async fn measure(storm: &Storm, tls: bool) -> anyhow::Result<Prices> {
    let spec = Spec { gateways: 1, owners: 1, tls, admit_per_s: Some(OPEN), ..wave::spec(storm) };
    let cluster = Cluster::start(spec).await?;
    let dial = Dial::new(cluster.gateway_addrs(), cluster.tls.clone(), DIALS);
    let tokens = tokens(&cluster)?;
    // pools and allocator are warm after some
    visit::many(&dial, &tokens, VISITS / 8, PER_S, false).await;
    let (admission, visits) = each(&cluster, &dial, &tokens, false).await;
    expect(&visits, "an admission", |a| *a == Answer::Welcome)?;
    limits(&cluster, &json!({"admit_per_s": SHUT})).await?;
    let (refusal, visits) = each(&cluster, &dial, &tokens, false).await;
    expect(&visits, "a refusal", |a| matches!(a, Answer::Refused(_)))?;
    limits(&cluster, &json!({"admit_per_s": OPEN, "prefix_per_s": 1, "prefix_burst": 1, "prefix_private": true}))
        .await?;
    let (before_tls, visits) = each(&cluster, &dial, &tokens, true).await;
    expect(&visits, "a reset before TLS", |a| matches!(a, Answer::Nothing(_)))?;
    println!("tls {tls}: admission {admission:.1} us, refusal {refusal:.1} us, before TLS {before_tls:.1} us");
    Ok(Prices { admission, refusal, before_tls })
}

/// CPU of the gateway for each of many visits, µs, less what it spends when nobody comes.
async fn each(cluster: &Cluster, dial: &Dial, tokens: &Arc<[String]>, same: bool) -> (f64, Visits) {
    let gateway = &cluster.gateways[0].proc;
    let (cpu, began) = (gateway.cpu_s(), std::time::Instant::now());
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let idle_per_s = (gateway.cpu_s() - cpu) / began.elapsed().as_secs_f64();
    let (cpu, began) = (gateway.cpu_s(), std::time::Instant::now());
    let visits = visit::many(dial, tokens, VISITS, PER_S, same).await;
    let spent = gateway.cpu_s() - cpu - idle_per_s * began.elapsed().as_secs_f64();
    (spent.max(0.0) * 1e6 / VISITS as f64, visits)
}

/// Nearly all visits ended as they should; else the price is of something else.
fn expect(visits: &Visits, what: &str, so: impl Fn(&Answer) -> bool) -> anyhow::Result<()> {
    let right = visit::count(visits, &so);
    let other = visits.iter().map(|(a, _)| a).find(|a| !so(a));
    anyhow::ensure!(
        right * 100 >= visits.len() * 97,
        "{right} of {} visits ended in {what}, others {other:?}",
        visits.len()
    );
    Ok(())
}

async fn limits(cluster: &Cluster, change: &Value) -> anyhow::Result<()> {
    let (status, body) = http::put(&cluster.gateways[0].admin(), "/limits", &change.to_string()).await?;
    anyhow::ensure!(status == 200, "PUT /limits: {status} {body}");
    Ok(())
}

impl Prices {
    fn json(&self) -> Value {
        let round = |v: f64| (v * 10.0).round() / 10.0;
        json!({"admission_us": round(self.admission), "refused_us": round(self.refusal),
            "refused_before_tls_us": round(self.before_tls),
            "a_core_admits_per_s": (1e6 / self.admission.max(1.0)).round(), "client_cpu_s": proc::cpu_s("self")})
    }
}
