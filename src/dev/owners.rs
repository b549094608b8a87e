//! The owners of `holdfast dev`: each in a runtime of its own, so that one can be killed as a process would be. Directory and
//! store are outside of them.

use std::net::TcpListener;

use anyhow::Context as _;
use tokio::{runtime::Runtime, sync::watch};

use crate::{
    cli::startup::{Shutdown, Stop},
    owner,
    placement::kv::Kv,
};

/// How many there are.
pub const OWNERS: usize = 3;
/// Threads of one owner. What it does in `dev` fits on one.
const THREADS: usize = 1;

/// The owners.
pub struct Owners {
    directory: Kv,
    store: Kv,
    nodes: Vec<Node>,
}

struct Node {
    name: String,
    addr: String,
    /// Absent while it is killed.
    running: Option<Running>,
}

/// A running owner. Dropping it is its death, at any place (a runtime by itself may not be dropped inside another).
pub struct Running {
    runtime: Option<Runtime>,
    stop: watch::Sender<Stop>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Owners {
    /// Starts them all.
    ///
    /// # Errors
    /// No free port, or no thread.
    pub fn start(directory: Kv, store: Kv) -> anyhow::Result<Self> {
        let mut all = Self { directory, store, nodes: Vec::new() };
        for i in 1..=OWNERS {
            let node = Node { name: format!("owner-{i}"), addr: free_addr()?, running: None };
            all.nodes.push(node);
            all.run(i - 1)?;
        }
        Ok(all)
    }

    /// Ends one as a crash would: its tasks stop where they are, its sockets close, nothing is said to anybody.
    pub fn kill(&mut self, name: &str) -> bool {
        self.node(name).and_then(|i| self.nodes[i].running.take()).is_some()
    }

    /// Starts a killed one again, as a new life of the same node.
    ///
    /// # Errors
    /// No thread.
    pub fn restart(&mut self, name: &str) -> anyhow::Result<()> {
        match self.node(name) {
            Some(i) if self.nodes[i].running.is_none() => self.run(i),
            _ => Ok(()),
        }
    }

    /// Tells all to stop; they are killed when what is returned is dropped.
    pub fn stop(&mut self) -> Vec<Running> {
        let running: Vec<Running> = self.nodes.iter_mut().filter_map(|n| n.running.take()).collect();
        for owner in &running {
            let _ = owner.stop.send(Stop::Gracefully);
        }
        running
    }

    fn node(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|n| n.name == name)
    }

    fn run(&mut self, i: usize) -> anyhow::Result<()> {
        let node = &mut self.nodes[i];
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name(&node.name)
            .enable_all()
            .build()
            .context("no runtime for an owner")?;
        let (stop, shutdown) = Shutdown::channel();
        let config = super::parts::owner(&node.name, &node.addr, (&self.directory, &self.store));
        let name = node.name.clone();
        runtime.spawn(async move {
            if let Err(e) = owner::run(config, shutdown.wait()).await {
                tracing::error!("{name} ended: {e:#}");
            }
        });
        node.running = Some(Running { runtime: Some(runtime), stop });
        Ok(())
    }
}

/// A loopback address that was free a moment ago.
///
/// # Errors
/// No port is free.
pub fn free_addr() -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?.to_string())
}
