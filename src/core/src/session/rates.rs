//! Rates of ops and reactions per attachment (design 9.4), which may change while sessions live.

use crate::session::Limits;

/// So many per second, so many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpRate {
    /// Per second.
    pub per_s: u32,
    /// At once.
    pub burst: u32,
}

/// Rates of the kinds of session, each per attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpRates {
    /// First sends of a game.
    pub game: OpRate,
    /// First sends of a meeting.
    pub meeting: OpRate,
    /// First sends of a document, and of kinds not known here.
    pub document: OpRate,
    /// Resends (attempt > 1) at once, beside the rate.
    pub resend_burst: u32,
    /// Reactions, whatever the kind.
    pub reactions: OpRate,
}

impl Default for OpRates {
    /// People move and raise hands less than 5 times a second; 30/s is fast typing with an edit per key.
    fn default() -> Self {
        let people = OpRate { per_s: 5, burst: 10 };
        Self {
            game: people,
            meeting: people,
            document: OpRate { per_s: 30, burst: 60 },
            resend_burst: 32,
            reactions: OpRate { per_s: 20, burst: 40 },
        }
    }
}

impl OpRates {
    /// The rate of a kind of session; parameters after `:` are ignored.
    #[must_use]
    pub fn of(&self, kind: &str) -> OpRate {
        match kind.split(':').next() {
            Some("game") => self.game,
            Some("meeting") => self.meeting,
            _ => self.document,
        }
    }
}

impl Limits {
    /// The same with other rates. Buckets keep their state: a new rate is no new burst.
    #[must_use]
    pub fn with_rates(mut self, kind: &str, rates: &OpRates) -> Self {
        let ops = rates.of(kind);
        (self.op_rate_per_s, self.op_burst) = (ops.per_s, ops.burst);
        (self.reaction_rate_per_s, self.reaction_burst) = (rates.reactions.per_s, rates.reactions.burst);
        self.resend_burst = rates.resend_burst;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_kinds() {
        for kind in ["game:180+2", "meeting", "document", ""] {
            assert_eq!(Limits::for_kind(kind).with_rates(kind, &OpRates::default()), Limits::for_kind(kind), "{kind}");
        }
    }
}
