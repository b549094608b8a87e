//! Section `[admission]` and the other limits that may change while a gateway runs (design 9.4, 11).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{ConfigError, Span, gateway::section};
use crate::gateway::admission::Settings;
use holdfast_core::session::{OpRate, OpRates};

section! {
    /// Section `[admission]`.
    Admission {
        /// File with the fleet's keys; empty = keys of this process alone.
        keys_file: String = String::new(),
        /// Handshakes under way.
        handshakes_max: u32 = 1_250,
        /// Handshakes that compute at once.
        handshake_turns: u32 = 16,
        /// Longest wait for a turn to compute.
        handshake_queue: Span = Span::millis(250),
        /// TLS and HTTP header together.
        handshake: Span = Span::secs(3),
        /// Connections per second of one address or /64.
        prefix_per_s: u32 = 50,
        /// The same at once.
        prefix_burst: u32 = 200,
        /// How many times as much a /48 may.
        prefix_wide_factor: u32 = 8,
        /// Limit private and loopback addresses too.
        prefix_private: bool = false,
        /// Admissions at once, in time at `admit_per_s`.
        admit_burst: Span = Span::millis(20),
        /// Share of tickets in their slot, in percent.
        share_ticket: u32 = 45,
        /// Share of those who resume, in percent.
        share_resuming: u32 = 30,
        /// Share of those who were here within a day, in percent.
        share_known: u32 = 15,
        /// Share of all others, in percent.
        share_anonymous: u32 = 10,
        /// Latest slot given.
        horizon: Span = Span::secs(30),
        /// How much before its slot a ticket is honoured.
        ticket_early: Span = Span::millis(50),
        /// How long after its slot.
        ticket_late: Span = Span::secs(5),
        /// Most admissions with tickets, in percent of `admit_per_s`.
        guard_percent: u32 = 105,
        /// Random part of the wait beyond the horizon.
        plain_spread: Span = Span::secs(15),
        /// Tokens that do not verify, per minute and address.
        token_failures_per_min: u32 = 5,
        /// Attaches per second and owner.
        attach_per_s: u32 = 1_000,
        /// Attaches an owner has not answered.
        attach_inflight: u32 = 256,
        /// Longest wait of an attach for its turn.
        attach_wait: Span = Span::secs(1),
        /// Ops per second of one player in a game.
        game_ops_per_s: u32 = 5,
        /// The same at once.
        game_ops_burst: u32 = 10,
        /// Ops per second of one participant of a meeting.
        meeting_ops_per_s: u32 = 5,
        /// The same at once.
        meeting_ops_burst: u32 = 10,
        /// Ops per second of one editor of a document.
        document_ops_per_s: u32 = 30,
        /// The same at once.
        document_ops_burst: u32 = 60,
        /// Resends at once, beside the rate.
        resend_burst: u32 = 32,
        /// Reactions per second of one participant.
        reactions_per_s: u32 = 20,
        /// The same at once.
        reactions_burst: u32 = 40,
    }
}

/// Every limit that may change while a gateway runs: `[admission]` without its file, and two keys outside the sections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveLimits {
    /// Admissions per second.
    pub admit_per_s: u32,
    /// Most connections at a time.
    pub connections_max: u32,
    /// The section.
    pub admission: Admission,
}

/// Why a limit cannot be what it was asked to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitError {
    /// The limit.
    pub field: String,
    /// What it may be.
    pub limit: String,
    /// What was asked.
    pub value: Value,
}

impl std::fmt::Display for LimitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} is not allowed: {}", self.field, self.value, self.limit)
    }
}

impl From<LimitError> for ConfigError {
    fn from(e: LimitError) -> Self {
        Self(e.to_string())
    }
}

/// Key of the file: it is no limit, and changes by SIGHUP or when its content does.
const KEYS_FILE: &str = "keys_file";
const ADMIT: &str = "admit_per_s";
const CONNECTIONS: &str = "connections_max";
/// Smallest and largest value of each limit, by its unit; names not here are true or false.
const RANGES: [(&str, &str, u64, u64); 32] = [
    (ADMIT, "1/s", 1, 1_000_000),
    (CONNECTIONS, "connections", 1, 10_000_000),
    ("handshakes_max", "handshakes", 1, 1_000_000),
    ("handshake_turns", "handshakes", 1, 100_000),
    ("handshake_queue", "ms", 1, 60_000),
    ("handshake", "ms", 100, 60_000),
    ("prefix_per_s", "1/s", 1, 1_000_000),
    ("prefix_burst", "connections", 1, 1_000_000),
    ("prefix_wide_factor", "times", 1, 1000),
    ("admit_burst", "ms", 0, 1000),
    ("share_ticket", "%", 0, 100),
    ("share_resuming", "%", 0, 100),
    ("share_known", "%", 0, 100),
    ("share_anonymous", "%", 0, 100),
    ("horizon", "ms", 1000, 600_000),
    ("ticket_early", "ms", 0, 5000),
    ("ticket_late", "ms", 100, 60_000),
    ("guard_percent", "%", 100, 200),
    ("plain_spread", "ms", 0, 600_000),
    ("token_failures_per_min", "1/min", 1, 1_000_000),
    ("attach_per_s", "1/s", 1, 1_000_000),
    ("attach_inflight", "attaches", 1, 1_000_000),
    // An attach is answered within a second (design 4.3).
    ("attach_wait", "ms", 0, 1000),
    ("game_ops_per_s", "1/s", 1, 100_000),
    ("game_ops_burst", "ops", 1, 100_000),
    ("meeting_ops_per_s", "1/s", 1, 100_000),
    ("meeting_ops_burst", "ops", 1, 100_000),
    ("document_ops_per_s", "1/s", 1, 100_000),
    ("document_ops_burst", "ops", 1, 100_000),
    ("resend_burst", "ops", 1, 100_000),
    ("reactions_per_s", "1/s", 1, 100_000),
    ("reactions_burst", "reactions", 1, 100_000),
];

