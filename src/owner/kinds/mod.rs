//! The three kinds of session this owner knows (design 4.7): chess games, meetings with raised hands, shared documents.
//!
//! Each is an [`App`]: a state that is a function of the record, and the rules for what may enter it. Payloads are JSON both
//! ways. An op that is refused gets `REJECTED` with one of the [`code`]s and a detail that names the field, the limit and the
//! value. No payload, however odd, makes a kind panic.

pub mod board;
pub mod clock;
mod document;
pub mod edit;
mod game;
mod game_events;
mod meeting;
mod san;

use holdfast_core::{
    id::SessionId,
    proto::{Content, HeldOp},
    record::{App, Reject},
};
use serde::de::DeserializeOwned;

pub use self::{document::Document, game::Game, meeting::Meeting};

/// Why an op was refused: `app_code` of a `REJECTED` nack.
pub mod code {
    /// The payload is not what this kind understands.
    pub const BAD_PAYLOAD: u32 = 1;
    /// The sender holds no seat (game: `white` or `black`).
    pub const NOT_YOUR_SEAT: u32 = 2;
    /// The move is not legal here.
    pub const ILLEGAL_MOVE: u32 = 3;
    /// The other side is to move.
    pub const NOT_YOUR_TURN: u32 = 4;
    /// The game has ended.
    pub const GAME_OVER: u32 = 5;
    /// There is no draw offer to accept, or the sender's own one stands already.
    pub const DRAW: u32 = 6;
    /// A size or a count would pass its limit.
    pub const TOO_MUCH: u32 = 7;
    /// A position lies outside the document.
    pub const OUT_OF_RANGE: u32 = 8;
    /// The claimed deadline has not passed, or is no longer the current one.
    pub const NO_FLAG: u32 = 9;
}

/// Longest excerpt of a client's value in a detail, in characters.
const SHOWN_CHARS: usize = 40;
/// Longest participant or principal that enters a state, in bytes: 1,000 raised hands then stay below 128 KiB.
pub const NAME_BYTES_MAX: usize = 128;

/// A fresh session of a kind: `game` (300+3), `game:180+2` (seconds + seconds of increment), `meeting`, `document`.
/// `None`: no such kind, or its parameters are out of range.
#[must_use]
pub fn new(kind: &str, _session: &SessionId) -> Option<Box<dyn App + Send>> {
    let (name, parameters) = match kind.split_once(':') {
        Some((name, parameters)) => (name, Some(parameters)),
        None => (kind, None),
    };
    match (name, parameters) {
        ("game", None) => Some(Box::new(Game::new(clock::Control::default()))),
        ("game", Some(text)) => Some(Box::new(Game::new(clock::Control::parse(text)?))),
        ("meeting", None) => Some(Box::new(Meeting::default())),
        ("document", None) => Some(Box::new(Document::default())),
        _ => None,
    }
}

/// The payload of an op as `T`.
fn payload<T: DeserializeOwned>(held: &HeldOp) -> Result<T, Reject> {
    if held.content() != Content::Json {
        return Err(Reject::app(code::BAD_PAYLOAD, "data: JSON is required, these are bytes"));
    }
    serde_json::from_slice(&held.payload).map_err(|e| {
        let shown = shown(&String::from_utf8_lossy(&held.payload));
        Reject::app(code::BAD_PAYLOAD, format!("data: {} in {shown}", self::shown(&e.to_string())))
    })
}

/// A value as a detail may show it: cut to [`SHOWN_CHARS`], control characters replaced.
fn shown(value: &str) -> String {
    let mut chars = value.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
    let mut out: String = chars.by_ref().take(SHOWN_CHARS).collect();
    if chars.next().is_some() {
        out.push('…');
    }
    out
}

/// A detail about an op that is none of the forms of its kind.
fn no_form(forms: &str, held: &HeldOp) -> Reject {
    let shown = shown(&String::from_utf8_lossy(&held.payload));
    Reject::app(code::BAD_PAYLOAD, format!("data: exactly one of {forms} is allowed, got {shown}"))
}

/// Who acts: the participant of the token, else the principal. Refused if it is too long for a state.
fn actor(held: &HeldOp) -> Result<&str, Reject> {
    let name = if held.participant.is_empty() { &held.principal } else { &held.participant };
    let fits = !name.is_empty() && name.len() <= NAME_BYTES_MAX;
    fits.then_some(name.as_str()).ok_or_else(|| {
        let detail = format!("participant: {} bytes; 1 to {NAME_BYTES_MAX} are allowed", name.len());
        Reject::app(code::TOO_MUCH, detail)
    })
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
