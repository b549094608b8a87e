//! stub
use crate::id::SessionId;
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
}
