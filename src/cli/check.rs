//! `holdfast check-config`: is it right, and what holds in the end?

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Serialize, de::DeserializeOwned};

use crate::config;

/// What to check.
#[derive(Debug, clap::Args)]
pub(super) struct CheckArgs {
    /// Whose configuration it is.
    part: Part,
    /// The file; without it the defaults are printed.
    file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Part {
    Gateway,
    Owner,
    Placement,
}

pub(super) fn main(args: &CheckArgs) -> anyhow::Result<()> {
    match args.part {
        Part::Gateway => print(args, |c: &config::Gateway| {
            c.run_config().map(|_| ())?;
            if c.auth.jwks.is_empty() { Ok(()) } else { c.listeners().map(|_| ()) }
        }),
        Part::Owner => print(args, |_: &config::Owner| Ok(())),
        Part::Placement => print(args, |_: &config::Placement| Ok(())),
    }
}

fn print<T: DeserializeOwned + Serialize>(
    args: &CheckArgs,
    check: impl FnOnce(&T) -> Result<(), config::ConfigError>,
) -> anyhow::Result<()> {
    let config: T = config::load(args.file.as_deref())?;
    check(&config)?;
    print!("{}", config::effective(&config)?);
    Ok(())
}
