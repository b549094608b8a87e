//! Server frames to text: one object, no line break.

use std::fmt::Write as _;

use holdfast_core::proto::{Applied, Code, Content, OpId, Pos, Rejected, server_frame as s};

use super::{b64, check_inline};

/// `frame` as one JSON object, without the separating LF.
#[must_use]
pub fn encode(frame: &s::F) -> Vec<u8> {
    let mut o = Object::new();
    match frame {
        s::F::Welcome(f) => welcome(&mut o, f),
        s::F::Attached(f) => attached(&mut o, f),
        s::F::Event(f) => event(&mut o, f),
        s::F::Ack(f) => {
            o.kind("ack").str("session", &f.session).op(f.op.as_ref()).pos(f.at.as_ref());
            o.raw("dup", if f.dup { "true" } else { "false" }).num("held_us", f.held_us);
        }
        s::F::Nack(f) => nack(&mut o, f),
        s::F::Reaction(f) => reaction(&mut o, f),
        s::F::Receipt(f) => {
            o.kind("receipt").str("session", &f.session).op(f.op.as_ref()).bytes("receipt", &f.receipt);
        }
        s::F::Snapshot(f) => snapshot(&mut o, f),
        s::F::Status(f) => {
            let state = f.state().as_str_name().to_ascii_lowercase();
            o.kind("status").str("session", &f.session).str("state", &state).num("epoch", f.epoch).num("ver", f.ver);
        }
        s::F::Ping(f) => {
            o.kind("ping").num("n", f.n);
            if let Some(r) = &f.reconnect {
                o.raw("reconnect", &reconnect(r));
            }
            if !f.resume.is_empty() {
                o.bytes("resume", &f.resume);
            }
        }
        s::F::Pong(f) => {
            o.kind("pong").num("n", f.n).num("now_us", f.now_us);
        }
        s::F::Goaway(f) => {
            o.kind("goaway").num("code", f.code).num("delay_ms", f.delay_ms).num("window_ms", f.window_ms);
            o.bytes("ticket", &f.ticket);
        }
        s::F::Detached(f) => {
            o.kind("detached")
                .str("session", &f.session)
                .num("n", f.n)
                .code(f.code)
                .num("retry_after_ms", f.retry_after_ms);
        }
        s::F::Error(f) => {
            o.kind("error").code(f.code).str("detail", &f.detail);
        }
    }
    o.finish()
}

fn welcome(o: &mut Object, f: &s::Welcome) {
    o.kind("welcome").str("conn", &f.conn).str("gateway", &f.gateway).num("now_us", f.now_us);
    o.num("ping_ms", f.ping_ms).num("dead_ms", f.dead_ms).num("token_exp_us", f.token_exp_us);
    o.raw("features", &serde_json::to_string(&f.features).unwrap_or_default()).bytes("resume", &f.resume);
    if let Some(l) = &f.limits {
        let mut limits = Object::new();
        limits
            .num("frame_bytes", l.max_frame_bytes)
            .num("payload_bytes", l.max_payload_bytes)
            .num("sessions", l.max_sessions);
        limits.num("inflight", l.max_inflight).num("reactions_per_s", l.reactions_per_s);
        limits.num("reactions_burst", l.reactions_burst).num("queue_bytes", l.max_queue_bytes);
        o.raw("limits", &limits.text());
    }
    if let Some(r) = &f.reconnect {
        o.raw("reconnect", &reconnect(r));
    }
}

fn reconnect(r: &s::Reconnect) -> String {
    let mut o = Object::new();
    o.num("spread_ms", r.spread_ms).num("rank_ppm", r.rank_ppm).num("base_ms", r.base_ms).num("cap_ms", r.cap_ms);
    o.text()
}

fn attached(o: &mut Object, f: &s::Attached) {
    o.kind("attached").str("session", &f.session).num("n", f.n).pos(f.head.as_ref());
    o.word("resume", &["", "events", "snapshot", "nothing"], f.resume).num("lane_seq", f.lane_seq);
    o.raw("rejected", &rejected(&f.rejected)).word("role", &["", "participant", "spectator"], f.role);
    o.raw("stamped", if f.stamped { "true" } else { "false" }).num("hold_ttl_ms", f.hold_ttl_ms);
}

fn event(o: &mut Object, f: &s::Event) {
    o.kind("event").str("session", &f.session).pos(f.at.as_ref()).op(f.op.as_ref());
    if f.skip_to > 0 {
        o.num("to", f.skip_to);
        return;
    }
    if !f.actor.is_empty() {
        o.str("by", &f.actor);
    }
    o.num("at_us", f.at_us).payload(f.content, &f.payload);
}

