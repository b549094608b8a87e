//! `holdfast dev`: everything in one process, on a directory and a store in memory.

use crate::config::Span;

/// Options of `holdfast dev`.
#[derive(Debug, clap::Args)]
pub struct DevArgs {
    /// Port of the gateway; 0 = a free one.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Kills an owner now and then, the one of a game that two built-in players play: "20s".
    #[arg(long, value_name = "EVERY")]
    kill_owner_every: Option<Span>,
}

/// Runs until Ctrl-C.
///
/// # Errors
/// A port is in use.
pub fn main(_args: DevArgs) -> anyhow::Result<()> {
    anyhow::bail!("not there yet")
}