impl LiveLimits {
    /// What the gate takes.
    ///
    /// # Errors
    /// A value is out of its range, or the shares are not 100 % together.
    pub fn settings(&self) -> Result<Settings, LimitError> {
        let all = self.values();
        for (name, unit, min, max) in RANGES {
            let number = number(&all[name]);
            if number.is_none_or(|n| !(min..=max).contains(&n)) {
                let limit = format!("{min} to {max} {unit}");
                return Err(LimitError { field: name.into(), limit, value: all[name].clone() });
            }
        }
        let a = &self.admission;
        let shares = [a.share_ticket, a.share_resuming, a.share_known, a.share_anonymous];
        if shares.iter().sum::<u32>() != 100 {
            let limit = "the four shares must be 100 % together".into();
            return Err(LimitError { field: "share_*".into(), limit, value: json!(shares) });
        }
        let rate = |per_s, burst| OpRate { per_s, burst };
        Ok(Settings {
            connections_max: self.connections_max as usize,
            handshakes_max: a.handshakes_max as usize,
            handshake_turns: a.handshake_turns as usize,
            handshake_queue: a.handshake_queue.0,
            handshake_timeout: a.handshake.0,
            prefix_per_s: a.prefix_per_s,
            prefix_burst: a.prefix_burst,
            prefix_wide_factor: a.prefix_wide_factor,
            prefix_private: a.prefix_private,
            admit_per_s: self.admit_per_s,
            admit_burst: a.admit_burst.0,
            shares,
            horizon: a.horizon.0,
            ticket_early: a.ticket_early.0,
            ticket_late: a.ticket_late.0,
            guard_percent: a.guard_percent,
            plain_spread: a.plain_spread.0,
            token_failures_per_min: a.token_failures_per_min,
            attach_per_s: a.attach_per_s,
            attach_inflight: a.attach_inflight,
            attach_wait: a.attach_wait.0,
            ops: OpRates {
                game: rate(a.game_ops_per_s, a.game_ops_burst),
                meeting: rate(a.meeting_ops_per_s, a.meeting_ops_burst),
                document: rate(a.document_ops_per_s, a.document_ops_burst),
                resend_burst: a.resend_burst,
                reactions: rate(a.reactions_per_s, a.reactions_burst),
            },
        })
    }

    /// As `GET /limits` shows them: value, default, unit and range by name. Durations are written as in the file.
    #[must_use]
    pub fn view(&self) -> Value {
        let (now, default) = (self.values(), Self::default().values());
        let one = |(name, value): (&String, &Value)| {
            let mut shown = json!({"value": value, "default": default[name]});
            if let Some((_, unit, min, max)) = RANGES.iter().find(|r| r.0 == name) {
                shown["unit"] = json!(unit);
                shown["min"] = json!(min);
                shown["max"] = json!(max);
            }
            (name.clone(), shown)
        };
        Value::Object(now.iter().map(one).collect())
    }

    /// The same with some of them changed, by name: numbers, true and false, durations as text with their unit.
    ///
    /// # Errors
    /// A name or a value that is none, or what [`LiveLimits::settings`] says.
    pub fn with(&self, changes: &Map<String, Value>) -> Result<Self, LimitError> {
        let mut all = self.values();
        let mut new = self.clone();
        for (name, value) in changes {
            let error = |limit: String| LimitError { field: name.clone(), limit, value: value.clone() };
            let Some(old) = all.get_mut(name) else {
                return Err(error("no limit of that name; GET /limits names them".into()));
            };
            *old = value.clone();
            new = Self::of(&all).map_err(error)?;
        }
        new.settings().map(|_| new)
    }

    fn values(&self) -> Map<String, Value> {
        let mut all = match serde_json::to_value(&self.admission) {
            Ok(Value::Object(map)) => map,
            // A struct of numbers and texts has a form in JSON.
            _ => Map::new(),
        };
        all.remove(KEYS_FILE);
        all.insert(ADMIT.into(), self.admit_per_s.into());
        all.insert(CONNECTIONS.into(), self.connections_max.into());
        all
    }

