//! What every command does first, and how a long-running one ends.

use std::{future::Future, io::IsTerminal as _};

use anyhow::Context as _;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tracing_subscriber::EnvFilter;

/// Variable with the log filter, e.g. `debug` or `holdfast=trace,info`.
pub const LOG_VARIABLE: &str = "HOLDFAST_LOG";

/// TLS provider and descriptor limit, before anything else.
///
/// # Errors
/// The TLS provider cannot be installed.
pub fn prepare() -> anyhow::Result<()> {
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        anyhow::bail!("a TLS provider is installed already");
    }
    // Each connection is a descriptor. What the hard limit does not allow shows up as refused connections, not here.
    if let Ok((_, hard)) = rlimit::Resource::NOFILE.get() {
        let _ = rlimit::Resource::NOFILE.set(hard, hard);
    }
    Ok(())
}

/// Logs to standard error: for people on a terminal (and always for `people`), one JSON object a line otherwise.
///
/// # Errors
/// The filter in `HOLDFAST_LOG` is not valid.
pub fn logs(people: bool, default: &str) -> anyhow::Result<()> {
    let text = std::env::var(LOG_VARIABLE).unwrap_or_else(|_| default.into());
    let filter = EnvFilter::try_new(&text).with_context(|| format!("{LOG_VARIABLE}=\"{text}\" is not a log filter"))?;
    let terminal = std::io::stderr().is_terminal();
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if terminal || people {
        logs.with_ansi(terminal).with_target(false).compact().init();
    } else {
        logs.json().flatten_event(true).init();
    }
    Ok(())
}

/// A runtime for a part of the product: as many threads as cores.
///
/// # Errors
/// The operating system gives no thread.
pub fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_multi_thread().enable_all().build().context("no runtime")
}

/// A runtime for one command that asks something and ends.
pub(super) fn small_runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("no runtime")
}

/// How urgently a process is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Not at all.
    No,
    /// Gracefully.
    Gracefully,
    /// Still in order, but now.
    Hurried,
}

/// Tells the parts of a process that it is to stop.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<Stop>);

impl Shutdown {
    /// Completes when the process is to stop (or whoever said so is gone).
    pub async fn wait(mut self) {
        let _ = self.0.wait_for(|stop| *stop >= Stop::Gracefully).await;
    }

    /// Completes when it is to hurry. Never, if whoever could say so is gone.
    pub async fn hurried(mut self) {
        if self.0.wait_for(|stop| *stop >= Stop::Hurried).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// A shutdown of its own, and what fires it.
    #[must_use]
    pub fn channel() -> (watch::Sender<Stop>, Self) {
        let (stop, stopped) = watch::channel(Stop::No);
        (stop, Self(stopped))
    }
}

/// Runs a part until it ends by itself or a SIGTERM or SIGINT has made it end gracefully; a second one ends it at once,
/// or only hurries it (`hurries`), and then the third does.
///
/// # Errors
/// What the part says.
pub async fn until_signal<F>(hurries: bool, part: impl FnOnce(Shutdown) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (stop, shutdown) = Shutdown::channel();
    let mut part = std::pin::pin!(part(shutdown));
    let stages: &[Stop] = if hurries { &[Stop::Gracefully, Stop::Hurried] } else { &[Stop::Gracefully] };
    for stage in stages {
        tokio::select! {
            ended = &mut part => return ended,
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!(?stage, "a signal to stop; the next one hurries");
        stop.send_replace(*stage);
    }
    tokio::select! {
        ended = &mut part => return ended,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::warn!("one more signal: stopping at once");
    Ok(())
}

/// Writes a file that only its owner can read; an existing one is not overwritten.
pub(super) fn write_secret(path: &std::path::Path, text: &str) -> anyhow::Result<()> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.with_context(|| format!("{} cannot be created", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("{} cannot be written", path.display()))
}
