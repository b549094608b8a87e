//! The command line: arguments to configuration to a running part.
//!
//! [`main`] does what every command needs first (TLS provider, descriptor limit, logs), then hands over. Nothing here
//! decides; a command is a few lines over the library.

mod check;
pub mod client;
mod drain;
mod http;
mod limits;
mod operator;
mod play;
mod run;
mod sessions;
pub mod startup;
pub mod token;

use std::{path::PathBuf, process::ExitCode};

use clap::{CommandFactory as _, Parser, Subcommand};

/// Exit status for a mistake in the arguments or the configuration, as clap's own.
const USAGE: u8 = 2;

/// A stateless edge gateway for stateful real-time sessions.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Everything in one process, in memory: gateway, placement, three owners and a game to play.
    Dev(crate::dev::DevArgs),
    /// The gateway.
    Gateway(ConfigArg),
    /// The placement service.
    Placement(ConfigArg),
    /// The reference owner: games, meetings, documents.
    Owner(ConfigArg),
    /// Creates and shows sessions.
    #[command(subcommand)]
    Sessions(sessions::SessionsCommand),
    /// Signs a token for a client, with an HS256 key of a JWK set.
    Token(token::TokenArgs),
    /// Connects as a client, plays moves and prints what comes back.
    Play(play::PlayArgs),
    /// Checks a configuration and prints what holds in the end.
    CheckConfig(check::CheckArgs),
    /// What a running process says of itself.
    Status(operator::AdminArg),
    /// The ops a running gateway holds.
    Held(operator::AdminArg),
    /// The clients connected to a gateway, with the addresses it sees.
    Connections(operator::AdminArg),
    /// Sends everybody away from a gateway, or all sessions from an owner, without losing anything; then it ends.
    Drain(drain::DrainArgs),
    /// What a running gateway admits, shown and changed.
    #[command(subcommand)]
    Limits(limits::LimitsCommand),
    /// Completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Where the configuration is.
#[derive(Debug, clap::Args)]
struct ConfigArg {
    /// TOML file; without it the defaults hold. HOLDFAST_<SECTION>__<KEY> overrides one key.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The program.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match startup::prepare().and_then(|()| dispatch(cli.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("holdfast: {e:#}");
            ExitCode::from(if e.is::<crate::config::ConfigError>() { USAGE } else { 1 })
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Dev(args) => crate::dev::main(args),
        Command::Gateway(arg) => run::gateway(arg.config.as_deref()),
        Command::Placement(arg) => run::placement(arg.config.as_deref()),
        Command::Owner(arg) => run::owner(arg.config.as_deref()),
        Command::Sessions(command) => startup::small_runtime()?.block_on(sessions::main(command)),
        Command::Token(args) => token::main(&args),
        Command::Play(args) => startup::small_runtime()?.block_on(play::main(args)),
        Command::CheckConfig(args) => check::main(&args),
        Command::Status(arg) => startup::small_runtime()?.block_on(operator::status(&arg)),
        Command::Connections(arg) => startup::small_runtime()?.block_on(operator::connections(&arg)),
        Command::Held(arg) => startup::small_runtime()?.block_on(operator::held(&arg)),
        Command::Drain(args) => startup::small_runtime()?.block_on(drain::main(&args)),
        Command::Limits(command) => startup::small_runtime()?.block_on(limits::main(command)),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "holdfast", &mut std::io::stdout());
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
