//! Admission (design 9): who is let in now, and the moment at which everybody else will be.
//!
//! ```text
//! ask ── ticket or remembered slot? ── before its window ──────────────> Slot (the same one)
//!  │                               ├── in its window ── guard 1.05 R ──> Admit, or Slot (the next one)
//!  │                               └── after it: counts for nothing
//!  └── otherwise: the lane of its class ── free now ───────────────────> Admit
//!                                       ├── nobody claims the capacity ─> Admit
//!                                       ├── within the horizon ─────────> Slot (a new one)
//!                                       └── beyond it ──────────────────> Full
//! ```
//! A share is a share of the *schedule*: a class that asks when it is contended gets slots at its share of the rate, and a
//! slot, once given, is honoured before anything else. So fresh clients never take the moment that was promised to
//! another, and a class that is flooded (the anonymous) cannot fill the moments of the classes above it: see `shares`.
//!
//! [`Admission`] takes `&mut self` and well under a microsecond besides the MACs; put it in one short mutex, and check
//! nothing else under it. Memory: the table, 65,536 x 24 B = 1.5 MiB, whatever happens.
//!
//! Stable: everything public here.

pub mod client;
mod gate;
pub mod gcra;
pub mod keys;
pub mod rank;
pub mod resume;
mod shares;
mod slots;
#[cfg(test)]
mod tests;
pub mod ticket;

use std::time::Duration;

pub use gate::Admission;
pub use gcra::{Pace, ReservingGcra};
pub use keys::{FleetKeys, Key};
pub use resume::{ResumeError, ResumeToken};
pub use shares::Shares;
pub use slots::SLOTS;
pub use ticket::{TICKET_BYTES, Ticket, TicketError};

/// Who asks, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Came in its slot and found the gate at its guard: goes before everybody who never had a slot.
    Ticket,
    /// Resumes a game.
    Game,
    /// Resumes a meeting.
    Meeting,
    /// Resumes a document.
    Document,
    /// Was here within a day, without a session.
    Known,
    /// Nothing is known.
    Anonymous,
}

impl Class {
    /// All classes, most urgent first.
    pub const ALL: [Self; 6] = [Self::Ticket, Self::Game, Self::Meeting, Self::Document, Self::Known, Self::Anonymous];

    /// Metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ticket => "ticket",
            Self::Game => "game",
            Self::Meeting => "meeting",
            Self::Document => "document",
            Self::Known => "known",
            Self::Anonymous => "anonymous",
        }
    }

    /// The class of a kind of session; other kinds are known, not more.
    #[must_use]
    pub fn of_kind(kind: &str) -> Self {
        match kind {
            "game" => Self::Game,
            "meeting" => Self::Meeting,
            "document" => Self::Document,
            _ => Self::Known,
        }
    }

    /// Its byte in tickets and tokens.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The class of a byte.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// Limits of the admission point (design 9.3, 9.4). All can be changed while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdmissionConfig {
    /// R: admissions a second of this process.
    pub rate_per_s: u32,
    /// What of R may pass at once, as time: 20 ms of 5,000/s = 100. At least one passes.
    pub burst: Duration,
    /// How classes share R when they contend.
    pub shares: Shares,
    /// No slot is given further ahead.
    pub horizon: Duration,
    /// A slot is honoured this much before its moment (clocks differ, networks vary).
    pub early: Duration,
    /// And this much after it.
    pub late: Duration,
    /// Tickets of the whole fleet together may bring this times R.
    pub guard: f64,
    /// Random addition to the plain answer, on top of the horizon.
    pub plain_spread: Duration,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        Self {
            rate_per_s: 5000,
            burst: Duration::from_millis(20),
            shares: Shares::default(),
            horizon: Duration::from_secs(30),
            early: Duration::from_millis(50),
            late: Duration::from_secs(5),
            guard: 1.05,
            plain_spread: Duration::from_secs(15),
        }
    }
}

/// What a client shows at the gate; both are optional, anything unreadable counts for nothing.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Slot ticket (`k`), decoded.
    pub ticket: Option<&'a [u8]>,
    /// Resume token (`r`), decoded.
    pub resume: Option<&'a [u8]>,
    /// The keys of the fleet as of now.
    pub keys: &'a FleetKeys,
}

/// What the client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Let in.
    Admit {
        /// The client's class.
        class: Class,
        /// How long after its slot it came; none if it had no slot.
        slot_lag: Option<Duration>,
        /// To be kept waiting for so long before it is served, so that the pace holds; mostly zero, at most 250 ms.
        hold: Duration,
    },
    /// Not now: come back in `wait`, and show the ticket.
    Slot {
        /// The client's class.
        class: Class,
        /// Time until it is let in.
        wait: Duration,
        /// Good at any gateway of the fleet.
        ticket: [u8; TICKET_BYTES],
    },
    /// No slot within the horizon: try again in `wait`.
    Full {
        /// Horizon + U(0, spread).
        wait: Duration,
    },
}

/// Why, for metrics: a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Admitted: its class had room.
    Free,
    /// Admitted: in its slot.
    InSlot,
    /// Admitted: those expected now did not come.
    Unclaimed,
    /// Refused: asked for the first time, or with nothing that counts; it has a slot now.
    Queued,
    /// Refused: asked before its slot, which stays the same.
    Early,
    /// Refused at its slot: it asked early too often, and waits up to a second more.
    Hammering,
    /// Refused at its slot: more tickets of the fleet came than the guard lets in; it has the next slot.
    Guard,
    /// Refused: no slot within the horizon.
    Full,
}

impl Reason {
    /// All of them, for zero-initialised metrics.
    pub const ALL: [Self; 8] = [
        Self::Free,
        Self::InSlot,
        Self::Unclaimed,
        Self::Queued,
        Self::Early,
        Self::Hammering,
        Self::Guard,
        Self::Full,
    ];

    /// Metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::InSlot => "in_slot",
            Self::Unclaimed => "unclaimed",
            Self::Queued => "queued",
            Self::Early => "early",
            Self::Hammering => "hammering",
            Self::Guard => "guard",
            Self::Full => "full",
        }
    }
}

/// The verdict, and what metrics want to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What the client is told.
    pub verdict: Verdict,
    /// The client's class.
    pub class: Class,
    /// Why.
    pub reason: Reason,
    /// Why the ticket it showed was not honoured now.
    pub ticket: Option<TicketError>,
    /// Why the resume token it showed counted for nothing.
    pub resume: Option<ResumeError>,
}

/// Whole seconds for Retry-After: rounded up, at least 1, so that nobody comes before its slot.
#[must_use]
pub fn retry_after_s(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}