fn nack(o: &mut Object, f: &s::Nack) {
    let applied = if f.applied() == Applied::No { "no" } else { "unknown" };
    o.kind("nack").str("session", &f.session).op(f.op.as_ref()).num("attempt", f.attempt).code(f.code);
    o.str("applied", applied).num("retry_after_ms", f.retry_after_ms).num("expected", f.expected_seq);
    o.num("app_code", f.app_code).str("detail", &f.detail);
    if !f.receipt.is_empty() {
        o.bytes("receipt", &f.receipt);
    }
}

fn reaction(o: &mut Object, f: &s::Reaction) {
    o.kind("reaction").str("session", &f.session).num("epoch", f.epoch).str("class", &f.class);
    if !f.actor.is_empty() {
        o.str("by", &f.actor);
    }
    if !f.counts.is_empty() {
        let mut counts = Object::new();
        for c in &f.counts {
            counts.num(&c.class, c.count);
        }
        o.raw("counts", &counts.text());
    }
    o.payload(f.content, &f.payload);
}

fn snapshot(o: &mut Object, f: &s::Snapshot) {
    o.kind("snapshot").str("session", &f.session).pos(f.at.as_ref()).num("lane_seq", f.lane_seq);
    o.raw("rejected", &rejected(&f.rejected)).word(
        "why",
        &["", "first", "behind", "diverged", "asked", "slow"],
        f.reason,
    );
    o.payload(f.content, &f.payload);
}

fn rejected(all: &[Rejected]) -> String {
    let one = |r: &Rejected| {
        let mut o = Object::new();
        o.num("op", r.seq).code(r.code).num("app_code", r.app_code);
        o.text()
    };
    format!("[{}]", all.iter().map(one).collect::<Vec<_>>().join(","))
}

/// A JSON object under construction.
struct Object(String);

impl Object {
    fn new() -> Self {
        Self(String::from("{"))
    }

    fn raw(&mut self, key: &str, value: &str) -> &mut Self {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.0.push_str(&quoted(key));
        self.0.push(':');
        self.0.push_str(value);
        self
    }

    fn kind(&mut self, t: &str) -> &mut Self {
        self.str("t", t)
    }

    fn str(&mut self, key: &str, value: &str) -> &mut Self {
        self.raw(key, &quoted(value))
    }

    fn num(&mut self, key: &str, value: impl Into<u64>) -> &mut Self {
        let mut digits = String::with_capacity(20);
        // Writing to a String cannot fail.
        let _ = write!(digits, "{}", value.into());
        self.raw(key, &digits)
    }

    fn bytes(&mut self, key: &str, value: &[u8]) -> &mut Self {
        self.str(key, &b64(value))
    }

    fn code(&mut self, code: i32) -> &mut Self {
        self.str("code", Code::try_from(code).map_or("CODE_UNSPECIFIED", |c| c.as_str_name()))
    }

    fn word(&mut self, key: &str, words: &[&str], number: u32) -> &mut Self {
        match usize::try_from(number).ok().and_then(|n| words.get(n)) {
            Some(word) if !word.is_empty() => self.str(key, word),
            _ => self,
        }
    }

    fn pos(&mut self, pos: Option<&Pos>) -> &mut Self {
        let pos = pos.copied().unwrap_or_default();
        self.num("epoch", pos.epoch).num("ver", pos.ver)
    }

    /// A number for the client's own lane, `"lane:seq"` for another.
    fn op(&mut self, op: Option<&OpId>) -> &mut Self {
        match op {
            None => self,
            Some(op) if op.lane.is_empty() => self.num("op", op.seq),
            Some(op) => self.str("op", &format!("{}:{}", b64(&op.lane), op.seq)),
        }
    }

    /// Inline if it is JSON that stays on its line, else base64; nothing if empty.
    fn payload(&mut self, content: i32, payload: &[u8]) -> &mut Self {
        if payload.is_empty() {
            return self;
        }
        match std::str::from_utf8(payload) {
            Ok(text) if content == i32::from(Content::Json) && check_inline(payload).is_ok() => self.raw("data", text),
            _ => self.bytes("b64", payload),
        }
    }

    fn text(&mut self) -> String {
        self.0.push('}');
        std::mem::take(&mut self.0)
    }

    fn finish(mut self) -> Vec<u8> {
        self.text().into_bytes()
    }
}

fn quoted(text: &str) -> String {
    // A str always serialises.
    serde_json::to_string(text).unwrap_or_default()
}
