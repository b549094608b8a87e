//! Seeded simulation.
fn main() {}
