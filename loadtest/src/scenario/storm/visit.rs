//! A visit: one attempt to get in, and out again at the answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{SinkExt as _, StreamExt as _};
use tokio_tungstenite::tungstenite::Message;

use crate::client::conn;
use crate::client::dial::Dial;
use crate::client::reconnect::{End, Told};
use crate::client::wire::{self, Frame};
use crate::clock::{instant, now_us};

/// A client gives up after this.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// How it went.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Welcome,
    /// Refused in so many words: `slot`, `full`.
    Refused(String),
    /// Reset, closed or silent.
    Nothing(String),
}

/// Every visit and how long it took from its intended time.
pub type Visits = Vec<(Answer, Duration)>;

/// `count` visits to the first gateway at `per_s`, whether or not earlier ones are answered. `same`: all from one address.
pub async fn many(dial: &Dial, tokens: &Arc<[String]>, count: u64, per_s: u64, same: bool) -> Visits {
    let began = now_us();
    let mut all = tokio::task::JoinSet::new();
    for n in 0..count {
        let due = began + n * 1_000_000 / per_s.max(1);
        if due > now_us() + 1_000 {
            tokio::time::sleep_until(instant(due)).await;
        }
        let (dial, tokens, from) = (dial.clone(), tokens.clone(), usize::try_from(n).unwrap_or_default());
        let intended = Instant::now() - Duration::from_micros(now_us().saturating_sub(due));
        all.spawn(async move {
            let client = if same { 0 } else { from };
            let answer = tokio::time::timeout(PATIENCE, one(&dial, client, &tokens[from % tokens.len()])).await;
            (answer.unwrap_or_else(|_| Answer::Nothing("timeout".to_owned())), intended.elapsed())
        });
    }
    let mut visits = Vec::new();
    while let Some(done) = all.join_next().await {
        visits.extend(done);
    }
    visits
}

async fn one(dial: &Dial, client: usize, token: &str) -> Answer {
    let _turn = dial.turn().await;
    let mut socket = match dial.open(0, client, "").await {
        Ok(socket) => socket,
        Err(end) => return nothing(&end),
    };
    let hello = wire::hello(token, &conn::lane(), 1, 0);
    // a refusal may already be on its way: the answer is what counts
    let _ = socket.send(Message::text(hello)).await;
    while let Some(Ok(message)) = socket.next().await {
        match message {
            Message::Text(text) => {
                let first = text.lines().next().and_then(|l| serde_json::from_str::<Frame>(l).ok());
                if first.is_some_and(|f| f.t == "welcome") {
                    let _ = socket.close(None).await;
                    return Answer::Welcome;
                }
            }
            Message::Close(Some(frame)) => {
                return match Told::parse(&frame.reason) {
                    Some(told) => Answer::Refused(told.r.to_owned()),
                    None => Answer::Nothing(u16::from(frame.code).to_string()),
                };
            }
            _ => {}
        }
    }
    nothing(&End::Lost)
}

fn nothing(end: &End) -> Answer {
    Answer::Nothing(end.word())
}

/// How many ended so.
pub fn count(visits: &Visits, of: impl Fn(&Answer) -> bool) -> usize {
    visits.iter().filter(|(answer, _)| of(answer)).count()
}

/// Quantile of the time to any answer, seconds.
pub fn answered_s(visits: &Visits, q: f64) -> f64 {
    let all = crate::stats::histogram(visits.iter().map(|(_, took)| took.as_micros() as u64));
    all.value_at_quantile(q) as f64 / 1e6
}
