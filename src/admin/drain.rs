//! `/drain`: GET says how far a drain is, POST starts one or changes its rate and deadline (design 10).

use std::time::Duration;

use serde_json::{Value, json};

use crate::gateway::run::{DrainAsk, DrainStatus};

/// Longest deadline, in seconds: a day.
const DEADLINE_S_MAX: u64 = 86_400;

/// What a POST's query asks for: `rate` (clients per second) and `deadline` (seconds, 0 = now), both optional.
///
/// # Errors
/// Words for the operator.
pub(super) fn ask(query: &str) -> Result<DrainAsk, String> {
    let mut ask = DrainAsk::default();
    for pair in query.split('&').filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        match key {
            "rate" => {
                let rate = value.parse().ok().filter(|r| *r > 0);
                ask.rate_per_s =
                    Some(rate.ok_or_else(|| format!("rate: \"{value}\" is not a number of clients per second"))?);
            }
            "deadline" => {
                let seconds = value.parse().ok().filter(|s| *s <= DEADLINE_S_MAX);
                let bad = || format!("deadline: \"{value}\" is not a number of seconds up to {DEADLINE_S_MAX}");
                ask.deadline = Some(Duration::from_secs(seconds.ok_or_else(bad)?));
            }
            _ => return Err(format!("{key}: not known; rate and deadline are")),
        }
    }
    Ok(ask)
}

/// As JSON.
pub(super) fn view(s: &DrainStatus) -> Value {
    json!({
        "state": s.state, "total": s.total, "told": s.told, "gone": s.gone, "forced": s.forced,
        "held": s.held, "seconds_left": s.seconds_left, "rate_per_s": s.rate_per_s,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_whole_or_refused_by_name() {
        let all = DrainAsk { rate_per_s: Some(50), deadline: Some(Duration::ZERO) };
        assert_eq!(ask("rate=50&deadline=0"), Ok(all));
        assert_eq!(ask(""), Ok(DrainAsk::default()));
        for (query, word) in [("rate=0", "rate"), ("rate", "rate"), ("deadline=1e9", "deadline"), ("x=1", "x")] {
            assert!(ask(query).is_err_and(|e| e.starts_with(word)), "{query}");
        }
    }
}
