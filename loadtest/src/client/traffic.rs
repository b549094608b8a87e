//! What the clients of a session do: real games, hands raised and lowered, edits; all from the seed.

use std::sync::Arc;

use rand::Rng as _;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use serde::Deserialize;

/// Games people played, one ply a line in UCI.
const GAMES: [&str; 10] = [
    include_str!("../../games/01-kasparov-deep-blue-1997-1.uci"),
    include_str!("../../games/02-kasparov-deep-blue-1997-2.uci"),
    include_str!("../../games/03-kasparov-deep-blue-1997-3.uci"),
    include_str!("../../games/04-kasparov-deep-blue-1997-4.uci"),
    include_str!("../../games/05-kasparov-deep-blue-1997-5.uci"),
    include_str!("../../games/06-kasparov-deep-blue-1997-6.uci"),
    include_str!("../../games/07-nepomniachtchi-liren-game1-1.uci"),
    include_str!("../../games/08-molinari-bordais-1979-1.uci"),
    include_str!("../../games/09-anastasian-lewis-1.uci"),
    include_str!("../../games/10-stockfish-learning-1.uci"),
];
/// A document stops growing here, so that snapshots stay small.
const DOCUMENT_CHARS: u64 = 400;

/// The kinds of session of the reference owner; the lease follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    Game,
    Meeting,
    Document,
}

impl Kind {
    /// The word of the protocol.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Game => "game",
            Kind::Meeting => "meeting",
            Kind::Document => "document",
        }
    }

    /// Seats of the two clients of each session.
    pub fn seat(self, parity: usize) -> &'static str {
        match (self, parity) {
            (Kind::Game, 0) => "white",
            (Kind::Game, _) => "black",
            (_, 0) => "p0",
            (_, _) => "p1",
        }
    }

    /// Lease of an owner that serves this kind, ms (design 1).
    pub fn lease_ms(self) -> u64 {
        match self {
            Kind::Game => 3_000,
            Kind::Meeting => 10_000,
            Kind::Document => 15_000,
        }
    }
}

/// Plies of the games that last at least `plies`, or of the longest.
pub fn games(plies: usize) -> Vec<Arc<[&'static str]>> {
    let all = GAMES.map(|text| text.lines().filter_map(ply).collect::<Arc<[&'static str]>>());
    let long: Vec<_> = all.iter().filter(|g| g.len() > plies).cloned().collect();
    if long.is_empty() { all.into_iter().max_by_key(|g| g.len()).into_iter().collect() } else { long }
}

fn ply(line: &'static str) -> Option<&'static str> {
    line.split_whitespace().next().filter(|word| !word.starts_with('#'))
}

/// One seat's part in its session.
pub enum Plan {
    Game {
        moves: Arc<[&'static str]>,
        parity: usize,
        /// Plies on the board, as far as this client knows.
        plies: usize,
    },
    Meeting {
        up: bool,
    },
    Document {
        /// Length at the version this client has.
        chars: u64,
        rng: Box<SmallRng>,
    },
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Shown {
    ins: Option<(u64, String)>,
    del: Option<(u64, u64)>,
    text: Option<String>,
    moves: Option<Vec<serde_json::Value>>,
    #[serde(rename = "move")]
    played: Option<serde_json::Value>,
}

impl Plan {
    pub fn new(kind: Kind, parity: usize, moves: &Arc<[&'static str]>, seed: u64) -> Self {
        match kind {
            Kind::Game => Plan::Game { moves: moves.clone(), parity, plies: 0 },
            Kind::Meeting => Plan::Meeting { up: false },
            Kind::Document => Plan::Document { chars: 0, rng: Box::new(SmallRng::seed_from_u64(seed)) },
        }
    }

    /// The next op's payload. `None`: not this seat's turn, or the game is over.
    pub fn next(&mut self) -> Option<String> {
        match self {
            Plan::Game { moves, parity, plies } if *plies % 2 == *parity => {
                moves.get(*plies).map(|m| format!(r#"{{"move":"{m}"}}"#))
            }
            Plan::Game { .. } => None,
            Plan::Meeting { up } => {
                *up = !*up;
                Some(format!(r#"{{"hand":{up}}}"#))
            }
            Plan::Document { chars, rng } if *chars > DOCUMENT_CHARS => {
                Some(format!(r#"{{"del":[{},4]}}"#, rng.random_range(0..*chars - 4)))
            }
            Plan::Document { chars, rng } => {
                let word = ["move ", "held ", "lost ", "found "][rng.random_range(0..4)];
                Some(format!(r#"{{"ins":[{},"{word}"]}}"#, rng.random_range(0..=*chars)))
            }
        }
    }

    /// Whether an op may follow one that is not settled yet.
    pub fn pipelines(&self) -> bool {
        !matches!(self, Plan::Game { .. })
    }

    /// An event in version order.
    pub fn handle_event(&mut self, data: &str) {
        if matches!(self, Plan::Meeting { .. }) {
            return;
        }
        let shown: Shown = serde_json::from_str(data).unwrap_or_default();
        match self {
            Plan::Game { plies, .. } if shown.played.is_some() => *plies += 1,
            Plan::Document { chars, .. } => {
                *chars += shown.ins.map_or(0, |(_, text)| text.chars().count() as u64);
                *chars = chars.saturating_sub(shown.del.map_or(0, |(_, n)| n));
            }
            _ => {}
        }
    }

    /// The whole state.
    pub fn handle_snapshot(&mut self, data: &str) {
        let shown: Shown = serde_json::from_str(data).unwrap_or_default();
        match self {
            Plan::Game { plies, .. } => *plies = shown.moves.map_or(0, |m| m.len()),
            Plan::Document { chars, .. } => *chars = shown.text.map_or(0, |t| t.chars().count() as u64),
            Plan::Meeting { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_seats_play_a_game_out() {
        let game = &games(30)[0];
        assert!(game.len() > 30 && game.iter().all(|m| (4..=5).contains(&m.len())));
        let mut seats = [0, 1].map(|p| Plan::new(Kind::Game, p, game, 1));
        assert!(seats[1].next().is_none());
        for ply in 0..game.len() {
            assert!(seats[ply % 2].next().unwrap().contains(game[ply]));
            for seat in &mut seats {
                seat.handle_event(r#"{"move":"e2e4"}"#);
            }
        }
        assert!(seats.iter_mut().all(|s| s.next().is_none()));
    }

    #[test]
    fn edits_stay_inside_the_text() {
        let mut plan = Plan::new(Kind::Document, 0, &games(0)[0], 7);
        for _ in 0..500 {
            let edit = plan.next().unwrap();
            plan.handle_event(&edit);
        }
        assert!(matches!(plan, Plan::Document { chars, .. } if chars <= DOCUMENT_CHARS + 6));
    }
}
