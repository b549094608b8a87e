//! Figures from journals: everything is computed after the run, from the evidence.

use std::collections::HashMap;
use std::sync::Arc;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::journal::{Line, What};

/// HDR with 3 digits; values above the longest run are impossible.
pub fn histogram(values: impl IntoIterator<Item = u64>) -> Histogram<u64> {
    let mut all = Histogram::new_with_bounds(1, 3_600_000_000, 3).unwrap_or_else(|_| unreachable!("constant bounds"));
    values.into_iter().for_each(|v| all.saturating_record(v));
    all
}

/// `{"p50", …}` of a histogram, divided by `unit`.
pub fn quantiles(all: &Histogram<u64>, unit: f64, which: &[(&str, f64)]) -> Value {
    let one = |q: f64| (all.value_at_quantile(q) as f64 / unit * 10.0).round() / 10.0;
    which.iter().map(|(name, q)| ((*name).to_owned(), json!(one(*q)))).collect::<serde_json::Map<_, _>>().into()
}

/// One op from its client's side.
#[derive(Clone)]
pub struct Op {
    pub session: Arc<str>,
    pub intended_us: u64,
    pub sent_us: u64,
    /// First acknowledgement: when, and of which epoch.
    pub echo: Option<(u64, u64)>,
    /// First refusal.
    pub nack: Option<(u64, Arc<str>)>,
}

/// Joins sends with what was heard.
pub fn ops(lines: &[Line]) -> Vec<Op> {
    let mut ops: HashMap<(Arc<str>, Arc<str>, u64), Op> = HashMap::new();
    for line in lines.iter().filter(|l| l.op > 0) {
        let key = (line.client.clone(), line.session.clone(), line.op);
        if line.what == What::Sent {
            ops.entry(key).or_insert_with(|| Op {
                session: line.session.clone(),
                intended_us: line.intended_us,
                sent_us: line.t_us,
                echo: None,
                nack: None,
            });
        } else if let Some(op) = ops.get_mut(&key) {
            match line.what {
                What::Echo | What::Ack => _ = op.echo.get_or_insert((line.t_us, line.epoch)),
                What::Nack => _ = op.nack.get_or_insert_with(|| (line.t_us, line.code.clone())),
                _ => {}
            }
        }
    }
    ops.into_values().collect()
}

/// Per orphaned session: (from the kill to the directory's commit, from the commit to the first echo), µs. Only sessions
/// with an op intended before the commit of the new epoch count (design 12).
pub fn resumes(ops: &[Op], kill_us: u64, moved: &HashMap<Arc<str>, (u64, u64)>) -> Vec<(u64, u64)> {
    let mut first: HashMap<&Arc<str>, u64> = HashMap::new();
    for op in ops {
        let (Some((commit_us, epoch)), Some((echo_us, of))) = (moved.get(&op.session), op.echo) else { continue };
        if op.intended_us <= *commit_us && of >= *epoch && echo_us > kill_us {
            let at = first.entry(&op.session).or_insert(echo_us);
            *at = (*at).min(echo_us);
        }
    }
    let of = |(session, echo_us): (&Arc<str>, u64)| {
        let (commit_us, _) = moved[session];
        (commit_us.saturating_sub(kill_us), echo_us.saturating_sub(commit_us))
    };
    first.into_iter().map(of).collect()
}

/// Ages of reactions on arrival, of those heard in a time span.
pub fn reaction_ages(lines: &[Line], from_us: u64, to_us: u64) -> Vec<u64> {
    let heard = lines.iter().filter(|l| l.what == What::Reaction && l.intended_us > 0);
    heard.filter(|l| (from_us..to_us).contains(&l.t_us)).map(|l| l.t_us.saturating_sub(l.intended_us)).collect()
}

/// Longest time without any acknowledgement inside a span, µs.
pub fn longest_pause(ops: &[Op], from_us: u64, to_us: u64) -> u64 {
    let mut times: Vec<u64> = ops.iter().filter_map(|o| o.echo).map(|e| e.0).collect();
    times.retain(|t| (from_us..to_us).contains(t));
    times.extend([from_us, to_us]);
    times.sort_unstable();
    times.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(session: &str, intended_us: u64, echo: Option<(u64, u64)>) -> Op {
        Op { session: Arc::from(session), intended_us, sent_us: intended_us, echo, nack: None }
    }

    #[test]
    fn a_resume_counts_from_the_kill_to_the_first_echo_of_the_new_epoch() {
        let moved = HashMap::from([(Arc::from("a"), (300, 2)), (Arc::from("b"), (300, 2))]);
        let ops = [
            op("a", 90, Some((110, 1))),
            op("a", 150, Some((340, 2))),
            op("a", 120, Some((350, 2))),
            op("b", 320, Some((330, 2))),
        ];
        assert_eq!(resumes(&ops, 100, &moved), [(200, 40)]);
    }

    #[test]
    fn a_pause_includes_the_ends_of_the_span() {
        assert_eq!(longest_pause(&[op("a", 0, Some((40, 1))), op("a", 0, Some((50, 1)))], 10, 100), 50);
    }
}
