//! A chess game without seats and clocks: legal moves, SAN, FEN, and every way in which a move ends a game.
//!
//! Moves come in UCI; castling is taken as `e1g1` (standard) and as `e1h1` (king takes rook), and recorded as `e1g1`.

use cozy_chess::{
    BitBoard, Board, Color, Move, Piece, Rank, Square,
    util::{display_uci_move, parse_uci_move},
};

use super::san::san;

/// Longest game in plies; the longest tournament game on record has 538 plies. A snapshot then lists 1,000 moves in
/// about 8 KB, below the payload limit of 16 KiB.
pub const PLIES_MAX: usize = 1_000;
/// Plies without capture or pawn move that end a game (50 moves of both sides).
const FIFTY_MOVES_PLIES: u8 = 100;

/// How a move ended the game.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The mover mated.
    Mate,
    /// The opponent cannot move and is not in check.
    Stalemate,
    /// The third time of this position.
    Repetition,
    /// 50 moves of both sides without capture or pawn move.
    Fifty,
    /// Neither side can mate.
    Material,
    /// [`PLIES_MAX`] is reached.
    Length,
}

impl End {
    /// The word of the event.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Mate => "mate",
            Self::Stalemate => "stalemate",
            Self::Repetition => "repetition",
            Self::Fifty => "fifty",
            Self::Material => "material",
            Self::Length => "length",
        }
    }
}

/// What a legal move looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Played {
    /// UCI, castling as `e1g1`.
    pub uci: String,
    /// Standard algebraic notation with `+` or `#`.
    pub san: String,
    /// The position afterwards.
    pub fen: String,
    /// Whether the game is over.
    pub end: Option<End>,
}

/// The moves so far and the position they lead to.
#[derive(Clone, Debug)]
pub struct Position {
    board: Board,
    moves: Vec<String>,
    /// Keys of the positions since the last capture or pawn move, the current one last: at most 101.
    keys: Vec<u64>,
}

impl Default for Position {
    fn default() -> Self {
        let board = Board::default();
        Self { keys: vec![key(&board)], board, moves: Vec::new() }
    }
}

impl Position {
    /// 0 = white to move.
    #[must_use]
    pub fn side(&self) -> usize {
        self.board.side_to_move() as usize
    }

    /// UCI moves so far.
    #[must_use]
    pub fn moves(&self) -> &[String] {
        &self.moves
    }

    /// The position.
    #[must_use]
    pub fn fen(&self) -> String {
        self.board.to_string()
    }

    /// Whether `side` has nothing but its king.
    #[must_use]
    pub fn is_bare(&self, side: usize) -> bool {
        let color = if side == 0 { Color::White } else { Color::Black };
        self.board.colors(color).len() == 1
    }

    /// What playing `uci` would give; `None`: not a legal move. Changes nothing.
    #[must_use]
    pub fn preview(&self, uci: &str) -> Option<Played> {
        let mv = self.parse(uci)?;
        let mut next = self.clone();
        next.push(mv);
        let (uci, san) = (next.moves.last()?.clone(), san(&self.board, mv, &next.board));
        Some(Played { uci, san, fen: next.fen(), end: next.end() })
    }

    /// Plays a move; `false`: it is not legal, nothing changed.
    pub fn play(&mut self, uci: &str) -> bool {
        self.parse(uci).map(|mv| self.push(mv)).is_some()
    }

    fn parse(&self, uci: &str) -> Option<Move> {
        let sized = uci.is_ascii() && (4..=5).contains(&uci.len());
        let mv = sized.then(|| parse_uci_move(&self.board, uci).ok())??;
        self.board.is_legal(mv).then_some(mv)
    }

    fn push(&mut self, mv: Move) {
        self.moves.push(display_uci_move(&self.board, mv).to_string());
        self.board.play(mv);
        if self.board.halfmove_clock() == 0 {
            self.keys.clear();
        }
        self.keys.push(key(&self.board));
    }

    fn end(&self) -> Option<End> {
        let board = &self.board;
        if !board.generate_moves(|_| true) {
            return Some(if board.checkers().is_empty() { End::Stalemate } else { End::Mate });
        }
        let here = self.keys.last();
        if is_dead(board) {
            Some(End::Material)
        } else if self.keys.iter().filter(|k| Some(*k) == here).count() >= 3 {
            Some(End::Repetition)
        } else if board.halfmove_clock() >= FIFTY_MOVES_PLIES {
            Some(End::Fifty)
        } else {
            (self.moves.len() >= PLIES_MAX).then_some(End::Length)
        }
    }
}

/// FIDE's "same position": the en passant square counts only where it can be used.
fn key(board: &Board) -> u64 {
    let Some(file) = board.en_passant() else { return board.hash_without_ep() };
    let target = Square::new(file, Rank::Sixth.relative_to(board.side_to_move()));
    let pawns = board.colored_pieces(board.side_to_move(), Piece::Pawn);
    let usable = pawns.into_iter().any(|from| board.is_legal(Move { from, to: target, promotion: None }));
    if usable { board.hash() } else { board.hash_without_ep() }
}

