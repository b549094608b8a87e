//! `--local`: two etcds, placement, owners and gateways as real processes of this build on free loopback ports.
//!
//! Everything lives in one temporary directory (memory-backed where there is /dev/shm); processes and directory go when
//! the cluster is dropped, which `main` makes happen on SIGINT and SIGTERM too.

pub mod bare;
pub mod config;
pub mod hop;
pub mod http;
pub mod metrics;
pub mod placement;
pub mod proc;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use self::config::{Shared, Signer};
use self::hop::Hop;
use self::proc::Proc;
use crate::client::traffic::Kind;

/// A process that is not ready by then never will be.
const READY: Duration = Duration::from_secs(30);

#[derive(Clone, Copy)]
pub struct Ports {
    pub main: u16,
    pub admin: u16,
}

/// A Holdfast process and where its admin port is.
pub struct Node {
    pub proc: Proc,
    pub ports: Ports,
}

/// What to start.
pub struct Spec {
    pub gateways: usize,
    pub owners: usize,
    pub kinds: Vec<Kind>,
    pub cap: u32,
    pub fast_path: bool,
    pub tls: bool,
    /// Admissions a second of each gateway; `None`: the gateway's default.
    pub admit_per_s: Option<u64>,
    /// Whether the first owner's way to the directory can be cut.
    pub hop: bool,
}

pub struct Cluster {
    // processes first: they are dropped before their directory
    pub gateways: Vec<Node>,
    pub owners: Vec<Node>,
    pub placement: Node,
    pub directory: Proc,
    pub store: Proc,
    pub directory_url: String,
    pub store_url: String,
    pub signer: Signer,
    pub tls: Option<tokio_rustls::TlsConnector>,
    pub spec: Spec,
    /// The first owner's way to the directory, if the spec says so.
    pub hop: Option<Hop>,
    placement_port: u16,
    program: PathBuf,
    dir: tempfile::TempDir,
}

impl Cluster {
    /// Starts everything and waits until it is ready.
    pub async fn start(spec: Spec) -> anyhow::Result<Self> {
        let program = std::env::current_exe()?.with_file_name("holdfast");
        anyhow::ensure!(program.exists(), "{} is not built: cargo build --release", program.display());
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("holdfast-loadtest-").tempdir_in(base)?;
        let (directory, directory_url) = etcd("directory", dir.path())?;
        let (store, store_url) = etcd("store", dir.path())?;
        for url in [&directory_url, &store_url] {
            wait_for(|| http::is_ok(url.trim_start_matches("http://"), "/health")).await.context("etcd")?;
        }
        let hop = if spec.hop { Some(Hop::start(&directory_url).await?) } else { None };
        let signer = Signer::create(dir.path())?;
        config::fleet_keys(dir.path())?;
        let tls = if spec.tls { Some(config::certificate(dir.path())?) } else { None };
        let ports = ports();
        let path = shared(&spec, dir.path(), (&directory_url, &store_url, ports.main)).placement(ports)?;
        let placement = Node { proc: holdfast(&program, "placement", "placement-0", &path, dir.path())?, ports };
        let mut cluster = Cluster {
            gateways: Vec::new(),
            owners: Vec::new(),
            placement,
            directory,
            store,
            directory_url,
            store_url,
            signer,
            tls,
            hop,
            placement_port: ports.main,
            program,
            dir,
            spec,
        };
        for _ in 0..cluster.spec.owners {
            cluster.add_owner()?;
        }
        for i in 0..cluster.spec.gateways {
            cluster.add_gateway(i)?;
        }
        cluster.ready().await?;
        Ok(cluster)
    }

    /// One more owner; it joins when it is ready.
    pub fn add_owner(&mut self) -> anyhow::Result<()> {
        let (node, ports) = (format!("owner-{}", self.owners.len()), ports());
        let mut shared = self.shared();
        if let Some(hop) = self.hop.as_ref().filter(|_| self.owners.is_empty()) {
            shared.directory = &hop.url;
        }
        let path = shared.owner(&node, ports)?;
        let proc = holdfast(&self.program, "owner", &node, &path, self.dir.path())?;
        self.owners.push(Node { proc, ports });
        Ok(())
    }

    fn add_gateway(&mut self, i: usize) -> anyhow::Result<()> {
        let (node, ports) = (format!("gw-{i}"), ports());
        let path = self.shared().gateway(&node, ports)?;
        let proc = holdfast(&self.program, "gateway", &node, &path, self.dir.path())?;
        self.gateways.push(Node { proc, ports });
        Ok(())
    }

