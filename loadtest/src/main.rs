//! Load, faults and the verifier for Holdfast (design section 12).
//!
//! Shares no code with the server: its clients know the protocol page only, and its judge reads the store itself.

mod args;
mod client;
mod clock;
mod dump;
mod journal;
mod local;
mod record;
mod report;
mod scenario;
mod stats;
mod verify;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};

use args::{Cli, What};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.what {
        What::Verify { journals, record } => judge(&journals, &record),
        scenario => run(scenario),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("could not run: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Dropping the scenario, at a signal, drops the cluster and with it every process.
fn run(scenario: What) -> anyhow::Result<bool> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate())?;
        tokio::select! {
            done = scenario::run(scenario) => done,
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
            _ = term.recv() => anyhow::bail!("terminated"),
        }
    })
}

fn judge(journals: &[PathBuf], record: &Path) -> anyhow::Result<bool> {
    let open = |path: &Path| {
        Ok::<_, anyhow::Error>(BufReader::new(File::open(path).with_context(|| path.display().to_string())?))
    };
    let mut lines = Vec::new();
    for path in journals {
        lines.extend(journal::read(open(path)?).with_context(|| path.display().to_string())?);
    }
    let verdict = verify::judge(&lines, &dump::decode(&dump::read(open(record)?)?)?);
    let mut report = report::Report::default();
    report.verdict(&verdict, &[]);
    report.print();
    Ok(verdict.clean())
}
