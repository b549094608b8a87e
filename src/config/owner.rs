//! `owner.toml` and `placement.toml`. Each field is documented in the files of the same names in `config/`.

use serde::{Deserialize, Serialize};

use super::{
    ConfigError,
    gateway::{Directory, LinkTls, addrs, section},
};
use crate::{
    owner::OwnerConfig,
    placement::{PlacementConfig, kv::Kv},
};

/// The kinds an owner can serve (design 4.7).
const KINDS: [&str; 3] = ["game", "meeting", "document"];

section! {
    /// A whole owner configuration.
    Owner {
        /// Stable name.
        node: String = "owner-1".into(),
        /// Address of the gRPC service.
        listen: String = "127.0.0.1:7001".into(),
        /// `host:port` gateways dial; empty = `listen`.
        advertise: String = String::new(),
        /// Loopback address of the admin server; empty = off.
        admin: String = String::new(),
        /// Kinds of session.
        kinds: Vec<String> = vec!["game".into(), "meeting".into(), "document".into()],
        /// Most sessions.
        cap: u32 = 10_000,
        /// File with the shared secret gateways must show; empty = none.
        link_token_file: String = String::new(),
        /// Mutual TLS with gateways and placement.
        link_tls: LinkTls = LinkTls::default(),
        /// The directory's etcd.
        directory: Directory = Directory::default(),
        /// Where records are kept.
        store: Store = Store::default(),
        /// The placement services.
        placement: PlacementList = PlacementList::default(),
    }
}

section! {
    /// Section `[placement]` of an owner.
    PlacementList {
        /// Addresses of placement services; empty = the leader the directory names.
        endpoints: Vec<String> = Vec::new(),
    }
}

section! {
    /// Section `[store]`.
    Store {
        /// What kind of store.
        kind: StoreKind = StoreKind::Etcd,
        /// etcd's endpoints.
        endpoints: Vec<String> = vec!["http://127.0.0.1:2379".into()],
    }
}

/// Where an owner keeps its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// Durable: etcd.
    Etcd,
    /// Of this process: lost with it. For trying things.
    Memory,
}

section! {
    /// A whole placement configuration.
    Placement {
        /// Stable name.
        node: String = "placement-1".into(),
        /// Address of the gRPC service.
        listen: String = "127.0.0.1:7100".into(),
        /// `host:port` others dial; empty = `listen`.
        advertise: String = String::new(),
        /// Loopback address of the admin server; empty = off.
        admin: String = String::new(),
        /// Act on evidence that a node's process is gone.
        fast_path: bool = true,
        /// Hold re-homing when many nodes vanish at once.
        guard: bool = true,
        /// File with the shared secret callers must show; empty = none.
        link_token_file: String = String::new(),
        /// Mutual TLS with gateways, owners and operators.
        link_tls: LinkTls = LinkTls::default(),
        /// The directory's etcd.
        directory: Directory = Directory::default(),
    }
}

impl Placement {
    /// What the placement service takes.
    ///
    /// # Errors
    /// A value that cannot be right, named by its key.
    pub fn run_config(&self) -> Result<PlacementConfig, ConfigError> {
        Ok(PlacementConfig {
            node: self.node.clone(),
            listen: self.listen.clone(),
            advertise: self.advertise.clone(),
            fast_path: self.fast_path,
            guard: self.guard,
            link: self.link_tls.security(&self.link_token_file)?,
        })
    }
}

impl Owner {
    /// What the owner takes, with its two stores.
    ///
    /// # Errors
    /// A value that cannot be right, named by its key.
    pub fn run_config(&self, directory: Kv, store: Kv) -> Result<OwnerConfig, ConfigError> {
        for kind in &self.kinds {
            if !KINDS.contains(&kind.as_str()) {
                return Err(ConfigError(format!("kinds: \"{kind}\" is not known; known are {}", KINDS.join(", "))));
            }
        }
        if self.kinds.is_empty() {
            return Err(ConfigError("kinds: must not be empty".into()));
        }
        Ok(OwnerConfig {
            listen: self.listen.clone(),
            advertise: self.advertise.clone(),
            kinds: self.kinds.clone(),
            cap: self.cap,
            link: self.link_tls.security(&self.link_token_file)?,
            placement: addrs(&self.placement.endpoints),
            ..OwnerConfig::new(&self.node, directory, store)
        })
    }
}
