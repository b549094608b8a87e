//! A meeting: one raised hand per participant, in the order of raising; reactions are relayed by the authority.
//!
//! Every accepted op makes one event, also one that repeats what is so already: the record then shows each op once, and the
//! state does not change. A hand that is raised again keeps its place.

use bytes::Bytes;
use holdfast_core::{
    proto::{Content, record::Entry},
    record::{App, Draft, OpView, Reject},
    time::Now,
};
use serde::{Deserialize, Serialize};

use super::{actor, code, payload};

/// Most hands raised at once: 1,000 names of 128 bytes are a snapshot of 128 KiB, half of a client's queue.
pub const HANDS_MAX: usize = 1_000;

/// State of a meeting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meeting {
    /// Raised hands, the longest raised first.
    hands: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Op {
    hand: bool,
}

#[derive(Serialize, Deserialize)]
struct Event {
    hand: bool,
    by: String,
}

impl App for Meeting {
    fn decide(&mut self, op: &OpView<'_>, _now: Now) -> Result<Vec<Draft>, Reject> {
        let Op { hand } = payload(op.held)?;
        let by = actor(op.held)?.to_owned();
        if hand && self.hands.len() >= HANDS_MAX && !self.hands.contains(&by) {
            let detail = format!("hand: {HANDS_MAX} hands are raised, which is the limit");
            return Err(Reject::app(code::TOO_MUCH, detail));
        }
        let event = serde_json::to_vec(&Event { hand, by: by.clone() }).unwrap_or_default();
        Ok(vec![Draft { payload: event.into(), content: Content::Json, actor: by, ..Draft::default() }])
    }

    fn apply(&mut self, entry: &Entry) {
        let Ok(Event { hand, by }) = serde_json::from_slice(&entry.payload) else {
            tracing::error!(ver = entry.ver, "recorded event of a meeting cannot be read");
            return;
        };
        match (hand, self.hands.iter().position(|name| *name == by)) {
            (true, None) => self.hands.push(by),
            (false, Some(at)) => drop(self.hands.remove(at)),
            _ => {}
        }
    }

    fn snapshot(&self) -> (Content, Bytes) {
        (Content::Json, self.checkpoint())
    }

    fn checkpoint(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        *self = match state {
            [] => Self::default(),
            state => serde_json::from_slice(state).map_err(|e| format!("meeting: {e}"))?,
        };
        Ok(())
    }
}
