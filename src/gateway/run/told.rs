//! What a gateway tells its operators in words: owners lost and found, sessions moved, players back.

use holdfast_core::time::Wall;

use crate::{
    metrics::{Level, Metrics},
    placement::watch::Change,
};

/// What was told last, so that only changes are.
#[derive(Debug, Default)]
pub(super) struct Told {
    synced: Option<bool>,
    moved: u64,
}

impl Told {
    /// Looks once a second at what changed.
    pub fn look(&mut self, metrics: &Metrics, now: Wall, synced: bool) {
        let push = |level, text| metrics.happenings().push(now, level, text);
        match (self.synced.replace(synced), synced) {
            (Some(true), false) => {
                push(Level::Warn, "the directory is stale: sessions go on from the cache, nothing is re-homed".into());
            }
            (Some(false), true) => push(Level::Good, "the directory is current again".into()),
            _ => {}
        }
        let (moved, resumed, slowest_us) = metrics.take_moves();
        if moved > self.moved {
            push(Level::Info, format!("sessions moved to another owner or epoch: {}", moved - self.moved));
        }
        self.moved = moved;
        if resumed > 0 {
            push(
                Level::Good,
                format!(
                    "sessions with ops under way that are back: {resumed}, the slowest after {} ms",
                    slowest_us / 1000
                ),
            );
        }
    }
}

/// News of a node or gateway, where it is any.
pub(super) fn node(change: &Change) -> Option<(Level, String)> {
    match change {
        Change::Node(node, info) if info.draining => Some((Level::Warn, format!("{node} is draining"))),
        Change::Node(node, info) => {
            Some((Level::Good, format!("{node} is there: {} at {}", info.kinds.join(", "), info.addr)))
        }
        Change::NodeGone(node, boot) => Some((Level::Bad, format!("{node} is gone (boot {boot}): its lease ended"))),
        Change::Gateway(node, None) => Some((Level::Bad, format!("gateway {node} is gone"))),
        // They register anew every few seconds.
        Change::Gateway(_, Some(_)) | Change::Route(..) | Change::Gone(_) | Change::Synced | Change::Stale => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use holdfast_core::{id::Boot, session::Observation};

    use super::*;

    #[test]
    fn a_lost_owner_and_the_return_of_its_players_are_told_once() {
        let (metrics, mut told) = (Metrics::new(), Told::default());
        told.look(&metrics, Wall(1), true);
        assert!(metrics.happenings().all().is_empty());
        metrics.observe(&Observation::Resumed { us: 2_000 });
        metrics.observe(&Observation::Resumed { us: 158_000 });
        told.look(&metrics, Wall(2), false);
        told.look(&metrics, Wall(3), false);
        let texts: Vec<String> = metrics.happenings().all().into_iter().map(|h| h.text).collect();
        assert_eq!(
            texts,
            [
                "the directory is stale: sessions go on from the cache, nothing is re-homed",
                "sessions with ops under way that are back: 2, the slowest after 158 ms"
            ]
        );
        let gone = node(&Change::NodeGone(Arc::from("owner-2"), Boot(7)));
        assert_eq!(gone, Some((Level::Bad, "owner-2 is gone (boot 0000000000000007): its lease ended".into())));
    }
}
