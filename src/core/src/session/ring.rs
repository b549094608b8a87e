//! The ring: the newest events, for clients that come back within a few of them (design 4.3 rule 3).

use std::collections::VecDeque;

use crate::proto::owner_msg;

/// Contiguous events up to the session's newest version.
#[derive(Debug, Default)]
pub(super) struct Ring {
    events: VecDeque<owner_msg::Event>,
    bytes: usize,
}

/// The last version an event speaks for.
pub(super) fn last_ver(event: &owner_msg::Event) -> u64 {
    event.skip_to.max(event.at.unwrap_or_default().ver)
}

impl Ring {
    /// Forgets everything: the next event follows a hole.
    pub fn clear(&mut self) {
        self.events.clear();
        self.bytes = 0;
    }

    /// Adds the event after the newest; drops the oldest over the limits.
    pub fn push(&mut self, event: owner_msg::Event, events_max: usize, bytes_max: usize) {
        self.bytes += event.payload.len();
        self.events.push_back(event);
        while self.events.len() > events_max || self.bytes > bytes_max {
            let Some(old) = self.events.pop_front() else { break };
            self.bytes -= old.payload.len();
        }
    }

    /// All events after `ver`, if the ring has every one of them and none is a skip (which answers only those who
    /// were joined when it was made).
    pub fn after(&self, ver: u64) -> Option<Vec<owner_msg::Event>> {
        let first = self.events.front()?.at.unwrap_or_default().ver;
        if first > ver + 1 {
            return None;
        }
        let wanted: Vec<_> = self.events.iter().filter(|e| last_ver(e) > ver).cloned().collect();
        wanted.iter().all(|e| e.skip_to == 0).then_some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Pos;

    fn event(ver: u64, bytes: usize) -> owner_msg::Event {
        owner_msg::Event { at: Some(Pos { epoch: 1, ver }), payload: vec![0; bytes].into(), ..Default::default() }
    }

    #[test]
    fn it_answers_only_what_it_has_whole() {
        let mut ring = Ring::default();
        assert!(ring.after(0).is_none());
        for ver in 5..=9 {
            ring.push(event(ver, 1), 4, 100);
        }
        assert!(ring.after(4).is_none(), "5 was dropped by the limit of 4");
        assert_eq!(ring.after(5).map(|e| e.len()), Some(4));
        assert_eq!(ring.after(9).map(|e| e.len()), Some(0));
        ring.push(owner_msg::Event { skip_to: 12, ..event(10, 0) }, 4, 100);
        assert!(ring.after(9).is_none());
        assert_eq!(ring.after(12).map(|e| e.len()), Some(0));
        ring.push(event(13, 101), 4, 100);
        assert!(ring.after(12).is_none(), "over its bytes");
    }
}
