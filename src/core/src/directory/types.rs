//! What goes into a [`super::Directory`] and what comes out.

use std::sync::Arc;

use crate::id::{Boot, SessionId};

/// The unit of placement: a session, in v1 (design 8.1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlacementUnit(SessionId);

impl PlacementUnit {
    /// The unit a session belongs to.
    #[must_use]
    pub fn of(session: &SessionId) -> Self {
        Self(session.clone())
    }

    /// The unit as it stands in keys.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The sessions of the unit that are known by name; in v1 exactly one.
    #[must_use]
    pub const fn session(&self) -> &SessionId {
        &self.0
    }
}

/// How fresh the directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing was ever heard.
    Cold,
    /// The first list is under way.
    Listing,
    /// Listed, and the watch is alive.
    Synced,
    /// It was synced once; what it says may be old.
    Stale,
}

/// What merging an entry did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// New, or a larger epoch.
    Changed,
    /// Same epoch, same owner, but something else about it is news (it ended).
    Updated,
    /// Nothing new.
    Refreshed,
    /// A smaller epoch, or an older revision: dropped and counted.
    Dropped,
    /// Same epoch, another owner: not believed; a linearizable read has to decide.
    Alarm,
}

/// Counts since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages with a smaller epoch.
    pub dropped: u64,
    /// Same epoch, another owner.
    pub alarms: u64,
    /// Entries swept after a list.
    pub swept: u64,
}

/// More than half of the units were missing from one list: nothing was swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarded {
    /// Units the list did not have.
    pub gone: usize,
    /// Units known before.
    pub known: usize,
}

/// What changed by a list's end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Units that are in no list any more.
    pub units: Vec<PlacementUnit>,
    /// Nodes whose lease ended meanwhile, and which life of them.
    pub nodes: Vec<(Arc<str>, Boot)>,
    /// The guard held everything back.
    pub guarded: Option<Guarded>,
}
