//! A whole installation on loopback: two etcds, placement, owners, gateways.

use std::{path::PathBuf, time::Instant};

use tokio::sync::OnceCell;

use super::{
    client::Client,
    process::{DEADLINE, Etcd, LOOK_EVERY, Process, free_port, holdfast, scratch},
    proxy::Proxy,
    tokens,
};

/// What to start.
#[derive(Clone, Copy)]
pub struct Plan {
    placements: usize,
    owners: usize,
    gateways: usize,
    proxies: bool,
    gateway: &'static str,
}

/// A running installation. Everything ends when it is dropped.
pub struct Cluster {
    pub directory: Etcd,
    pub store: Etcd,
    pub placements: Vec<Node>,
    pub owners: Vec<Node>,
    pub gateways: Vec<Node>,
    pub proxies: Vec<Proxy>,
    // last: the directory goes when the processes are gone
    dir: tempfile::TempDir,
}

/// One process of ours, its address and how to start it again.
pub struct Node {
    pub process: Process,
    pub addr: String,
    /// Its admin server.
    pub admin: String,
    pub name: String,
    command: &'static str,
    /// Its file.
    pub config: PathBuf,
}

impl Node {
    /// Starts it again with the same configuration.
    pub fn restart(&mut self) {
        self.process.kill();
        self.process = start(self.command, &self.config);
    }
}

/// One placement, one owner, one gateway.
pub fn plan() -> Plan {
    Plan { placements: 1, owners: 1, gateways: 1, proxies: false, gateway: "" }
}

impl Plan {
    /// So many owners.
    pub fn owners(self, owners: usize) -> Self {
        Self { owners, ..self }
    }

    /// So many gateways.
    pub fn gateways(self, gateways: usize) -> Self {
        Self { gateways, ..self }
    }

    /// So many placement services, one of which leads.
    pub fn placements(self, placements: usize) -> Self {
        Self { placements, ..self }
    }

    /// Gateways reach owners through a hop that can reset connections.
    pub fn behind_proxies(self) -> Self {
        Self { proxies: true, ..self }
    }

    /// These sections in the gateways' configuration too.
    pub fn gateway_config(self, gateway: &'static str) -> Self {
        Self { gateway, ..self }
    }

    /// Starts it all and waits until a client is welcomed and a session can be created.
    pub async fn start(self) -> Cluster {
        let dir = scratch();
        std::fs::write(dir.path().join("jwks.json"), tokens::jwks()).unwrap();
        let directory = Etcd::start(dir.path(), "directory");
        let store = Etcd::start(dir.path(), "store");
        let mut cluster = Cluster {
            directory,
            store,
            placements: Vec::new(),
            owners: Vec::new(),
            gateways: Vec::new(),
            proxies: Vec::new(),
            dir,
        };
        for i in 0..self.placements {
            let node = cluster.node("placement", i, &address(), ("", ""));
            cluster.placements.push(node);
        }
        let services: Vec<String> = cluster.placements.iter().map(|p| format!("\"http://{}\"", p.addr)).collect();
        let services = format!("[placement]\nendpoints = [{}]\n", services.join(", "));
        for i in 0..self.owners {
            let addr = address();
            let store = format!("{services}[store]\nendpoints = [\"{}\"]\n", cluster.store.endpoint());
            let mut top = String::new();
            if self.proxies {
                let proxy = Proxy::start(addr.clone()).await;
                top = format!("advertise = \"{}\"\n", proxy.addr);
                cluster.proxies.push(proxy);
            }
            let node = cluster.node("owner", i, &addr, (&top, &store));
            cluster.owners.push(node);
        }
        for i in 0..self.gateways {
            let jwks = cluster.dir.path().join("jwks.json");
            let drain = "[drain]\nnotice = \"200ms\"\n";
            let auth = format!("{services}{drain}{}[auth]\njwks = \"{}\"\n", self.gateway, jwks.display());
            let node = cluster.node("gateway", i, &address(), ("", &auth));
            cluster.gateways.push(node);
        }
        cluster.until_ready().await;
        cluster
    }
}

impl Cluster {
    /// `top`: more keys outside sections; `sections`: the sections besides `[directory]`.
    fn node(&self, command: &'static str, i: usize, addr: &str, (top, sections): (&str, &str)) -> Node {
        let (name, addr, admin) = (format!("{command}-{i}"), addr.to_owned(), address());
        let directory = self.directory.endpoint();
        let text = format!(
            "node = \"{name}\"\nlisten = \"{addr}\"\nadmin = \"{admin}\"\n{top}[directory]\nendpoints = [\"{directory}\"]\n{sections}"
        );
        let config = self.dir.path().join(format!("{name}.toml"));
        std::fs::write(&config, text).unwrap();
        Node { process: start(command, &config), addr, admin, name, command, config }
    }

    async fn until_ready(&mut self) {
        for i in 0..self.gateways.len() {
            let addr = self.gateways[i].addr.clone();
            let by = Instant::now() + DEADLINE;
            while tokio::net::TcpStream::connect(&addr).await.is_err() {
                let node = &mut self.gateways[i];
                assert!(node.process.ended().is_none(), "{} ended:\n{}", node.name, node.process.output());
                assert!(Instant::now() < by, "{addr} does not listen");
                tokio::time::sleep(LOOK_EVERY).await;
            }
            // the first attach answered proves gateway, directory, placement, owner and store
            let session = format!("ready-{i}");
            self.create("meeting", &session);
            Client::open(&addr, &tokens::token("ready", "p0")).await.attach(&session).await;
        }
    }

    /// Creates a session through whichever placement service leads.
    pub fn create(&self, kind: &str, id: &str) {
        let by = Instant::now() + DEADLINE;
        loop {
            let mut said = String::new();
            for node in &self.placements {
                let args = ["sessions", "create", "--kind", kind, "--id", id, "--placement", &node.addr];
                let (status, output) = holdfast(&args);
                if status.success() {
                    return;
                }
                said = output;
            }
            assert!(Instant::now() < by, "cannot create {id}: {said}");
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// The index of the session's owner, as placement says.
    pub fn owner_of(&self, id: &str) -> usize {
        let by = Instant::now() + DEADLINE;
        loop {
            for node in &self.placements {
                let (_, output) = holdfast(&["sessions", "show", id, "--placement", &node.addr]);
                let line = output.lines().find_map(|l| l.strip_prefix("owner"));
                let name = line.and_then(|l| l.split_whitespace().next());
                if let Some(at) = self.owners.iter().position(|o| Some(o.name.as_str()) == name) {
                    return at;
                }
            }
            assert!(Instant::now() < by, "{id} has no owner");
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// A connected client of gateway `i`, its token giving `seat` everywhere.
    pub async fn client(&self, i: usize, sub: &str, seat: &str) -> Client {
        Client::open(&self.gateways[i].addr, &tokens::token(sub, seat)).await
    }
}

fn address() -> String {
    format!("127.0.0.1:{}", free_port())
}

fn start(command: &str, config: &std::path::Path) -> Process {
    let args = [command, "--config", config.to_str().unwrap()];
    Process::start(env!("CARGO_BIN_EXE_holdfast"), &args, config.with_extension("log"))
}

/// One installation for all the tests that only make mistakes: it must outlive every one of them.
pub async fn shared() -> &'static Cluster {
    static SHARED: OnceCell<Cluster> = OnceCell::const_new();
    SHARED.get_or_init(|| plan().start()).await
}