    fn of(all: &Map<String, Value>) -> Result<Self, String> {
        let mut rest = all.clone();
        let mut take = |name: &str| {
            let value = rest.remove(name).unwrap_or_default();
            value.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(|| "a whole number".to_owned())
        };
        let (admit_per_s, connections_max) = (take(ADMIT)?, take(CONNECTIONS)?);
        let admission = serde_json::from_value(Value::Object(rest)).map_err(|e| e.to_string())?;
        Ok(Self { admit_per_s, connections_max, admission })
    }
}

impl From<&Settings> for LiveLimits {
    fn from(s: &Settings) -> Self {
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let [share_ticket, share_resuming, share_known, share_anonymous] = s.shares;
        let admission = Admission {
            keys_file: String::new(),
            handshakes_max: small(s.handshakes_max),
            handshake_turns: small(s.handshake_turns),
            handshake_queue: Span(s.handshake_queue),
            handshake: Span(s.handshake_timeout),
            prefix_per_s: s.prefix_per_s,
            prefix_burst: s.prefix_burst,
            prefix_wide_factor: s.prefix_wide_factor,
            prefix_private: s.prefix_private,
            admit_burst: Span(s.admit_burst),
            share_ticket,
            share_resuming,
            share_known,
            share_anonymous,
            horizon: Span(s.horizon),
            ticket_early: Span(s.ticket_early),
            ticket_late: Span(s.ticket_late),
            guard_percent: s.guard_percent,
            plain_spread: Span(s.plain_spread),
            token_failures_per_min: s.token_failures_per_min,
            attach_per_s: s.attach_per_s,
            attach_inflight: s.attach_inflight,
            attach_wait: Span(s.attach_wait),
            game_ops_per_s: s.ops.game.per_s,
            game_ops_burst: s.ops.game.burst,
            meeting_ops_per_s: s.ops.meeting.per_s,
            meeting_ops_burst: s.ops.meeting.burst,
            document_ops_per_s: s.ops.document.per_s,
            document_ops_burst: s.ops.document.burst,
            resend_burst: s.ops.resend_burst,
            reactions_per_s: s.ops.reactions.per_s,
            reactions_burst: s.ops.reactions.burst,
        };
        Self { admit_per_s: s.admit_per_s, connections_max: small(s.connections_max), admission }
    }
}

impl Default for LiveLimits {
    fn default() -> Self {
        Self { admit_per_s: 5_000, connections_max: 15_000, admission: Admission::default() }
    }
}

/// A number as it is, a duration in milliseconds, rounded up.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(n) => n.as_u64(),
        Value::String(text) => {
            let span: Span = text.parse().ok()?;
            u64::try_from(span.0.as_micros().div_ceil(1000)).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(text: &str) -> Result<LiveLimits, LimitError> {
        let Ok(Value::Object(changes)) = serde_json::from_str(text) else { panic!("{text}") };
        LiveLimits::default().with(&changes)
    }

    #[test]
    fn the_defaults_are_those_of_the_gate() {
        let here = LiveLimits::default().settings().unwrap();
        assert_eq!(here, Settings { connections_max: 15_000, ..Settings::default() });
        assert_eq!(LiveLimits::from(&here), LiveLimits::default());
    }

    #[test]
    fn limits_are_changed_by_name_and_shown() {
        let new = change(r#"{"admit_per_s": 7, "handshake_queue": "100ms", "prefix_private": true}"#).unwrap();
        assert_eq!((new.admit_per_s, new.admission.prefix_private), (7, true));
        assert_eq!(new.settings().unwrap().handshake_queue, std::time::Duration::from_millis(100));
        let shown = new.view();
        assert_eq!(
            shown["admit_per_s"],
            json!({"value": 7, "default": 5000, "unit": "1/s", "min": 1, "max": 1_000_000})
        );
        assert_eq!(shown["handshake_queue"]["value"], "100ms");
        assert_eq!(shown["keys_file"], Value::Null);
        for (name, shown) in shown.as_object().unwrap() {
            assert!(shown["unit"].is_string() || shown["value"].is_boolean(), "{name}");
        }
    }

    #[test]
    fn mistakes_name_the_field_the_limit_and_the_value() {
        for (text, field, limit) in [
            (r#"{"admit_per_s": 0}"#, "admit_per_s", "1 to 1000000 1/s"),
            (r#"{"admit_per_s": "fast"}"#, "admit_per_s", "whole number"),
            (r#"{"handshake": "2h"}"#, "handshake", "100 to 60000 ms"),
            (r#"{"handshake": 3}"#, "handshake", "no unit"),
            (r#"{"prefix_private": 1}"#, "prefix_private", "boolean"),
            (r#"{"nope": 1}"#, "nope", "no limit of that name"),
            (r#"{"keys_file": "x"}"#, "keys_file", "no limit of that name"),
            (r#"{"share_known": 50}"#, "share_*", "100 %"),
        ] {
            let e = change(text).unwrap_err();
            assert_eq!(e.field, field);
            assert!(e.limit.contains(limit), "{e}");
        }
        assert!(change(r#"{"share_known": 20, "share_anonymous": 5}"#).is_ok());
    }
}
