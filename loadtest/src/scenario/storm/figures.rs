//! What a storm was, computed from the journals of those who were in it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::journal::{Line, What};

/// One client's way back.
#[derive(Default, Clone, Copy, Debug, PartialEq)]
pub struct Return {
    pub attempts: u64,
    /// After the kill, µs; `None`: never.
    pub back_us: Option<u64>,
}

/// All of them, and what they heard.
#[derive(Default)]
pub struct Figures {
    pub returns: HashMap<Arc<str>, Return>,
    pub refused: BTreeMap<String, u64>,
    pub max_in_1s: usize,
    /// Clients sent away for good.
    pub stopped: usize,
}

/// `lines`: journals of the clients whose gateway was killed; `others`: of everybody else, who was admitted too.
pub fn of(lines: &[Line], others: &[Line], kill_us: u64) -> Figures {
    let mut figures = Figures {
        max_in_1s: max_in_1s(lines.iter().chain(others)),
        stopped: lines.iter().chain(others).filter(|l| l.what == What::Stopped).count(),
        ..Figures::default()
    };
    for line in lines {
        let of = figures.returns.entry(line.client.clone()).or_default();
        if line.t_us < kill_us || of.back_us.is_some() {
            continue;
        }
        match line.what {
            What::Dial => of.attempts += 1,
            What::Welcome => of.back_us = Some(line.t_us - kill_us),
            What::Refused => *figures.refused.entry(line.code.to_string()).or_default() += 1,
            _ => {}
        }
    }
    figures
}

/// Most admissions of one gateway in any second, by the gateway's own clock where the welcome says it.
pub fn max_in_1s<'a>(lines: impl Iterator<Item = &'a Line>) -> usize {
    let mut at: HashMap<Arc<str>, Vec<u64>> = HashMap::new();
    for line in lines.filter(|l| l.what == What::Welcome) {
        at.entry(line.code.clone()).or_default().push(if line.server_us > 0 { line.server_us } else { line.t_us });
    }
    at.into_values().map(densest).max().unwrap_or(0)
}

fn densest(mut at: Vec<u64>) -> usize {
    at.sort_unstable();
    let (mut from, mut most) = (0, 0);
    for (to, t) in at.iter().enumerate() {
        while at[from] + 1_000_000 <= *t {
            from += 1;
        }
        most = most.max(to + 1 - from);
    }
    most
}

impl Figures {
    pub fn admitted(&self) -> usize {
        self.returns.values().filter(|r| r.back_us.is_some()).count()
    }

    pub fn attempts_per_client(&self) -> f64 {
        self.returns.values().map(|r| r.attempts).sum::<u64>() as f64 / self.returns.len().max(1) as f64
    }

    /// Quantile of the way back, seconds; infinite if so many never came back.
    pub fn back_s(&self, q: f64, of: impl Fn(&str) -> bool) -> f64 {
        let mut all: Vec<u64> =
            self.returns.iter().filter(|(client, _)| of(client)).map(|(_, r)| r.back_us.unwrap_or(u64::MAX)).collect();
        all.sort_unstable();
        let at = (q * all.len() as f64).ceil() as usize;
        match all.get(at.clamp(1, all.len().max(1)) - 1) {
            None | Some(&u64::MAX) => f64::INFINITY,
            Some(us) => *us as f64 / 1e6,
        }
    }

    /// The `admission` part of the report (design 12).
    pub fn json(&self, rate: u64, ideal_s: f64) -> Value {
        let round = |v: f64| (v * 1e3).round() / 1e3;
        json!({"rate_per_s": rate, "clients": self.returns.len(), "admitted": self.admitted(),
            "refused_by_reason": self.refused, "attempts_per_client": round(self.attempts_per_client()),
            "drain_s": round(self.back_s(1.0, |_| true)), "drain_p99_s": round(self.back_s(0.99, |_| true)),
            "ideal_s": round(ideal_s), "max_admitted_in_1s": self.max_in_1s})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(t_us: u64, client: &str, what: What, code: &str) -> Line {
        let mut line = Line::new(t_us, &Arc::from(client), what);
        line.code = Arc::from(code);
        line
    }

    #[test]
    fn a_way_back_counts_attempts_after_the_kill_until_the_welcome() {
        let mut lines = vec![
            line(1, "a", What::Dial, "gw"),
            line(2, "a", What::Welcome, "gw-0"),
            line(100, "a", What::Closed, "1006"),
            line(101, "a", What::Dial, "gw"),
            line(102, "a", What::Refused, "slot"),
            line(200, "a", What::Dial, "gw"),
            line(210, "a", What::Welcome, "gw-1"),
            line(300, "a", What::Dial, "gw"),
            line(1, "b", What::Dial, "gw"),
            line(103, "b", What::Dial, "gw"),
            line(104, "b", What::Refused, "full"),
        ];
        let figures = of(&lines, &[], 100);
        assert_eq!(figures.returns["a"], Return { attempts: 2, back_us: Some(110) });
        assert_eq!(figures.returns["b"], Return { attempts: 1, back_us: None });
        assert_eq!((figures.admitted(), figures.attempts_per_client()), (1, 1.5));
        assert_eq!((figures.refused["slot"], figures.refused["full"]), (1, 1));
        assert_eq!(figures.back_s(1.0, |_| true), f64::INFINITY);
        assert_eq!(figures.back_s(0.5, |_| true), 110e-6);
        assert_eq!(figures.back_s(1.0, |c| c == "a"), 110e-6);
        lines.push(line(400, "b", What::Stopped, "4001"));
        assert_eq!(of(&lines, &[], 100).stopped, 1);
    }

    #[test]
    fn the_densest_second_slides_and_is_counted_per_gateway() {
        let at = |t_us: u64, gateway: &str| line(t_us, "a", What::Welcome, gateway);
        let mut lines: Vec<Line> = (0..10).map(|i| at(900_000 + i * 20_000, "gw-1")).collect();
        lines.extend((0..5).map(|i| at(1_000_000 + i, "gw-2")));
        lines.extend([at(100_000, "gw-1"), at(1_899_999, "gw-1"), at(1_900_000, "gw-1")]);
        assert_eq!(max_in_1s(lines.iter()), 11);
        // the gateway's own clock wins over the client's
        let mut late = at(900_000, "gw-3");
        late.server_us = 5_000_000;
        assert_eq!(max_in_1s([&late, &at(5_500_000, "gw-3")].into_iter()), 2);
    }
}
