//! The JSON report and the table at the end.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::verify::Verdict;

/// One promise of a scenario: measured against its limit.
pub struct Check {
    pub name: String,
    pub value: f64,
    pub limit: String,
    pub kept: bool,
}

/// Everything a run found out.
#[derive(Default)]
pub struct Report {
    pub fields: Map<String, Value>,
    pub checks: Vec<Check>,
    pub notes: Vec<String>,
}

impl Report {
    pub fn set(&mut self, name: &str, value: Value) {
        self.fields.insert(name.to_owned(), value);
    }

    /// `value` must be at most `limit`.
    pub fn at_most(&mut self, name: &str, value: f64, limit: f64) {
        self.check(name, value, format!("<= {limit}"), value <= limit);
    }

    /// `value` must be at least `limit`.
    pub fn at_least(&mut self, name: &str, value: f64, limit: f64) {
        self.check(name, value, format!(">= {limit}"), value >= limit);
    }

    fn check(&mut self, name: &str, value: f64, limit: String, kept: bool) {
        self.checks.push(Check { name: name.to_owned(), value, limit, kept });
    }

    pub fn ok(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|c| c.kept)
    }

    /// The verifier's counts, each of which must be zero; `told`: those that this fault may raise are only told.
    pub fn verdict(&mut self, v: &Verdict, told: &[&str]) {
        let retried: u64 = v.retries.values().sum();
        self.set(
            "ops",
            json!({"sent": v.sent, "acked": v.acked, "nacked": v.nacked, "unsettled": v.unsettled,
            "acked_lost": v.acked_lost, "duplicated": v.duplicated, "reordered": v.reordered,
            "final_nack_but_recorded": v.final_nack_but_recorded, "resent": v.resent, "stale_writes": v.stale_writes,
            "resyncs": v.resyncs, "retryable_nacks": retried,
            "retryable_by_code": v.retries.iter().map(|(k, n)| (k.to_string(), json!(n))).collect::<Map<_, _>>()}),
        );
        let errors = crate::stats::histogram(v.stamp_error_us.iter().copied());
        let which = [("p50", 0.5), ("p99", 0.99), ("max", 1.0)];
        self.set(
            "stamps",
            json!({"changed": v.stamps_changed, "checked": v.stamps_checked, "charged_outage": v.charged_outage,
                "error_us": crate::stats::quantiles(&errors, 1.0, &which)}),
        );
        self.at_least("ops acked", v.acked as f64, 1.0);
        self.at_least("stamps checked", v.stamps_checked as f64, 1.0);
        for (name, count) in [
            ("acked_lost", v.acked_lost),
            ("duplicated", v.duplicated),
            ("reordered", v.reordered),
            ("unsettled", v.unsettled),
            ("final_nack_but_recorded", v.final_nack_but_recorded),
            ("stamps.changed", v.stamps_changed),
            ("charged_outage", v.charged_outage),
            ("stale_writes", v.stale_writes),
            ("stale_epoch_delivered", v.stale_epoch_delivered),
            ("rolled_back", v.rolled_back),
            ("re_raised", v.re_raised),
        ] {
            if told.contains(&name) {
                self.notes.push(format!("{name}: {count}, which this scenario does not judge"));
            } else {
                self.at_most(name, count as f64, 0.0);
            }
        }
        self.notes.extend(v.examples.iter().cloned());
    }

    /// Writes the JSON.
    pub fn write(&mut self, path: &Path) -> anyhow::Result<()> {
        self.set("ok", json!(self.ok()));
        let checks =
            self.checks.iter().map(|c| json!({"name": c.name, "value": c.value, "limit": c.limit, "kept": c.kept}));
        let checks: Vec<Value> = checks.collect();
        self.set("checks", json!(checks));
        self.set("notes", json!(self.notes));
        std::fs::write(path, serde_json::to_string_pretty(&self.fields)? + "\n")?;
        Ok(())
    }

    /// The summary: figures, then promises, then examples of what is wrong.
    pub fn print(&self) {
        println!();
        for (name, value) in &self.fields {
            if !matches!(name.as_str(), "params" | "checks" | "notes" | "ok") {
                println!("  {name:<12} {}", plain(value));
            }
        }
        println!();
        for check in &self.checks {
            let word = if check.kept { "kept  " } else { "BROKEN" };
            println!("  {word} {:<34} {:>12} {}", check.name, (check.value * 10.0).round() / 10.0, check.limit);
        }
        for note in &self.notes {
            println!("  note: {note}");
        }
        println!("\n{}", if self.ok() { "ok: every promise kept" } else { "FAILED: a promise was broken" });
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Object(map) => map.iter().map(|(k, v)| format!("{k}={}", plain(v))).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}
