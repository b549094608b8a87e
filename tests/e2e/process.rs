//! Child processes that never outlive the test.

use std::{
    fs::File,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{OnceLock, mpsc},
    time::{Duration, Instant},
};

/// How long anything may take before a test gives up: far above what a busy machine with two cores needs.
pub const DEADLINE: Duration = Duration::from_secs(45);
/// Pause between two looks at a condition.
pub const LOOK_EVERY: Duration = Duration::from_millis(25);

/// A process; killed when dropped, and by the kernel when the test program ends in any way.
pub struct Process {
    child: Child,
    log: PathBuf,
}

type Job = Box<dyn FnOnce() + Send>;

/// Starts children from one thread that lives as long as the program: `--pdeathsig` is about the thread that started them.
fn on_spawner<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    static SPAWNER: OnceLock<mpsc::SyncSender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, queue) = mpsc::sync_channel::<Job>(16);
        std::thread::spawn(move || queue.into_iter().for_each(|job| job()));
        jobs
    });
    let (answer, done) = mpsc::sync_channel(1);
    spawner.send(Box::new(move || drop(answer.send(job())))).unwrap();
    done.recv().unwrap()
}

impl Process {
    /// Starts `program` with its output in `log`.
    pub fn start<S: AsRef<str>>(program: &str, args: &[S], log: PathBuf) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", program]);
        command.args(args.iter().map(AsRef::as_ref));
        command.env("HOLDFAST_LOG", "info").env("RUST_BACKTRACE", "1");
        let out = File::options().create(true).append(true).open(&log).unwrap();
        command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
        let child = on_spawner(move || command.spawn()).unwrap();
        Self { child, log }
    }

    /// What it printed so far.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        let by = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(Instant::now() < by, "still running:\n{}", self.output());
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Sends a signal by name (`KILL`, `STOP`, `CONT`, `TERM`).
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
        assert!(sent.success(), "kill -s {name} {pid}");
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let output = self.output();
            let tail: Vec<&str> = output.lines().rev().take(25).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            eprintln!("--- {} ---\n{}", self.log.display(), tail.join("\n"));
        }
    }
}

/// A fresh directory. Those of test runs that have ended are removed first: a run that shares one until its end cannot.
pub fn scratch() -> tempfile::TempDir {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for entry in std::fs::read_dir(root).unwrap().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|n| n.strip_prefix("e2e-")).and_then(|n| n.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // another run may be doing the same
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let prefix = format!("e2e-{}-", std::process::id());
    tempfile::Builder::new().prefix(&prefix).tempdir_in(root).unwrap()
}

/// A port that was free a moment ago, given once per process, below the range from which the kernel takes the ports of
/// outgoing connections (32,768 and up): those would take it before its server listens.
pub fn free_port() -> u16 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let from = std::process::id().wrapping_mul(61);
    loop {
        let n = from.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 22_000;
        let port = 10_000 + u16::try_from(n).unwrap_or_default();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The program under test, run to its end: status and everything it printed.
pub fn holdfast(args: &[&str]) -> (ExitStatus, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_holdfast")).args(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status, String::from_utf8_lossy(&text).into_owned())
}

/// An etcd of one member with its own directory.
pub struct Etcd {
    process: Option<Process>,
    dir: PathBuf,
    port: u16,
    peer: u16,
}

impl Etcd {
    /// Starts one under `dir`.
    pub fn start(dir: &Path, name: &str) -> Self {
        let mut etcd = Self { process: None, dir: dir.join(name), port: free_port(), peer: free_port() };
        etcd.resume();
        etcd
    }

    /// Its client endpoint.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// SIGKILL; its data stays.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it on the same port and data.
    pub fn resume(&mut self) {
        let (client, peer) = (self.endpoint(), format!("http://127.0.0.1:{}", self.peer));
        let args = [
            "--name",
            "e",
            "--data-dir",
            self.dir.to_str().unwrap(),
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &format!("e={peer}"),
            "--log-level",
            "error",
            "--unsafe-no-fsync",
        ];
        self.process = Some(Process::start("etcd", &args, self.dir.with_extension("log")));
        self.ctl_until_ok(&["endpoint", "health"]);
    }

    /// Runs `etcdctl` until it succeeds; its output.
    pub fn ctl_until_ok(&self, args: &[&str]) -> String {
        let by = Instant::now() + DEADLINE;
        loop {
            let mut command = Command::new("etcdctl");
            command.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoint()]).args(args);
            let output = command.output().unwrap();
            if output.status.success() {
                return String::from_utf8_lossy(&output.stdout).into_owned();
            }
            assert!(Instant::now() < by, "etcdctl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Forgets all history up to now, so that old watches cannot resume.
    pub fn compact(&self) {
        let status = self.ctl_until_ok(&["endpoint", "status", "--write-out", "json"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let revision = status[0]["Status"]["header"]["revision"].to_string();
        self.ctl_until_ok(&["compact", &revision]);
    }
}
