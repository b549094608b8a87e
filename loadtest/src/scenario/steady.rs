//! `steady`: no fault. What the service costs and how fast it answers.

use serde_json::json;

use crate::report::Report;
use crate::verify::Verdict;

pub fn judge(verdict: &Verdict, cpu: &[f64; 5], before: &[f64; 5], report: &mut Report) {
    let share = 100.0 * verdict.acked as f64 / verdict.sent.max(1) as f64;
    report.at_least("acked, percent", share, 99.9);
    let nacks = verdict.nacked + verdict.retries.values().sum::<u64>();
    report.at_most("nacks of any kind", nacks as f64, 0.0);
    let per_1000 = |role: usize| ((cpu[role] - before[role]) * 1e6 / verdict.acked.max(1) as f64).round() / 1e3;
    report.set("cpu_s_per_1000_ops", json!({"gateway": per_1000(0), "owner": per_1000(1)}));
}
