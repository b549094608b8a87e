//! Standard algebraic notation.

use cozy_chess::{Board, File, Move, Piece, Rank, Square};

/// The notation of a legal move that leads from `board` to `next`.
pub fn san(board: &Board, mv: Move, next: &Board) -> String {
    let mut out = san_move(board, mv);
    if !next.checkers().is_empty() {
        out.push(if next.generate_moves(|_| true) { '+' } else { '#' });
    }
    out
}

fn san_move(board: &Board, mv: Move) -> String {
    let Some(piece) = board.piece_on(mv.from) else { return String::new() };
    let us = board.side_to_move();
    let castles = board.color_on(mv.to) == Some(us);
    if castles {
        return if mv.to.file() > mv.from.file() { "O-O" } else { "O-O-O" }.to_owned();
    }
    let en_passant = piece == Piece::Pawn && mv.from.file() != mv.to.file();
    let captures = en_passant || board.color_on(mv.to).is_some();
    let mut out = String::with_capacity(8);
    if piece == Piece::Pawn {
        if captures {
            out.push_str(&mv.from.file().to_string());
        }
    } else {
        out.push_str(&piece.to_string().to_uppercase());
        out.push_str(&disambiguation(board, mv, piece));
    }
    if captures {
        out.push('x');
    }
    out.push_str(&mv.to.to_string());
    if let Some(promotion) = mv.promotion {
        out.push('=');
        out.push_str(&promotion.to_string().to_uppercase());
    }
    out
}

/// File, rank or both of the mover, where another piece of its kind could go to the same square.
fn disambiguation(board: &Board, mv: Move, piece: Piece) -> String {
    let twins = board.colored_pieces(board.side_to_move(), piece) ^ mv.from.bitboard();
    let rivals: Vec<Square> = twins.into_iter().filter(|from| board.is_legal(Move { from: *from, ..mv })).collect();
    let shares = |f: &dyn Fn(&Square) -> bool| rivals.iter().any(f);
    let (file, rank): (File, Rank) = (mv.from.file(), mv.from.rank());
    if rivals.is_empty() {
        String::new()
    } else if !shares(&|s| s.file() == file) {
        file.to_string()
    } else if !shares(&|s| s.rank() == rank) {
        rank.to_string()
    } else {
        mv.from.to_string()
    }
}