/// Bare kings, one minor piece, or bishops all on one colour.
fn is_dead(board: &Board) -> bool {
    let bishops = board.pieces(Piece::Bishop);
    let minors = bishops | board.pieces(Piece::Knight);
    let rest = board.occupied() ^ minors ^ board.pieces(Piece::King);
    let one_colour =
        |squares: BitBoard| squares.is_subset(BitBoard::DARK_SQUARES) || squares.is_subset(BitBoard::LIGHT_SQUARES);
    rest.is_empty() && (minors.len() <= 1 || (minors == bishops && one_colour(bishops)))
}

#[cfg(test)]
mod tests {
    use cozy_chess::util::parse_san_move;

    use super::*;

    /// The plies of a recorded game, up to a null move: an annotator's, not the players'.
    fn plies(text: &str) -> impl Iterator<Item = &str> {
        let words = text.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split_whitespace().next());
        words.take_while(|uci| *uci != "0000")
    }

    fn after(moves: &str) -> (Position, Option<End>) {
        let mut position = Position::default();
        let mut end = None;
        for uci in moves.split_whitespace() {
            let played = position.preview(uci).unwrap_or_else(|| panic!("{uci} in {}", position.fen()));
            end = played.end;
            assert!(position.play(uci));
            assert_eq!(position.fen(), played.fen);
        }
        (position, end)
    }

    #[test]
    fn every_recorded_game_replays_and_its_san_reads_back() {
        let mut games = 0;
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/games")).expect("games") {
            let text = std::fs::read_to_string(entry.expect("entry").path()).expect("game");
            let mut position = Position::default();
            for uci in plies(&text) {
                let played = position.preview(uci).unwrap_or_else(|| panic!("{uci} in {}", position.fen()));
                let back = parse_san_move(&position.board, &played.san).expect("san");
                assert_eq!(Some(back), position.parse(uci), "{}", played.san);
                assert_eq!(played.uci, uci);
                assert!(position.play(uci));
            }
            assert!(position.moves.len() >= 10);
            games += 1;
        }
        assert_eq!(games, 10);
    }

    #[test]
    fn castling_is_taken_in_both_notations() {
        for uci in ["e1g1", "e1h1"] {
            let (position, _) = after("e2e4 e7e5 g1f3 b8c6 f1c4 f8c5");
            let played = position.preview(uci).expect("castles");
            assert_eq!((played.uci.as_str(), played.san.as_str()), ("e1g1", "O-O"));
        }
    }

    #[test]
    fn every_end_is_seen() {
        assert_eq!(after("f2f3 e7e5 g2g4 d8h4").1, Some(End::Mate));
        let knights = "g1f3 g8f6 f3g1 f6g8 ";
        assert_eq!(after(knights).1, None);
        assert_eq!(after(&knights.repeat(2)).1, Some(End::Repetition));
        let stalemate =
            "e2e3 a7a5 d1h5 a8a6 h5a5 h7h5 h2h4 a6h6 a5c7 f7f6 c7d7 e8f7 d7b7 d8d3 b7b8 d3h7 b8c8 f7g6 c8e6";
        assert_eq!(after(stalemate).1, Some(End::Stalemate));
    }

    #[test]
    fn dead_positions_are_known() {
        let dead = |fen: &str| is_dead(&Board::from_fen(fen, false).expect("fen"));
        assert!(dead("8/8/4k3/8/8/3K4/8/8 w - - 0 1"));
        assert!(dead("8/8/4k3/8/8/3KN3/8/8 w - - 0 1"));
        assert!(dead("8/8/4kb2/8/8/3K4/4B3/8 w - - 0 1") != dead("8/8/4kb2/8/8/3K4/3B4/8 w - - 0 1"));
        assert!(!dead("8/8/4kn2/8/8/3KN3/8/8 w - - 0 1"));
        assert!(!dead("8/8/4kp2/8/8/3K4/8/8 w - - 0 1"));
    }

    #[test]
    fn fifty_moves_end_a_game() {
        let board = Board::from_fen("8/8/4k3/8/8/3K4/7R/8 w - - 99 90", false).expect("fen");
        let position = Position { board, ..Position::default() };
        assert_eq!(position.preview("h2h1").and_then(|p| p.end), Some(End::Fifty));
        assert_eq!(position.preview("h2h9"), None);
    }

    #[test]
    fn text_that_is_no_move_is_refused() {
        for text in ["", "e2", "e2e5", "e2e4q", "e2e4 ", "é2e4", "0000", "e7e8q", "e2e4\n", "🦀"] {
            assert_eq!(Position::default().preview(text), None, "{text}");
        }
    }
}
