//! Edits of a text and how they move over each other. Positions and lengths count Unicode scalar values.
//!
//! An edit says where it is in the text *at its base version*. The owner moves it over every edit recorded since:
//! * an insertion at the very place of an earlier-recorded one lands behind it; inside a deleted range, where the range was;
//! * a deletion never takes what others inserted: it splits around it; what is gone already is not deleted twice.

use serde::{Deserialize, Serialize};

/// Most pieces into which one deletion may split: each becomes an event, and one write holds them all (etcd allows 128
/// operations in a transaction).
pub const PIECES_MAX: usize = 16;

/// The geometry of a recorded edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Edit {
    /// `len` characters inserted before position `at`.
    #[serde(rename = "i")]
    Ins {
        /// Position.
        at: usize,
        /// Characters.
        len: usize,
    },
    /// `len` characters deleted from position `at`.
    #[serde(rename = "d")]
    Del {
        /// Position.
        at: usize,
        /// Characters.
        len: usize,
    },
}

impl Edit {
    /// The length of the text before this edit, given the length after it.
    #[must_use]
    pub fn length_before(self, after: usize) -> usize {
        match self {
            Self::Ins { len, .. } => after.saturating_sub(len),
            Self::Del { len, .. } => after + len,
        }
    }

    /// Moves an insertion point over this edit.
    #[must_use]
    pub fn move_point(self, point: usize) -> usize {
        match self {
            Self::Ins { at, len } if at <= point => point + len,
            Self::Ins { .. } => point,
            Self::Del { at, len } => point - point.saturating_sub(at).min(len),
        }
    }

    /// Moves half-open ranges of characters over this edit: they may split, shrink or vanish.
    #[must_use]
    pub fn move_ranges(self, ranges: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let moved = ranges.iter().flat_map(|&(from, to)| match self {
            Self::Ins { at, len } if at <= from => [(from + len, to + len), (0, 0)],
            Self::Ins { at, .. } if at >= to => [(from, to), (0, 0)],
            Self::Ins { at, len } => [(from, at), (at + len, to + len)],
            Self::Del { .. } => [(self.move_point(from), self.move_point(to)), (0, 0)],
        });
        moved.filter(|(from, to)| from < to).collect()
    }
}

/// Byte offset of a position; the end of the text if the position lies beyond it.
#[must_use]
pub fn byte_at(text: &str, position: usize) -> usize {
    text.char_indices().nth(position).map_or(text.len(), |(byte, _)| byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_move() {
        let ins = Edit::Ins { at: 3, len: 2 };
        assert_eq!([2, 3, 4].map(|p| ins.move_point(p)), [2, 5, 6]);
        let del = Edit::Del { at: 3, len: 2 };
        assert_eq!([2, 3, 4, 5, 6].map(|p| del.move_point(p)), [2, 3, 3, 3, 4]);
        assert_eq!(ins.length_before(7), 5);
        assert_eq!(del.length_before(5), 7);
    }

    #[test]
    fn ranges_split_shrink_and_vanish() {
        let ins = Edit::Ins { at: 3, len: 2 };
        assert_eq!(ins.move_ranges(&[(1, 3)]), [(1, 3)]);
        assert_eq!(ins.move_ranges(&[(3, 4)]), [(5, 6)]);
        assert_eq!(ins.move_ranges(&[(1, 5)]), [(1, 3), (5, 7)]);
        let del = Edit::Del { at: 3, len: 2 };
        assert_eq!(del.move_ranges(&[(3, 5)]), []);
        assert_eq!(del.move_ranges(&[(1, 4), (6, 8)]), [(1, 3), (4, 6)]);
    }

    #[test]
    fn positions_count_scalar_values() {
        assert_eq!(byte_at("aé🦀b", 3), 7);
        assert_eq!(byte_at("aé", 9), 3);
    }
}
