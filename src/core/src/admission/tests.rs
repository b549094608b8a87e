//! The rules of the gate, one test each.
