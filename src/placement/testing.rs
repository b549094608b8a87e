//! A real etcd process for tests; killed when dropped.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::kv::{Kv, etcd::Options};

/// A one-member cluster on free loopback ports, in a directory of its own.
pub(crate) struct TestEtcd {
    dir: tempfile::TempDir,
    client: u16,
    peer: u16,
    child: Child,
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

impl TestEtcd {
    /// Starts it and waits until it answers.
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (client, peer) = (free_port(), free_port());
        let child = Self::spawn(dir.path(), client, peer);
        let etcd = Self { dir, client, peer, child };
        etcd.wait().await;
        etcd
    }

    fn spawn(dir: &std::path::Path, client: u16, peer: u16) -> Child {
        let (c, p) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        Command::new("etcd")
            .arg("--data-dir")
            .arg(dir)
            .args(["--listen-client-urls", &c, "--advertise-client-urls", &c, "--listen-peer-urls", &p])
            .args(["--initial-advertise-peer-urls", &p, "--initial-cluster", &format!("default={p}")])
            .args(["--unsafe-no-fsync", "--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd")
    }

    async fn wait(&self) {
        let kv = self.kv();
        for _ in 0..200 {
            if kv.get(b"x").await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("etcd does not answer");
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.client)
    }

    pub(crate) fn kv(&self) -> Kv {
        Kv::etcd(vec![self.endpoint()], Options::default())
    }

    /// Kills it and starts it again on the same data.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        self.child = Self::spawn(self.dir.path(), self.client, self.peer);
        self.wait().await;
    }

    pub(crate) fn kill(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }

    /// Sends a signal by name (`STOP`, `CONT`).
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.expect("kill").success());
    }
}

impl Drop for TestEtcd {
    fn drop(&mut self) {
        self.kill();
    }
}
