//! Who is on the move: participants whose deadline the owner has armed (design 5.4).

use std::collections::BTreeMap;

use crate::{id::ConnId, proto::owner_msg::ArmDeadline, session::Session};

/// Participants on the move at once in one session: seats of a game, with room to spare.
const ARMED_MAX: usize = 64;

/// Participants and the deadline that runs for each. A newer deadline of the session ends older ones: the owner has
/// decided something since. It outlives a change of owner, which arms anew.
#[derive(Debug, Default)]
pub(super) struct Armed(BTreeMap<String, u64>);

impl Armed {
    pub fn handle(&mut self, msg: &ArmDeadline) {
        if msg.cancel {
            self.0.retain(|participant, id| *participant != msg.participant || *id > msg.deadline_id);
            return;
        }
        if self.0.values().any(|id| *id > msg.deadline_id) {
            return;
        }
        self.0.retain(|_, id| *id == msg.deadline_id);
        if self.0.len() < ARMED_MAX {
            self.0.insert(msg.participant.clone(), msg.deadline_id);
        }
    }
}

impl Session {
    /// Whether time runs against this connection's participant now.
    #[must_use]
    pub fn is_on_the_move(&self, conn: ConnId) -> bool {
        self.atts.get(&conn).is_some_and(|a| self.armed.0.contains_key(&*a.client.participant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_deadline_counts_until_it_is_cancelled() {
        let mut armed = Armed::default();
        let mut hear = |participant: &str, deadline_id, cancel| {
            armed.handle(&ArmDeadline { participant: participant.into(), deadline_id, cancel, ..Default::default() });
            armed.0.keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(hear("white", 1, false), ["white"]);
        assert_eq!(hear("black", 2, false), ["black"]);
        assert_eq!(hear("white", 1, false), ["black"], "an old one, told again");
        assert_eq!(hear("white", 3, true), ["black"], "not its own");
        assert_eq!(hear("black", 1, true), ["black"], "an old cancel");
        assert!(hear("black", 2, true).is_empty());
    }
}
