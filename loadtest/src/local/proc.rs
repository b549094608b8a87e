//! One process under test: started with its output in a file, signalled by id, killed when dropped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

/// Clock ticks a second of `/proc/<pid>/stat`, the same on every Linux that matters.
const TICKS: f64 = 100.0;

pub struct Proc {
    pub name: String,
    child: Child,
    pid: Pid,
    pub log: PathBuf,
    program: PathBuf,
    args: Vec<String>,
}

impl Proc {
    /// Starts `program`; its output goes to `<dir>/<name>.log`.
    pub fn spawn(name: &str, program: &Path, args: &[String], dir: &Path) -> anyhow::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let child = start(program, args, &log)?;
        let pid = id(&child)?;
        Ok(Proc { name: name.to_owned(), child, pid, log, program: program.to_owned(), args: args.to_vec() })
    }

    /// SIGKILL, and waits for the end.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.with_context(|| format!("killing {}", self.name))
    }

    /// SIGKILL without waiting: the moment counts.
    pub fn kill_now(&mut self) -> anyhow::Result<()> {
        Ok(self.child.start_kill()?)
    }

    /// Starts it again with the same arguments.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.child = start(&self.program, &self.args, &self.log)?;
        self.pid = id(&self.child)?;
        Ok(())
    }

    /// Value of a `--flag` it was started with.
    pub fn flag(&self, name: &str) -> Option<&str> {
        let at = self.args.iter().position(|a| a.strip_prefix("--") == Some(name))?;
        self.args.get(at + 1).map(String::as_str)
    }

    /// SIGTERM: it is asked to leave.
    pub fn terminate(&self) -> anyhow::Result<()> {
        Ok(kill_process(self.pid, Signal::TERM)?)
    }

    /// How it ended, by itself, within `max`.
    pub async fn ended(&mut self, max: Duration) -> anyhow::Result<ExitStatus> {
        let ended = tokio::time::timeout(max, self.child.wait()).await;
        Ok(ended.with_context(|| format!("{} still runs after {max:?}", self.name))??)
    }

    pub fn stop(&self) -> anyhow::Result<()> {
        Ok(kill_process(self.pid, Signal::STOP)?)
    }

    pub fn cont(&self) -> anyhow::Result<()> {
        Ok(kill_process(self.pid, Signal::CONT)?)
    }

    /// Fails, with the end of the log, if the process has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(8).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            anyhow::bail!("{} ended ({status}):\n{}", self.name, tail.join("\n"));
        }
        Ok(())
    }

    /// User and system time so far, seconds.
    pub fn cpu_s(&self) -> f64 {
        cpu_s(&self.pid.as_raw_nonzero().to_string())
    }

    /// Resident memory, bytes.
    pub fn rss_bytes(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid.as_raw_nonzero())).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or("0");
        line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
    }
}

/// CPU of a process by its directory in /proc (`self` for this one).
pub fn cpu_s(pid: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    after.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum::<f64>() / TICKS
}

/// Of the whole machine since it started, in ticks: busy and all.
pub fn machine() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
    let all: f64 = ticks.iter().sum();
    // idle and iowait
    (all - ticks.iter().skip(3).take(2).sum::<f64>(), all)
}

fn start(program: &Path, args: &[String], log: &Path) -> anyhow::Result<Child> {
    let out = File::options().create(true).append(true).open(log)?;
    let err = out.try_clone()?;
    Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))
}

fn id(child: &Child) -> anyhow::Result<Pid> {
    child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).context("the process has no id")
}
