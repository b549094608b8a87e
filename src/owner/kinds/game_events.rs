//! The JSON of a game: ops in, events and snapshots out, facts and checkpoints for the record (design 4.7).

use holdfast_core::{proto::HeldOp, record::Reject};
use serde::{Deserialize, Serialize};

use super::{
    clock::{Clock, Control},
    no_form, payload,
};

/// What a player asks for.
pub enum Op {
    /// `{"move":"e2e4"}`.
    Move(String),
    /// `{"resign":true}`.
    Resign,
    /// `{"draw":"offer"|"accept"}`.
    Draw(DrawWord),
}

/// Offer or accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrawWord {
    /// Offers a draw; where the opponent's offer stands, accepts it.
    Offer,
    /// Accepts the opponent's offer.
    Accept,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawOp {
    r#move: Option<String>,
    resign: Option<bool>,
    draw: Option<DrawWord>,
}

/// Reads an op's payload: exactly one of the three forms.
pub fn read_op(held: &HeldOp) -> Result<Op, Reject> {
    match payload(held)? {
        RawOp { r#move: Some(uci), resign: None, draw: None } => Ok(Op::Move(uci)),
        RawOp { r#move: None, resign: Some(true), draw: None } => Ok(Op::Resign),
        RawOp { r#move: None, resign: None, draw: Some(word) } => Ok(Op::Draw(word)),
        _ => Err(no_form(r#"{"move":uci}, {"resign":true}, {"draw":"offer"|"accept"}"#, held)),
    }
}

/// One number a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sides {
    /// Of white.
    pub white: u64,
    /// Of black.
    pub black: u64,
}

impl Sides {
    /// The number of a side; 0 is white.
    #[must_use]
    pub fn get(self, side: usize) -> u64 {
        if side == 0 { self.white } else { self.black }
    }

    /// Sets the number of a side.
    pub fn set(&mut self, side: usize, value: u64) {
        *(if side == 0 { &mut self.white } else { &mut self.black }) = value;
    }
}

/// What enters the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Event {
    /// A move, both clocks after it, and what the mover was charged and credited.
    Move {
        /// UCI, castling as `e1g1`.
        #[serde(rename = "move")]
        uci: String,
        /// Standard algebraic notation.
        san: String,
        /// The position afterwards.
        fen: String,
        /// Time left, microseconds.
        clock_us: Sides,
        /// Taken from the mover's clock, microseconds.
        charged_us: u64,
        /// Given for lag, microseconds.
        credited_us: u64,
    },
    /// The end.
    End(Outcome),
    /// A draw offer.
    Draw {
        /// Always `offer`; an acceptance is an end.
        draw: DrawWord,
        /// The seat that offers.
        by: String,
    },
}

/// How a game ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// `mate`, `stalemate`, `repetition`, `fifty`, `material`, `length`, `resign`, `agreement` or `flag`.
    pub end: String,
    /// The winner's seat; null: a draw.
    pub winner: Option<String>,
}

/// Why a move cost what it did: the record's audit facts, and the quota that follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Taken from the clock.
    pub charged_us: u64,
    /// Given back for lag.
    pub credited_us: u64,
    /// Lag believed.
    pub lag_us: u64,
    /// Where the round trip comes from (`ws_ping`, `tcp_info`, `quic`, `carried`, …).
    pub source: String,
    /// The mover's lag quota after the move.
    pub quota_us: u64,
    /// Whether delivery and arrival were both stamped here; if not the move is charged 0.
    pub measured: bool,
    /// Unowned time since the previous move (none of it is charged).
    pub outage_us: u64,
}

impl Facts {
    /// As the record keeps it.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A snapshot.
#[derive(Serialize)]
pub struct Shown<'a> {
    /// The position.
    pub fen: String,
    /// UCI moves so far.
    pub moves: &'a [String],
    /// Time left, microseconds; the side to move's as of its opponent's move.
    pub clock_us: Sides,
    /// The seat whose draw offer stands.
    pub draw: Option<&'static str>,
    /// How it ended, or null.
    pub result: Option<&'a Outcome>,
}

/// A checkpoint: the position follows from the moves.
#[derive(Serialize, Deserialize)]
pub struct Saved {
    /// Time control.
    pub control: Control,
    /// UCI moves so far.
    pub moves: Vec<String>,
    /// Both clocks and quotas.
    pub clock: Clock,
    /// Version of the newest move.
    pub last_ver: u64,
    /// Its commit time, microseconds.
    pub last_at_us: u64,
    /// Side whose draw offer stands.
    pub offer: Option<usize>,
    /// How it ended.
    pub outcome: Option<Outcome>,
}
