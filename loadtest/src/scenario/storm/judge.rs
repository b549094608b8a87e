//! What a storm is held to (design 9, invariant 21).

use super::args::Storm;
use super::wave::Wave;
use crate::client::policy::Policy;
use crate::report::Report;

/// R x 1.05, and a burst of 20 ms.
pub fn densest_second(rate: u64) -> f64 {
    (rate as f64 * 1.05 + rate as f64 * 0.02).ceil()
}

/// Above this the cores are what the bystanders wait for, and not the admission.
const CPU_PERCENT: f64 = 75.0;

pub fn judge(storm: &Storm, wave: &Wave, report: &mut Report) {
    let name = |what: &str| format!("{}: {what}", wave.crowd);
    let f = &wave.figures;
    let back = |q: f64| f.back_s(q, |_| true) / wave.ideal_s;
    report.at_least(&name("clients back"), f.admitted() as f64, storm.clients as f64);
    report.at_most(&name("clients sent away for good"), f.stopped as f64, 0.0);
    report.at_most(&name("max_admitted_in_1s"), f.max_in_1s as f64, densest_second(storm.rate()));
    match wave.crowd.polite {
        Policy::Slots if wave.crowd.hammer_percent == 0 => {
            report.at_most(&name("99 % back, over ideal"), back(0.99), 1.08);
            report.at_most(&name("all back, over ideal"), back(1.0), 1.20);
            report.at_most(&name("attempts per client"), f.attempts_per_client(), 2.05);
        }
        Policy::Ranks => {
            report.at_most(&name("all back, over ideal"), back(1.0), 1.25);
            report.at_most(&name("attempts per client"), f.attempts_per_client(), 1.10);
        }
        _ => {}
    }
    if wave.crowd.hammer_percent > 0 {
        report.at_least(&name("median back, hammer over polite"), wave.medians_s.1 / wave.medians_s.0, 1.0);
    }
    report.at_most(&name("bystanders cut off"), wave.cut as f64, 0.0);
    report.at_least(&name("bystanders' ops acked"), wave.verdict.acked as f64, 1.0);
    report.at_most(&name("promises to bystanders broken"), wave.verdict.broken() as f64, 0.0);
    report.notes.extend(wave.verdict.examples.iter().cloned());
    if wave.cpu_percent <= CPU_PERCENT {
        report.at_most(&name("bystander_p99_ratio"), wave.ratio(), 3.0);
    } else {
        report.notes.push(format!(
            "{}: bystander_p99_ratio {:.1} is not judged: {:.0} % of the machine was busy",
            wave.crowd,
            wave.ratio(),
            wave.cpu_percent
        ));
    }
}
