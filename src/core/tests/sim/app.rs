//! The application that the simulated owners serve: a chain over all events, with every shape of outcome an op can have.

use bytes::Bytes;
use holdfast_core::{
    proto::{Code, Content, record::Entry},
    record::{App, Draft, OpView, Reject, STAMP_DELIVERY},
    time::Now,
};

/// What an op does; the first byte of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// One public event.
    Plain,
    /// Two public events.
    Double,
    /// A public event, then one for the sender only, which carries the echo.
    Private,
    /// One event for somebody else only: the sender hears `ack`.
    Whisper,
    /// Refused while the number of events is odd: what is refused once must stay refused.
    Fickle,
    /// Always refused.
    Refused,
}

/// All kinds, common ones several times.
pub const KINDS: [Kind; 9] = [
    Kind::Plain,
    Kind::Plain,
    Kind::Plain,
    Kind::Double,
    Kind::Private,
    Kind::Whisper,
    Kind::Fickle,
    Kind::Fickle,
    Kind::Refused,
];

/// `app_code` of every refusal.
pub const APP_CODE: u32 = 7;
/// A participant that nobody is.
const NOBODY: &str = "nobody";

/// The state: number of events and the chain over their versions and payloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestApp {
    count: u64,
    chain: u64,
}

/// The chain after one more event (FNV-1a over version and payload).
pub fn link(chain: u64, ver: u64, payload: &[u8]) -> u64 {
    let bytes = ver.to_le_bytes();
    bytes
        .iter()
        .chain(payload)
        .fold(chain ^ 0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

fn draft(op: &OpView<'_>, part: u8, only: Vec<String>) -> Draft {
    let mut payload = vec![part];
    payload.extend_from_slice(&op.held.payload);
    Draft {
        payload: payload.into(),
        content: Content::Bytes,
        actor: op.held.participant.clone(),
        flags: if part == 0 { STAMP_DELIVERY } else { 0 },
        only,
        facts: String::new(),
    }
}

impl App for TestApp {
    fn decide(&mut self, op: &OpView<'_>, _now: Now) -> Result<Vec<Draft>, Reject> {
        let kind = op.held.payload.first().copied().unwrap_or(0);
        let refuse = Err(Reject { code: Code::Rejected, app_code: APP_CODE, detail: String::new() });
        match kind {
            k if k == Kind::Double as u8 => Ok(vec![draft(op, 0, vec![]), draft(op, 1, vec![])]),
            k if k == Kind::Private as u8 => {
                Ok(vec![draft(op, 0, vec![]), draft(op, 1, vec![op.held.participant.clone()])])
            }
            k if k == Kind::Whisper as u8 => Ok(vec![draft(op, 0, vec![NOBODY.to_owned()])]),
            k if k == Kind::Refused as u8 => refuse,
            k if k == Kind::Fickle as u8 && self.count % 2 == 1 => refuse,
            _ => Ok(vec![draft(op, 0, vec![])]),
        }
    }

    fn apply(&mut self, entry: &Entry) {
        self.count += 1;
        self.chain = link(self.chain, entry.ver, &entry.payload);
    }

    fn snapshot(&self) -> (Content, Bytes) {
        (Content::Bytes, Bytes::copy_from_slice(&self.chain.to_le_bytes()))
    }

    fn checkpoint(&self) -> Bytes {
        [self.count.to_le_bytes(), self.chain.to_le_bytes()].concat().into()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        if state.is_empty() {
            *self = Self::default();
            return Ok(());
        }
        let word = |at: usize| state.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        self.count = word(0).ok_or("short state")?;
        self.chain = word(8).ok_or("short state")?;
        Ok(())
    }
}
