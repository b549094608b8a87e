//! The newest things that happened, in words, for operators: the dashboard's list and `/events` (design 11).
//!
//! Not a log: a ring in memory, so that whoever opens the dashboard sees which owner was lost and when players were back
//! without searching. Texts name nodes and numbers, never payloads, principals or tokens.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use holdfast_core::time::Wall;

/// Kept: a node's loss makes four. 256 x about 150 B = 38 KB.
const KEPT_MAX: usize = 256;

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As it should be again.
    Good,
    /// Neither.
    Info,
    /// Worth a look.
    Warn,
    /// Clients feel it.
    Bad,
}

impl Level {
    /// As in `/events`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happening {
    /// When.
    pub at: Wall,
    /// How much it matters.
    pub level: Level,
    /// What, in words.
    pub text: String,
}

/// The ring.
#[derive(Debug, Default)]
pub struct Happenings(Mutex<VecDeque<Happening>>);

impl Happenings {
    /// Adds one; the oldest goes where there is no room.
    pub fn push(&self, at: Wall, level: Level, text: String) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.len() == KEPT_MAX {
            ring.pop_front();
        }
        ring.push_back(Happening { at, level, text });
    }

    /// All of them, the oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Happening> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first() {
        let ring = Happenings::default();
        for n in 0..KEPT_MAX as u64 + 3 {
            ring.push(Wall(n), Level::Info, n.to_string());
        }
        let all = ring.all();
        assert_eq!((all.len(), all[0].text.as_str()), (KEPT_MAX, "3"));
        assert_eq!(all[KEPT_MAX - 1].at, Wall(KEPT_MAX as u64 + 2));
    }
}
