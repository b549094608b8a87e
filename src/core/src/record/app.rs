//! What one kind of session decides: the seam between the authority (fencing, lanes, record) and the application.

use bytes::Bytes;

use crate::{
    proto::{Code, Content, HeldOp, Stamp, record::Entry, record::Header},
    time::{Now, Wall},
};

/// Event flag: the gateway reports this event's first delivery (`Delivered`) and stamps `sent_at` from it.
pub const STAMP_DELIVERY: u32 = 1;
/// Event flag: flush now.
pub const URGENT: u32 = 2;

/// The rules and the state of one session.
///
/// Its state is a function of the record: the fresh state or `restore(checkpoint)`, then `apply` of each later entry in ver
/// order. (The authority takes a checkpoint of the fresh app, to get back to it.) The authority calls `decide`, then `apply` with the entries it made of the drafts, *before* the
/// write; when that write fails it throws the state away with `restore`, so neither may have other effects.
pub trait App {
    /// Decides one op against the current state. Accepting with no draft means "nothing changes" and is answered as committed.
    /// A 4xx refusal is a decision, stored and repeated for ever; a 2xx one is not stored.
    ///
    /// # Errors
    /// The refusal, as the client will read it.
    fn decide(&mut self, op: &OpView<'_>, now: Now) -> Result<Vec<Draft>, Reject>;
    /// Takes one entry into the state: new or replayed.
    fn apply(&mut self, entry: &Entry);
    /// What a joining client sees of the state.
    fn snapshot(&self) -> (Content, Bytes);
    /// The whole state, for `restore`.
    fn checkpoint(&self) -> Bytes;
    /// Replaces the state by a checkpoint's.
    ///
    /// # Errors
    /// What is wrong with the bytes; the session is then not served.
    fn restore(&mut self, state: &[u8]) -> Result<(), String>;
    /// An event flagged [`STAMP_DELIVERY`] reached `participant` first at `sent_at_us` (wall clock of its gateway). Not in the record.
    fn handle_delivered(&mut self, _participant: &str, _ver: u64, _sent_at_us: u64) {}
    /// The session was claimed (also again): `header.outage_us` is the unowned time before this epoch (design 5.5).
    fn handle_claimed(&mut self, _header: &Header, _now: Now) {}
    /// When the app wants `handle_timeout`; a point on the wall clock, because it is derived from the record.
    fn poll_timeout(&self) -> Option<Wall> {
        None
    }
    /// The owner's own events (a flag on the backstop), written as entries without an op. Must move `poll_timeout`.
    fn handle_timeout(&mut self, _now: Now) -> Vec<Draft> {
        Vec::new()
    }
    /// The deadline gateways should watch now (`ArmDeadline`), a function of the state; sent whenever it changes.
    fn deadline(&self) -> Option<Deadline> {
        None
    }
    /// Whether ops of this kind are stamped and get receipts.
    fn stamped(&self) -> bool {
        false
    }
    /// Whether this kind relays reactions.
    fn reactions(&self) -> bool {
        true
    }
    /// Oldest age in milliseconds at which a reaction is still relayed.
    fn reaction_ttl_ms(&self) -> u32 {
        1000
    }
}

/// An op as the application sees it.
#[derive(Clone, Copy, Debug)]
pub struct OpView<'a> {
    /// The op; its session, lane order and digest are already checked.
    pub held: &'a HeldOp,
    /// Its stamp, decoded (default if absent).
    pub stamp: &'a Stamp,
    /// The authority's epoch.
    pub epoch: u64,
    /// The ver the first draft will get.
    pub next_ver: u64,
    /// How it came (`proto::gateway_msg::Origin` as its number); DEADLINE ops are claims, not client ops.
    pub origin: i32,
}

/// An event the application wants in the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    /// Payload of the event.
    pub payload: Bytes,
    /// How to show it.
    pub content: Content,
    /// Participant the event is by; "" = the owner.
    pub actor: String,
    /// [`STAMP_DELIVERY`] | [`URGENT`].
    pub flags: u32,
    /// Participants who may see it; empty = everyone.
    pub only: Vec<String>,
    /// Audit facts, JSON.
    pub facts: String,
}

/// The application's refusal of an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// `Rejected`, `BaseConflict`, … (4xx: final) or a 2xx.
    pub code: Code,
    /// The application's own reason.
    pub app_code: u32,
    /// For humans.
    pub detail: String,
}

impl Reject {
    /// `REJECTED` with the application's reason.
    #[must_use]
    pub fn app(app_code: u32, detail: impl Into<String>) -> Self {
        Self { code: Code::Rejected, app_code, detail: detail.into() }
    }
}

/// A deadline of one participant (design 5.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Who must act.
    pub participant: String,
    /// The event whose delivery starts the time; also the deadline's id.
    pub after_ver: u64,
    /// Time to act from that delivery, microseconds.
    pub budget_us: u64,
    /// The owner's own backstop, wall clock microseconds.
    pub at_us: u64,
}

impl<A: App + ?Sized> App for Box<A> {
    fn decide(&mut self, op: &OpView<'_>, now: Now) -> Result<Vec<Draft>, Reject> {
        (**self).decide(op, now)
    }
    fn apply(&mut self, entry: &Entry) {
        (**self).apply(entry);
    }
    fn snapshot(&self) -> (Content, Bytes) {
        (**self).snapshot()
    }
    fn checkpoint(&self) -> Bytes {
        (**self).checkpoint()
    }
    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        (**self).restore(state)
    }
    fn handle_delivered(&mut self, participant: &str, ver: u64, sent_at_us: u64) {
        (**self).handle_delivered(participant, ver, sent_at_us);
    }
    fn handle_claimed(&mut self, header: &Header, now: Now) {
        (**self).handle_claimed(header, now);
    }
    fn poll_timeout(&self) -> Option<Wall> {
        (**self).poll_timeout()
    }
    fn handle_timeout(&mut self, now: Now) -> Vec<Draft> {
        (**self).handle_timeout(now)
    }
    fn deadline(&self) -> Option<Deadline> {
        (**self).deadline()
    }
    fn stamped(&self) -> bool {
        (**self).stamped()
    }
    fn reactions(&self) -> bool {
        (**self).reactions()
    }
    fn reaction_ttl_ms(&self) -> u32 {
        (**self).reaction_ttl_ms()
    }
}
