//! `--overload X`: strangers come at X times R and never stop. A gateway that collapses admits fewer than at R.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::args::Storm;
use super::figures;
use super::herd::DIALS;
use super::judge::densest_second;
use super::visit::PATIENCE;
use super::wave;
use crate::client::conn::{Client, Live, Phase};
use crate::client::dial::Dial;
use crate::clock::{instant, now_us};
use crate::journal::{Line, What};
use crate::local::{Cluster, Spec};
use crate::report::Report;

/// Arrivals go on for so long; the first part is not measured: the schedule fills up in it.
const LASTS_US: u64 = 15_000_000;
const WARM_US: u64 = 3_000_000;

/// What one run of arrivals came to.
struct Crush {
    /// Per second.
    admitted: f64,
    /// Share of the attempts that were answered in words before the client gave up.
    useful: f64,
    attempts: usize,
    max_in_1s: usize,
}

pub async fn run(storm: &Storm, times: u64, report: &mut Report) -> anyhow::Result<()> {
    let rate = storm.rate();
    let calm = crush(storm, rate).await?;
    println!("offered {rate}/s: {:.1}/s admitted", calm.admitted);
    let wild = crush(storm, rate * times).await?;
    println!(
        "offered {}/s: {:.1}/s admitted, {:.3} of {} attempts useful",
        rate * times,
        wild.admitted,
        wild.useful,
        wild.attempts
    );
    let ratio = wild.admitted / calm.admitted;
    report.set(
        "overload",
        json!({"rate_per_s": rate, "offered_per_s": rate * times, "admitted_per_s_at_1x": calm.admitted,
            "admitted_per_s": wild.admitted, "ratio": ratio, "useful": wild.useful, "attempts": wild.attempts,
            "max_admitted_in_1s": wild.max_in_1s}),
    );
    report.at_least("admitted, over that at 1x", ratio, 0.97);
    report.at_least("useful handshakes, of all", wild.useful, 0.90);
    let densest = wild.max_in_1s.max(calm.max_in_1s) as f64;
    report.at_most("max_admitted_in_1s", densest, densest_second(rate));
    Ok(())
}

/// Strangers arrive at one gateway at `per_s`, leave when welcomed, and keep the slots they are given.
async fn crush(storm: &Storm, per_s: u64) -> anyhow::Result<Crush> {
    let cluster = Cluster::start(Spec { gateways: 1, owners: 1, ..wave::spec(storm) }).await?;
    let dial = Dial::new(cluster.gateway_addrs(), cluster.tls.clone(), DIALS);
    let (phase, heard) = watch::channel(Phase::Setup);
    let (live, mut clients) = (Arc::new(Live::default()), JoinSet::new());
    let began = now_us();
    for n in 0..per_s * LASTS_US / 1_000_000 {
        let due = began + n * 1_000_000 / per_s;
        if due > now_us() + 1_000 {
            tokio::time::sleep_until(instant(due)).await;
        }
        let sub: Arc<str> = Arc::from(format!("s{n}"));
        let token = cluster.signer.token(&sub, "none")?;
        let mut client = Client::idle(usize::try_from(n)?, sub, token, dial.clone(), live.clone());
        (client.policy, client.stay) = (storm.policy.of(client.index), false);
        clients.spawn(client.run(heard.clone()));
    }
    let until = now_us();
    // those on their way are answered; those that wait for a slot are not waited for
    tokio::time::sleep(Duration::from_millis(500)).await;
    phase.send_replace(Phase::Stop);
    let mut lines = Vec::new();
    while let Some(done) = clients.join_next().await {
        lines.extend(done?);
    }
    Ok(measure(&lines, began + WARM_US, until))
}

fn measure(lines: &[Line], from_us: u64, to_us: u64) -> Crush {
    let span = from_us..to_us;
    let (mut admitted, mut attempts, mut useful) = (0, 0, 0);
    let mut dialled = None;
    // each client's lines are together and in order
    for line in lines {
        match line.what {
            What::Dial => dialled = Some(line.t_us),
            What::Welcome | What::Refused => {
                let Some(at) = dialled.take().filter(|at| span.contains(at)) else { continue };
                let told = line.what == What::Welcome || matches!(&*line.code, "slot" | "full");
                attempts += 1;
                useful += usize::from(told && line.t_us - at <= PATIENCE.as_micros() as u64);
                admitted += usize::from(line.what == What::Welcome);
            }
            _ => {}
        }
    }
    let seconds = to_us.saturating_sub(from_us) as f64 / 1e6;
    Crush {
        admitted: f64::from(u32::try_from(admitted).unwrap_or(u32::MAX)) / seconds,
        useful: useful as f64 / attempts.max(1) as f64,
        attempts,
        max_in_1s: figures::max_in_1s(lines.iter()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn useful_is_what_was_answered_in_words_and_in_time() {
        let line = |t_us: u64, what: What, code: &str| {
            let mut line = Line::new(t_us, &Arc::from("s"), what);
            line.code = Arc::from(code);
            line
        };
        let lines = [
            line(10, What::Dial, ""),
            line(20, What::Welcome, "gw-0"),
            line(30, What::Dial, ""),
            line(40, What::Refused, "slot"),
            line(50, What::Dial, ""),
            line(60, What::Refused, "unreachable"),
            line(70, What::Dial, ""),
            line(3_000_000, What::Refused, "full"),
            line(2_000_000, What::Dial, ""),
            line(2_000_001, What::Welcome, "gw-0"),
        ];
        let crush = measure(&lines, 0, 1_000_000);
        assert_eq!((crush.admitted, crush.useful, crush.attempts, crush.max_in_1s), (1.0, 0.5, 4, 1));
    }
}
