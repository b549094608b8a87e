//! `gateway.toml`. Each field is documented, with unit, default, reason and cost, in `config/gateway.toml`.

use serde::{Deserialize, Serialize};

use super::{ConfigError, Size, Span};
use crate::gateway::run::{GatewayConfig, HeldBudget};

macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $t:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($(#[$fdoc])* pub $field: $t,)* }
        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}
pub(super) use section;

section! {
    /// A whole gateway configuration.
    Gateway {
        /// Stable name.
        node: String = "gw-1".into(),
        /// Where clients connect: WebSocket, over TLS if `[tls]` names a certificate.
        listen: String = "127.0.0.1:8080".into(),
        /// A second listener without TLS; empty = none.
        listen_plain: String = String::new(),
        /// `host:port` published in the directory; empty = `listen`.
        advertise: String = String::new(),
        /// Loopback address of the admin server; empty = off.
        admin: String = "127.0.0.1:9090".into(),
        /// Admissions per second.
        admit_per_s: u32 = 5_000,
        /// Most connections at a time.
        connections_max: u32 = 15_000,
        /// File with the shared secret of the owner links; empty = none.
        link_token_file: String = String::new(),
        /// Longest graceful stop.
        drain_max: Span = Span::secs(60),
        /// Certificate of `listen`.
        tls: Tls = Tls::default(),
        /// Whom it lets in.
        auth: Auth = Auth::default(),
        /// What one client may use.
        limits: Limits = Limits::default(),
        /// What held ops may use.
        held: Held = Held::default(),
        /// The directory's etcd.
        directory: Directory = Directory::default(),
        /// The placement services.
        placement: PlacementLink = PlacementLink::default(),
    }
}

section! {
    /// Section `[tls]`.
    Tls {
        /// Certificate chain, PEM; empty = no TLS.
        cert: String = String::new(),
        /// Private key, PEM.
        key: String = String::new(),
    }
}

section! {
    /// Section `[placement]` of gateways and owners.
    PlacementLink {
        /// Addresses of placement services; empty = the leader the directory names.
        endpoints: Vec<String> = Vec::new(),
        /// Report refused connections to placement (the gateway's).
        fast_path: bool = true,
    }
}

section! {
    /// Section `[auth]`.
    Auth {
        /// File with the JWK set; empty = none.
        jwks: String = String::new(),
        /// Required `aud`.
        audience: String = "holdfast".into(),
        /// Origins a browser may come from; empty = any.
        origins: Vec<String> = Vec::new(),
    }
}

section! {
    /// Section `[limits]` (design 4.5).
    Limits {
        /// Largest frame.
        frame: Size = Size(64 << 10),
        /// Largest payload.
        payload: Size = Size(16 << 10),
        /// Sessions per connection.
        sessions: u32 = 64,
        /// Downstream queue per connection.
        queue: Size = Size(256 << 10),
        /// Time for the hello.
        hello: Span = Span::secs(5),
        /// The server speaks at least this often.
        ping: Span = Span::millis(2_500),
        /// Silence after which a connection is given up.
        dead: Span = Span::secs(6),
    }
}

section! {
    /// Section `[held]` (design 6.6).
    Held {
        /// Ops held by this gateway.
        ops_max: u32 = 262_144,
        /// Memory held by this gateway.
        memory_max: Size = Size(256 << 20),
        /// Ops held for one connection.
        conn_ops_max: u32 = 2_048,
        /// Memory held for one connection.
        conn_memory_max: Size = Size(4 << 20),
        /// Memory held for one session.
        session_memory_max: Size = Size(16 << 20),
    }
}

section! {
    /// Section `[directory]`.
    Directory {
        /// etcd's endpoints.
        endpoints: Vec<String> = vec!["http://127.0.0.1:2379".into()],
    }
}

impl Gateway {
    /// What the gateway's wiring takes.
    ///
    /// # Errors
    /// A value that cannot be right, named by its key.
    pub fn run_config(&self) -> Result<GatewayConfig, ConfigError> {
        if self.node.is_empty() {
            return Err(ConfigError("node: must not be empty".into()));
        }
        if self.tls.cert.is_empty() != self.tls.key.is_empty() {
            return Err(ConfigError("tls.cert, tls.key: both or none".into()));
        }
        if self.limits.payload.0 > self.limits.frame.0 {
            return Err(ConfigError("limits.payload: must not be above limits.frame".into()));
        }
        if self.limits.ping.0 * 2 > self.limits.dead.0 {
            return Err(ConfigError(
                "limits.dead: must be at least twice limits.ping, or one late ping ends a connection".into(),
            ));
        }
        let held = HeldBudget {
            ops_max: self.held.ops_max,
            bytes_max: self.held.memory_max.0,
            conn_ops_max: self.held.conn_ops_max,
            conn_bytes_max: self.held.conn_memory_max.0,
            session_bytes_max: self.held.session_memory_max.0,
        };
        Ok(GatewayConfig {
            id: self.node.clone(),
            advertise: or(&self.advertise, &self.listen),
            admit_per_s: self.admit_per_s,
            link_token: secret("link_token_file", &self.link_token_file)?.map(Into::into),
            fast_path: self.placement.fast_path,
            placement: self.placement.addrs(),
            held,
            drain_max: self.drain_max.0,
        })
    }
}

impl PlacementLink {
    /// The endpoints as `host:port`.
    #[must_use]
    pub fn addrs(&self) -> Vec<String> {
        self.endpoints.iter().map(|e| e.trim_start_matches("http://").trim_end_matches('/').into()).collect()
    }
}

/// `text`, or `default` where it is empty.
pub(super) fn or(text: &str, default: &str) -> String {
    if text.is_empty() { default.into() } else { text.into() }
}

/// The trimmed content of a secret's file; an empty path is no secret.
pub(super) fn secret(key: &str, path: &str) -> Result<Option<String>, ConfigError> {
    if path.is_empty() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path).map_err(|e| ConfigError(format!("{key}: {path}: cannot be read: {e}")))?;
    match text.trim() {
        "" => Err(ConfigError(format!("{key}: {path}: is empty"))),
        text => Ok(Some(text.into())),
    }
}