    fn shared(&self) -> Shared<'_> {
        shared(&self.spec, self.dir.path(), (&self.directory_url, &self.store_url, self.placement_port))
    }

    async fn ready(&mut self) -> anyhow::Result<()> {
        let deadline = tokio::time::Instant::now() + READY;
        loop {
            for node in self.gateways.iter_mut().chain(&mut self.owners).chain([&mut self.placement]) {
                node.proc.check()?;
            }
            let mut waiting = Vec::new();
            for node in self.nodes() {
                if !http::is_ok(&node.admin(), "/readyz").await {
                    waiting.push(node.proc.name.clone());
                }
            }
            if waiting.is_empty() {
                return Ok(());
            }
            anyhow::ensure!(tokio::time::Instant::now() < deadline, "not ready: {}", waiting.join(", "));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        [&self.placement].into_iter().chain(&self.owners).chain(&self.gateways)
    }

    pub fn gateway_addrs(&self) -> Vec<SocketAddr> {
        self.gateways.iter().map(|g| SocketAddr::from(([127, 0, 0, 1], g.ports.main))).collect()
    }

    pub fn placement_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.placement_port)
    }

    /// A file in the run's own directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// CPU so far by role, seconds: gateway, owner, placement, etcd, client (this process).
    pub fn cpu_s(&self) -> [f64; 5] {
        let sum = |nodes: &[Node]| nodes.iter().map(|n| n.proc.cpu_s()).sum();
        [
            sum(&self.gateways),
            sum(&self.owners),
            self.placement.proc.cpu_s(),
            self.directory.cpu_s() + self.store.cpu_s(),
            proc::cpu_s("self"),
        ]
    }

    /// Copies the processes' logs away before they go with the directory.
    pub fn keep_logs(&self, to: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(to)?;
        for proc in self.nodes().map(|n| &n.proc).chain([&self.directory, &self.store]) {
            std::fs::copy(&proc.log, to.join(format!("{}.log", proc.name)))?;
        }
        Ok(())
    }
}

impl Node {
    /// host:port of the admin interface.
    pub fn admin(&self) -> String {
        format!("127.0.0.1:{}", self.ports.admin)
    }
}

fn shared<'a>(spec: &'a Spec, dir: &'a Path, at: (&'a str, &'a str, u16)) -> Shared<'a> {
    let (directory, store, placement) = at;
    Shared {
        dir,
        directory,
        store,
        placement,
        fast_path: spec.fast_path,
        kinds: &spec.kinds,
        cap: spec.cap,
        tls: spec.tls,
        admit_per_s: spec.admit_per_s,
    }
}

fn holdfast(program: &Path, role: &str, node: &str, config: &Path, dir: &Path) -> anyhow::Result<Proc> {
    let args = [role.to_owned(), "--config".to_owned(), config.display().to_string()];
    Proc::spawn(node, program, &args, dir)
}

fn etcd(name: &str, dir: &Path) -> anyhow::Result<(Proc, String)> {
    let (client, peer) = (ports().main, ports().main);
    let (url, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    let data = dir.join(format!("{name}.etcd"));
    let mut args = Vec::new();
    for (flag, value) in [
        ("name", name.to_owned()),
        ("data-dir", data.display().to_string()),
        ("listen-client-urls", url.clone()),
        ("advertise-client-urls", url.clone()),
        ("listen-peer-urls", peer.clone()),
        ("initial-advertise-peer-urls", peer.clone()),
        ("initial-cluster", format!("{name}={peer}")),
        ("quota-backend-bytes", (2_u64 << 30).to_string()),
        ("logger", "zap".to_owned()),
        ("log-level", "error".to_owned()),
    ] {
        args.extend([format!("--{flag}"), value]);
    }
    Ok((Proc::spawn(name, Path::new("/usr/bin/etcd"), &args, dir)?, url))
}

/// Two free ports.
fn ports() -> Ports {
    Ports { main: free_port(), admin: free_port() }
}

/// A port that was free a moment ago, given once per process, below the range from which the kernel takes the ports of
/// outgoing connections (32,768 and up): those would take it before its server listens.
fn free_port() -> u16 {
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

/// Polls until `ready` says yes.
pub async fn wait_for<F: Future<Output = bool>>(mut ready: impl FnMut() -> F) -> anyhow::Result<()> {
    let polling = async {
        while !ready().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(READY, polling).await.context("timed out")
}
