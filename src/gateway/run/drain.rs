//! Draining a gateway without losing anything (design 10).
//!
//! ```text
//! asked ─▶ not ready ──notice──▶ accepts no more ─▶ clients told, slot by slot ─▶ all gone ─▶ held ops settled ─▶ over
//!                                    └──────────── hurried, or near the deadline: all closed at once ────┘
//! ```
//! Who goes when is decided by [`holdfast_core::drain`]; here are the connections, the frames and the time.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use holdfast_core::{
    drain::{Command, Drain, WINDOW},
    id::ConnId,
    proto::server_frame::{F, GoAway},
    session::Limits,
    time::Mono,
};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};

use super::{DrainConfig, GatewayHandle};
use crate::gateway::{outbox::Outbox, port::Downstream as _, port::SessionPort as _};

/// How often the schedule is looked at.
const TICK: Duration = Duration::from_millis(20);
/// Ticks between two looks at which connections there are: 20,000 take about 3 ms.
const TICKS_PER_SYNC: u32 = 4;
/// Beyond the last slot and the hold TTL (design 10).
const BEYOND_HOLDS: Duration = Duration::from_secs(5);
/// Held ops get this long after a hurry.
const HURRIED_SETTLE: Duration = Duration::from_secs(5);
/// Before a deadline, what is left is closed: time for the close frames, and for ops under way.
const CLOSE_BEFORE: Duration = Duration::from_secs(2);

/// What an operator wants of a drain; `None` = as configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainAsk {
    /// Clients sent away per second.
    pub rate_per_s: Option<u32>,
    /// The process ends this long after it was asked.
    pub deadline: Option<Duration>,
}

/// How far a drain is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainStatus {
    /// `serving`, `notice`, `telling`, `settling`.
    pub state: &'static str,
    /// Connections that were there, or came, since it began.
    pub total: u64,
    /// Clients that were told to go.
    pub told: u64,
    /// Connections that are gone.
    pub gone: u64,
    /// Clients that did not go at their slot and were closed.
    pub forced: u64,
    /// Held ops left.
    pub held: u64,
    /// Until it ends at the latest; it mostly ends sooner.
    pub seconds_left: u64,
    /// Clients sent away per second.
    pub rate_per_s: u32,
}

/// What was asked for so far, newest last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    /// When the drain was first asked for.
    since: Option<Instant>,
    ask: DrainAsk,
    hurry: bool,
}

/// Between the operators and the drain.
#[derive(Debug, Default)]
pub(super) struct Control {
    wanted: watch::Sender<Wanted>,
    status: Mutex<DrainStatus>,
}

impl Control {
    /// Starts a drain, or changes one that runs.
    pub fn ask(&self, ask: DrainAsk) {
        self.wanted.send_modify(|w| {
            w.since.get_or_insert_with(Instant::now);
            w.ask.rate_per_s = ask.rate_per_s.or(w.ask.rate_per_s);
            w.ask.deadline = ask.deadline.or(w.ask.deadline);
        });
    }

    /// Everybody goes now.
    pub fn hurry(&self) {
        self.wanted.send_modify(|w| {
            w.since.get_or_insert_with(Instant::now);
            w.hurry = true;
        });
    }

    pub fn is_asked(&self) -> bool {
        self.wanted.borrow().since.is_some()
    }

    /// Completes when a drain is asked for.
    pub async fn asked(&self) {
        // The sender lives as long as `self`.
        let _ = self.wanted.subscribe().wait_for(|w| w.since.is_some()).await;
    }

    pub fn status(&self) -> DrainStatus {
        match *self.status.lock().unwrap_or_else(PoisonError::into_inner) {
            DrainStatus { state: "", .. } => DrainStatus { state: "serving", ..DrainStatus::default() },
            known => known,
        }
    }
}

/// One drain under way.
pub(super) struct Drainer<'a> {
    handle: &'a GatewayHandle,
    config: DrainConfig,
    /// What this gateway itself admits per second: the rate where there is no other.
    own_rate: u32,
    wanted: watch::Receiver<Wanted>,
    schedule: Drain,
    rate_per_s: u32,
    /// In order of arrival.
    open: BTreeMap<ConnId, Arc<Outbox>>,
    hurried_at: Option<Instant>,
}

