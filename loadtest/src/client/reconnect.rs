//! When and where a client comes back (design 4.4, 9.2, 9.3). No I/O, no clock, no randomness of its own.
//!
//! ```text
//! vanished without a word ----- once ---> its rank: spread_ms x rank_ppm / 1e6, another gateway
//! 1013 {"r","ms","k"} ------------------> its slot, same gateway, with the ticket
//! 1012, goaway -------------------------> its slot, another gateway, with the ticket
//! own timeout ----------- once ---------> at once, another gateway
//! 42xx ---------------------------------> at once
//! 40xx, 1000, 1002 … and unknown 4xxx --> never
//! anything else, and the second time ---> decorrelated jitter, another gateway
//! ```

use std::sync::Arc;

use serde::Deserialize;

use super::policy::Policy;

/// A connection that lived this long is stable: what went wrong before it is forgotten (design 4.4).
const STABLE_US: u64 = 5_000_000;
/// A gateway that vanished or refused to be dialled is left alone this long, if there is another.
const AVOID_US: u64 = 10_000_000;
/// Pause of a client that hammers.
const HAMMER_US: u64 = 50_000;
/// A server that names a later moment than this is not believed: horizon 30 s + spread 15 s (design 9.3), doubled.
const SLOT_MS_MAX: u64 = 90_000;
/// Until a `welcome` says otherwise.
const BASE_MS: u64 = 250;
const CAP_MS: u64 = 8_000;

/// `welcome.reconnect`, and in `ping` what has changed.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(default)]
pub struct Hint {
    pub spread_ms: u64,
    pub rank_ppm: u64,
    pub base_ms: u64,
    pub cap_ms: u64,
}

impl Default for Hint {
    fn default() -> Self {
        Hint { spread_ms: 0, rank_ppm: 0, base_ms: BASE_MS, cap_ms: CAP_MS }
    }
}

/// Reason of a close 1012 or 1013.
#[derive(Deserialize)]
pub struct Told<'a> {
    /// `slot`, `full` or `drain`.
    #[serde(borrow, default)]
    pub r: &'a str,
    pub ms: u64,
    #[serde(borrow, default)]
    pub k: &'a str,
}

impl<'a> Told<'a> {
    pub fn parse(reason: &'a str) -> Option<Self> {
        serde_json::from_str(reason).ok().filter(|t: &Told<'_>| t.ms <= SLOT_MS_MAX)
    }
}

/// How a connection, or the attempt at one, ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// No connection came about.
    NotReached,
    /// The handshake was answered with an HTTP status; Retry-After in ms, 0 = not said.
    Http {
        status: u16,
        retry_after_ms: u64,
    },
    /// Reset, or closed without a close frame.
    Lost,
    /// Nothing was heard for `dead_ms`.
    Silent,
    Closed {
        code: u16,
        reason: String,
    },
    /// The client left, at the moment a `goaway` named.
    Moved,
    /// The client left for good: its run is over.
    Over,
}

impl End {
    /// One word for journals.
    pub fn word(&self) -> String {
        match self {
            End::NotReached => "unreachable".to_owned(),
            End::Http { status, .. } => format!("http {status}"),
            End::Lost => "1006".to_owned(),
            End::Silent => "silent".to_owned(),
            End::Closed { code, .. } => code.to_string(),
            End::Moved => "moved".to_owned(),
            End::Over => "1000".to_owned(),
        }
    }
}

/// What to do then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Dial `Rules::gateway()` after this time, µs.
    Dial { wait_us: u64 },
    /// Never again: the user is to be told.
    Stop,
}

/// One client's memory of how it was received.
pub struct Rules {
    policy: Policy,
    /// Gateways in this client's own order, and until when each is left alone.
    gateways: Vec<(usize, u64)>,
    at: usize,
    hint: Hint,
    resume: Option<Arc<str>>,
    ticket: Option<Arc<str>>,
    /// When this connection was welcomed.
    welcomed_us: Option<u64>,
    /// A `goaway` named this moment.
    leave_us: Option<u64>,
    /// The rank rule, or the immediate try after a silence, has been used.
    used: bool,
    previous_us: u64,
    failures: u32,
}

impl Rules {
    /// `gateways`: indices, the first to be dialled first.
    pub fn new(policy: Policy, gateways: Vec<usize>) -> Self {
        Rules {
            policy,
            gateways: gateways.into_iter().map(|g| (g, 0)).collect(),
            at: 0,
            hint: Hint::default(),
            resume: None,
            ticket: None,
            welcomed_us: None,
            leave_us: None,
            used: false,
            previous_us: 0,
            failures: 0,
        }
    }

    /// Index of the gateway to dial.
    pub fn gateway(&self) -> usize {
        self.gateways.get(self.at).map_or(0, |g| g.0)
    }

    /// Query of the URL (design 4.1): empty, or from `?` on.
    pub fn query(&self) -> String {
        match (&self.ticket, &self.resume) {
            (Some(k), Some(r)) => format!("?k={k}&r={r}"),
            (Some(k), None) => format!("?k={k}"),
            (None, Some(r)) => format!("?r={r}"),
            (None, None) => String::new(),
        }
    }

    /// Admitted. `hint` as the frame has it.
    pub fn handle_welcome(&mut self, now_us: u64, hint: Option<Hint>, resume: &str) {
        self.welcomed_us = Some(now_us);
        (self.ticket, self.leave_us) = (None, None);
        self.handle_hint(hint);
        if !resume.is_empty() {
            self.resume = Some(Arc::from(resume));
        }
    }

