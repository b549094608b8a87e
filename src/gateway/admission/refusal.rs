//! How a client is told that it is not admitted (design 4.4, 9.3): as cheaply as a browser's rules allow.
//!
//! A browser shows its page neither status nor headers of a handshake that failed, so where one may be at the other end
//! the handshake succeeds and a close frame follows in the same write. Everybody else gets a 503.

use std::{fmt::Write as _, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use holdfast_core::admission::{TICKET_BYTES, retry_after_s};

use crate::gateway::outbox::REASON_BYTES_MAX;

/// First byte of a close frame.
const CLOSE: u8 = 0x88;

/// What a client that is not let in is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Close code of 4.4.
    pub code: u16,
    /// Close reason, at most [`REASON_BYTES_MAX`] bytes.
    pub reason: String,
    /// How long to wait, for `Retry-After`; `None` = coming back is of no use.
    pub wait: Option<Duration>,
}

impl Refusal {
    /// Come back at your slot.
    #[must_use]
    pub fn slot(wait: Duration, ticket: &[u8; TICKET_BYTES]) -> Self {
        let mut reason = String::with_capacity(REASON_BYTES_MAX);
        // Writing to a String does not fail.
        let _ = write!(reason, r#"{{"r":"slot","ms":{},"k":""#, ms(wait));
        URL_SAFE_NO_PAD.encode_string(ticket, &mut reason);
        reason.push_str("\"}");
        Self { code: 1013, reason, wait: Some(wait) }
    }

    /// There is no slot within the horizon.
    #[must_use]
    pub fn full(wait: Duration) -> Self {
        Self { code: 1013, reason: format!(r#"{{"r":"full","ms":{}}}"#, ms(wait)), wait: Some(wait) }
    }

    /// A page of this origin has no business here.
    #[must_use]
    pub fn origin() -> Self {
        let reason = "origin not allowed here: see `origins` in the gateway's configuration";
        Self { code: 4007, reason: reason.into(), wait: None }
    }

    /// The close frame.
    #[must_use]
    pub fn frame(&self) -> Vec<u8> {
        let reason = &self.reason.as_bytes()[..self.reason.len().min(REASON_BYTES_MAX)];
        let mut frame = Vec::with_capacity(4 + reason.len());
        frame.extend([CLOSE, u8::try_from(reason.len() + 2).unwrap_or(2)]);
        frame.extend(self.code.to_be_bytes());
        frame.extend(reason);
        frame
    }

    /// `Retry-After`: whole seconds, never early, at least 1, and one more for every other client, as whole seconds bring
    /// them back in step.
    #[must_use]
    pub fn retry_after_s(&self) -> Option<u64> {
        let wait = self.wait?;
        Some(retry_after_s(wait) + rand::random_range(0..=1))
    }
}

fn ms(wait: Duration) -> u128 {
    wait.as_micros().div_ceil(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_reason_fits_into_a_close_frame() {
        let refusal = Refusal::slot(Duration::from_secs(3600), &[0xff; TICKET_BYTES]);
        assert!(refusal.reason.len() <= REASON_BYTES_MAX, "{}", refusal.reason.len());
        let parsed: serde_json::Value = serde_json::from_str(&refusal.reason).unwrap();
        assert_eq!((&parsed["r"], &parsed["ms"]), (&"slot".into(), &3_600_000.into()));
        let ticket = URL_SAFE_NO_PAD.decode(parsed["k"].as_str().unwrap()).unwrap();
        assert_eq!(ticket, [0xff; TICKET_BYTES]);
        let frame = refusal.frame();
        assert_eq!((frame[0], usize::from(frame[1]), frame.len()), (0x88, frame.len() - 2, refusal.reason.len() + 4));
        assert_eq!(frame[2..4], 1013u16.to_be_bytes());
        assert!(Refusal::origin().reason.len() <= REASON_BYTES_MAX);
    }

    #[test]
    fn retry_after_is_never_early_and_at_least_a_second() {
        for (wait, least) in [(Duration::ZERO, 1), (Duration::from_millis(2001), 3), (Duration::from_secs(45), 45)] {
            let told = Refusal::full(wait).retry_after_s().unwrap();
            assert!((least..=least + 1).contains(&told), "{wait:?} {told}");
        }
        assert_eq!(Refusal::full(Duration::from_micros(1001)).reason, r#"{"r":"full","ms":2}"#);
        assert_eq!(Refusal::origin().retry_after_s(), None);
    }
}