impl<'a> Drainer<'a> {
    /// A drain that was asked for.
    pub fn new(handle: &'a GatewayHandle, config: DrainConfig, own_rate: u32) -> Self {
        let schedule = Drain::new(handle.clock.now().mono, own_rate);
        let wanted = handle.drain.wanted.subscribe();
        let open = BTreeMap::new();
        Self { handle, config, own_rate, wanted, schedule, rate_per_s: own_rate, open, hurried_at: None }
    }

    /// Not ready, and still accepting: until balancers have noticed, or somebody hurries.
    pub async fn notice(&mut self) {
        let notice = self.config.notice.min(self.deadline().unwrap_or(Duration::MAX) / 4);
        self.pace();
        self.tell("notice");
        let mut wanted = self.wanted.clone();
        // Either way it goes on.
        let _ = tokio::time::timeout(notice, wanted.wait_for(|w| w.hurry)).await;
    }

    /// Sends everybody away and waits until what they left is settled, or the deadline.
    pub async fn run(&mut self) {
        self.schedule = Drain::new(self.now(), self.own_rate);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for tick in 0_u32.. {
            ticks.tick().await;
            let mut out = Vec::new();
            if tick.is_multiple_of(TICKS_PER_SYNC) {
                self.sync(&mut out);
            }
            self.pace();
            self.hurry();
            let sessions = &self.handle.sessions;
            self.schedule.poll(self.now(), &|conn| sessions.is_on_the_move(conn), &mut out);
            out.into_iter().for_each(|command| self.perform(command));
            let everybody = self.is_empty();
            if everybody {
                self.sync(&mut Vec::new());
            }
            self.tell(if everybody { "settling" } else { "telling" });
            if (everybody && self.handle.sessions.held_ops() == 0) || self.left().is_zero() {
                return;
            }
        }
    }

    fn now(&self) -> Mono {
        self.handle.clock.now().mono
    }

    /// From the first ask to the end, if that is bounded by somebody's word.
    fn deadline(&self) -> Option<Duration> {
        self.wanted.borrow().ask.deadline.or(self.config.max)
    }

    fn asked_at(&self) -> Instant {
        self.wanted.borrow().since.unwrap_or_else(Instant::now)
    }

    /// The rate in force: asked for, configured, or what the others admit and the deadline allows.
    fn pace(&mut self) {
        let explicit = self.wanted.borrow().ask.rate_per_s.or(self.config.rate_per_s);
        self.rate_per_s = explicit.unwrap_or_else(|| {
            let others = self.handle.admitted_by_others();
            let others = if others == 0 { self.own_rate } else { others };
            let Some(deadline) = self.deadline() else { return others };
            let telling = deadline.saturating_sub((longest_hold() + BEYOND_HOLDS).min(deadline / 2));
            let needed = self.schedule.progress().total * 1000 / u64::try_from(telling.as_millis()).unwrap_or(1).max(1);
            others.max(u32::try_from(needed).unwrap_or(u32::MAX))
        });
        self.schedule.set_rate(self.rate_per_s);
    }

    /// Which connections there are, and which are gone.
    fn sync(&mut self, out: &mut Vec<Command>) {
        let now = self.now();
        let listeners = self.handle.listeners.iter();
        self.open = listeners.flat_map(|(_, l)| l.outboxes()).map(|outbox| (outbox.conn, outbox)).collect();
        let gone: Vec<_> = self.schedule.clients().filter(|conn| !self.open.contains_key(conn)).collect();
        gone.into_iter().for_each(|conn| self.schedule.handle_gone(conn));
        for (conn, outbox) in &self.open {
            if outbox.principal.get().is_some() {
                self.schedule.handle_client(*conn);
            } else {
                self.schedule.handle_silent(now, *conn, out);
            }
        }
    }