    /// A `ping` may bring another hint.
    pub fn handle_hint(&mut self, hint: Option<Hint>) {
        if let Some(hint) = hint {
            let cap_ms = if hint.cap_ms == 0 { CAP_MS } else { hint.cap_ms };
            self.hint = Hint { base_ms: hint.base_ms.clamp(1, cap_ms), cap_ms, ..hint };
        }
    }

    /// The gateway will go; returns when to leave it.
    pub fn handle_goaway(&mut self, now_us: u64, delay_ms: u64, ticket: &str) -> u64 {
        let at = now_us + delay_ms.min(SLOT_MS_MAX) * 1_000;
        self.leave_us = Some(at);
        self.ticket = (!ticket.is_empty()).then(|| Arc::from(ticket));
        at
    }

    /// The connection, or the attempt, is over. `random`: 64 uniform bits.
    pub fn handle_end(&mut self, now_us: u64, end: &End, random: u64) -> Next {
        if self.welcomed_us.take().is_some_and(|at| now_us.saturating_sub(at) >= STABLE_US) {
            (self.used, self.previous_us, self.failures) = (false, 0, 0);
        }
        let leave_us = self.leave_us.take();
        match end {
            End::Over => Next::Stop,
            End::Moved => self.elsewhere(now_us, 0),
            End::Lost | End::Silent | End::NotReached if leave_us.is_some() => {
                self.avoid(now_us);
                self.elsewhere(now_us, leave_us.unwrap_or(0).saturating_sub(now_us))
            }
            End::Lost => self.lost(now_us, random),
            End::Silent if !self.used => {
                self.used = true;
                self.avoid(now_us);
                self.elsewhere(now_us, 0)
            }
            End::Silent | End::NotReached => {
                self.avoid(now_us);
                self.back_off(now_us, random)
            }
            End::Http { retry_after_ms, .. } if *retry_after_ms > 0 && self.policy.obeys() => {
                Next::Dial { wait_us: (*retry_after_ms).min(SLOT_MS_MAX) * 1_000 }
            }
            End::Http { .. } => self.back_off(now_us, random),
            End::Closed { code, reason } => self.closed(now_us, (*code, reason), random),
        }
    }

    fn lost(&mut self, now_us: u64, random: u64) -> Next {
        self.avoid(now_us);
        if self.used || !(self.policy.obeys() || self.policy == Policy::Hammer) {
            return self.back_off(now_us, random);
        }
        self.used = true;
        let rank_us = self.hint.spread_ms.saturating_mul(self.hint.rank_ppm) / 1_000;
        self.elsewhere(now_us, if self.policy == Policy::Ranks { rank_us.min(SLOT_MS_MAX * 1_000) } else { 0 })
    }

    fn closed(&mut self, now_us: u64, with: (u16, &str), random: u64) -> Next {
        let (code, reason) = with;
        match code {
            1012 | 1013 => {
                let Some(told) = Told::parse(reason) else { return self.back_off(now_us, random) };
                self.ticket = (!told.k.is_empty()).then(|| Arc::from(told.k));
                match self.policy {
                    Policy::Hammer => self.elsewhere(now_us, HAMMER_US),
                    p if !p.obeys() => self.back_off(now_us, random),
                    // the slot is a place in this gateway's own schedule
                    _ if code == 1013 => Next::Dial { wait_us: told.ms * 1_000 },
                    _ => self.elsewhere(now_us, told.ms * 1_000),
                }
            }
            4200..=4299 => self.elsewhere(now_us, 0),
            1001 | 1006 | 1011 | 4100..=4199 => self.back_off(now_us, random),
            _ => Next::Stop,
        }
    }

    fn back_off(&mut self, now_us: u64, random: u64) -> Next {
        let (base, cap) = (self.hint.base_ms * 1_000, self.hint.cap_ms * 1_000);
        let wait_us = match self.policy {
            Policy::Hammer => HAMMER_US,
            Policy::FullJitter => within(random, 0, cap.min(base.saturating_mul(1 << self.failures.min(16)))),
            _ => {
                self.previous_us = within(random, base, self.previous_us.max(base) * 3).min(cap);
                self.previous_us
            }
        };
        self.failures += 1;
        self.elsewhere(now_us, wait_us)
    }

    fn avoid(&mut self, now_us: u64) {
        if let Some(gateway) = self.gateways.get_mut(self.at) {
            gateway.1 = now_us + AVOID_US;
        }
    }

    /// The next gateway of the list that is not known to be gone, or simply the next.
    fn elsewhere(&mut self, now_us: u64, wait_us: u64) -> Next {
        let n = self.gateways.len().max(1);
        let mut next = (1..=n).map(|i| (self.at + i) % n);
        let good = next.find(|i| self.gateways.get(*i).is_some_and(|g| g.1 <= now_us));
        self.at = good.unwrap_or((self.at + 1) % n);
        Next::Dial { wait_us }
    }
}

/// A value of [low, high] by 64 uniform bits.
fn within(random: u64, low: u64, high: u64) -> u64 {
    low + random % (high.saturating_sub(low) + 1)
}

#[cfg(test)]
#[path = "reconnect_tests.rs"]
mod tests;
