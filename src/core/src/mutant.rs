//! Known defects, switched on one at a time by the simulation to prove that it would find them.
//! Without the feature `mutants` every check is a constant `false` and compiles to nothing.

/// One defect that the simulation must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The owner echoes an op before its write succeeded.
    AckBeforeWrite,
    /// The owner serves an epoch without claiming it in the record.
    NoClaim,
    /// The gateway itself finally refuses an op that is a resend.
    GatewayFinalOnResend,
    /// The owner accepts a lane's ops in any order.
    NoLaneOrder,
    /// A rejection is sent but not stored.
    RejectionNotStored,
    /// `last_decided` of a lane is forgotten.
    LaneTableTrimmed,
    /// The stamp is made anew on every resend.
    StampRemade,
    /// Frames of an epoch older than the binding are delivered.
    StaleEpochDelivered,
    /// The ring is replayed with the epoch the event first had.
    RingOldEpoch,
}

#[cfg(feature = "mutants")]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Switches `mutant` on (or all off) for this thread.
#[cfg(feature = "mutants")]
pub fn activate(mutant: Option<Mutant>) {
    ACTIVE.set(mutant);
}

/// Whether `mutant` is on.
#[cfg(feature = "mutants")]
#[must_use]
pub fn on(mutant: Mutant) -> bool {
    ACTIVE.get() == Some(mutant)
}

/// Whether `mutant` is on: never, without the feature.
#[cfg(not(feature = "mutants"))]
#[must_use]
pub const fn on(_mutant: Mutant) -> bool {
    false
}
