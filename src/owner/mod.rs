//! The reference owner: the authority over sessions of three kinds.

pub mod kinds;
