//! Prometheus text: sums of counters, and histograms that can be subtracted and asked for quantiles.

use std::collections::BTreeMap;

/// Sum of a counter or gauge over its labels; `None`: no such metric.
pub fn total(text: &str, name: &str) -> Option<f64> {
    total_where(text, name, &[])
}

/// The same over the series that have all these `label="value"` pairs.
pub fn total_where(text: &str, name: &str, pairs: &[&str]) -> Option<f64> {
    let values = text.lines().filter(|l| !l.starts_with('#')).filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let metric = series.split('{').next()?;
        (metric == name && pairs.iter().all(|p| series.contains(p))).then(|| value.parse::<f64>().ok()).flatten()
    });
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

/// Cumulative counts by upper bound, over all labels and texts. Bounds are keyed by their bits: they are positive.
#[derive(Clone, Default)]
pub struct Buckets(BTreeMap<u64, f64>);

impl Buckets {
    /// Reads a histogram by its name without `_bucket`.
    pub fn read(texts: &[String], name: &str) -> Self {
        let bucket = format!("{name}_bucket");
        let mut all = Buckets::default();
        for line in texts.iter().flat_map(|t| t.lines()).filter(|l| l.starts_with(&bucket)) {
            let bound = line.split("le=\"").nth(1).and_then(|rest| rest.split('"').next());
            let bound = bound.and_then(|b| if b == "+Inf" { Some(f64::INFINITY) } else { b.parse().ok() });
            let count = line.rsplit_once(' ').and_then(|(_, n)| n.parse::<f64>().ok());
            if let (Some(bound), Some(count)) = (bound, count) {
                *all.0.entry(bound.to_bits()).or_default() += count;
            }
        }
        all
    }

    /// What was added since `before`.
    pub fn since(mut self, before: &Buckets) -> Self {
        for (bound, count) in &mut self.0 {
            *count -= before.0.get(bound).copied().unwrap_or(0.0);
        }
        self
    }

    /// Number of values.
    pub fn count(&self) -> f64 {
        self.0.values().next_back().copied().unwrap_or(0.0)
    }

    /// Quantile in the metric's unit, linear inside its bucket; `None` without values. In the last bucket: its lower bound.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let wanted = q * self.count();
        if self.count() <= 0.0 {
            return None;
        }
        let (mut low, mut below) = (0.0, 0.0);
        for (bound, count) in &self.0 {
            let bound = f64::from_bits(*bound);
            if *count >= wanted && *count > below {
                let part = (wanted - below) / (count - below);
                return Some(if bound.is_finite() { low + (bound - low) * part } else { low });
            }
            (low, below) = (bound, *count);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up_over_the_labels_asked_for() {
        let text = "# TYPE n counter\nn_total{x=\"1\",y=\"a\"} 3\nn_total{x=\"2\",y=\"a\"} 4\n";
        assert_eq!((total(text, "n_total"), total(text, "m_total")), (Some(7.0), None));
        assert_eq!(total_where(text, "n_total", &["x=\"2\"", "y=\"a\""]), Some(4.0));
        assert_eq!(total_where(text, "n_total", &["x=\"3\""]), None);
    }

    #[test]
    fn quantiles_add_up_over_labels_and_count_only_what_is_new() {
        let early = "up_bucket{k=\"a\",le=\"0.1\"} 98\nup_bucket{k=\"a\",le=\"0.2\"} 98\nup_bucket{k=\"a\",le=\"+Inf\"} 100\n\
                     up_bucket{k=\"b\",le=\"0.1\"} 2\nup_bucket{k=\"b\",le=\"0.2\"} 2\nup_bucket{k=\"b\",le=\"+Inf\"} 2\n";
        let late = "up_bucket{k=\"a\",le=\"0.1\"} 98\nup_bucket{k=\"a\",le=\"0.2\"} 108\nup_bucket{k=\"a\",le=\"+Inf\"} 110\n\
                    up_bucket{k=\"b\",le=\"0.1\"} 2\nup_bucket{k=\"b\",le=\"0.2\"} 2\nup_bucket{k=\"b\",le=\"+Inf\"} 2\n";
        let read = |text: &str| Buckets::read(&[text.to_owned()], "up");
        assert_eq!(read(early).count(), 102.0);
        assert!((read(early).quantile(0.5).unwrap() - 0.051).abs() < 1e-9);
        assert_eq!(read(early).quantile(1.0), Some(0.2), "the last finite bound");
        let new = read(late).since(&read(early));
        assert_eq!(new.count(), 10.0);
        assert!((new.quantile(0.5).unwrap() - 0.15).abs() < 1e-9);
        assert_eq!(read("").quantile(0.5), None);
    }
}
