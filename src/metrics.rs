//! Every instrument of the gateway: name, unit, help, closed label sets, all zero from the start.

/// The gateway's instruments. One per process, shared.
#[derive(Debug, Default)]
pub struct Metrics {}

impl Metrics {
    /// All instruments, at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The text exposition (OpenMetrics) of everything.
    #[must_use]
    pub fn encode(&self) -> String {
        String::new()
    }
}