    fn hurry(&mut self) {
        let due = self.deadline().is_some_and(|d| self.asked_at().elapsed() + CLOSE_BEFORE.min(d / 4) >= d);
        if self.hurried_at.is_none() && (due || self.wanted.borrow().hurry) {
            tracing::warn!(clients = self.open.len(), "the drain is hurried: closing what is left");
            self.hurried_at = Some(Instant::now());
            self.schedule.handle_hurry();
        }
    }

    fn perform(&self, command: Command) {
        let (Command::Tell { conn, slot } | Command::Close { conn, slot }) = command;
        let Some(outbox) = self.open.get(&conn) else { return };
        let wait = slot.since(self.now());
        let ticket = self.ticket(wait, outbox.principal.get());
        let ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        match command {
            Command::Tell { .. } => {
                let window_ms = u32::try_from(WINDOW.as_millis()).unwrap_or(u32::MAX);
                let goaway = GoAway { code: 1012, delay_ms: ms, window_ms, ticket };
                outbox.deliver(F::Goaway(goaway).into());
            }
            Command::Close { .. } => outbox.close(1012, &reason(ms, &ticket)),
        }
    }

    /// Precedence at any gateway of the fleet, for the client whose slot is `wait` from now; empty = none.
    fn ticket(&self, wait: Duration, principal: Option<&Arc<str>>) -> Bytes {
        let seal = |p: &Arc<str>| self.handle.gate.drain_ticket(self.handle.clock.now(), wait, p);
        principal.map(|p| Bytes::copy_from_slice(&seal(p))).unwrap_or_default()
    }

    /// All connections are gone, and none is in the making.
    fn is_empty(&self) -> bool {
        let idle = |l: &crate::gateway::handle::Handle| {
            let s = l.stats();
            s.accepting.load(Ordering::Acquire) == 0 && s.open.load(Ordering::Acquire) == 0
        };
        self.handle.listeners.iter().all(|(_, l)| idle(l))
    }

    /// Until it ends at the latest.
    fn left(&self) -> Duration {
        let now = self.now();
        let settled = self.schedule.last_slot(now).after(longest_hold() + BEYOND_HOLDS).since(now);
        let by_deadline = self.deadline().map(|d| d.saturating_sub(self.asked_at().elapsed()));
        let by_hurry = self.hurried_at.map(|at| HURRIED_SETTLE.saturating_sub(at.elapsed()));
        [Some(settled), by_deadline, by_hurry].into_iter().flatten().min().unwrap_or_default()
    }

    fn tell(&self, state: &'static str) {
        let p = self.schedule.progress();
        let status = DrainStatus {
            state,
            total: p.total,
            told: p.told,
            gone: p.gone,
            forced: p.forced,
            held: self.handle.sessions.held_ops(),
            seconds_left: self.left().as_secs(),
            rate_per_s: self.rate_per_s,
        };
        *self.handle.drain.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

/// The longest time an op is held, of all kinds of session.
fn longest_hold() -> Duration {
    ["game", "meeting", "document"].map(|kind| Limits::for_kind(kind).hold_ttl).into_iter().max().unwrap_or_default()
}

/// Close reason of a drain (design 4.4): at most 22 + 10 + 7 + 60 bytes of the 123 allowed.
fn reason(ms: u32, ticket: &[u8]) -> String {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    match ticket {
        [] => format!(r#"{{"r":"drain","ms":{ms}}}"#),
        ticket => format!(r#"{{"r":"drain","ms":{ms},"k":"{}"}}"#, URL_SAFE_NO_PAD.encode(ticket)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_reason_fits_and_is_json() {
        let text = reason(u32::MAX, &[0xff; 44]);
        assert!(text.len() <= crate::gateway::outbox::REASON_BYTES_MAX, "{}", text.len());
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((value["r"].as_str(), value["ms"].as_u64()), (Some("drain"), Some(u64::from(u32::MAX))));
        assert_eq!(value["k"].as_str().map(str::len), Some(59));
        assert_eq!(reason(7, &[]), r#"{"r":"drain","ms":7}"#);
        assert_eq!(longest_hold(), Duration::from_secs(25));
    }
}
