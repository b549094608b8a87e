//! `gateway.toml`. Each field is documented, with unit, default, reason and cost, in `config/gateway.toml`.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Admission, ConfigError, LiveLimits, Proxy, Size, Span};
use crate::{
    gateway::{
        jwks::Jwks,
        limits::{self, ListenerConfig},
        run::{DrainConfig, GatewayConfig, HeldBudget},
    },
    transport::tls,
    upstream::security::Security,
};

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
        /// Accept queue of the kernel.
        backlog: u32 = 1_280,
        /// File with the shared secret of the owner links; empty = none.
        link_token_file: String = String::new(),
        /// Mutual TLS with owners and placement.
        link_tls: LinkTls = LinkTls::default(),
        /// Certificate of `listen`.
        tls: Tls = Tls::default(),
        /// The balancers in front of it.
        proxy: Proxy = Proxy::default(),
        /// Whom it lets in.
        auth: Auth = Auth::default(),
        /// How many it lets in, and how fast.
        admission: Admission = Admission::default(),
        /// What one client may use.
        limits: Limits = Limits::default(),
        /// What held ops may use.
        held: Held = Held::default(),
        /// How it stops.
        drain: Drain = Drain::default(),
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
    /// Section `[link_tls]`: mutual TLS between the processes of the fleet.
    LinkTls {
        /// Certificates of the authority that signs everybody's, PEM; empty = no TLS.
        ca: String = String::new(),
        /// This process's certificate chain, PEM.
        cert: String = String::new(),
        /// Its private key, PEM.
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
    /// Section `[drain]` (design 10).
    Drain {
        /// From not ready to the last accept.
        notice: Span = Span::secs(5),
        /// Clients sent away per second; 0 = as many as the other gateways admit.
        rate: u32 = 0,
        /// Longest drain; 0 = as long as it takes.
        max: Span = Span::secs(0),
    }
}

impl Drain {
    fn config(&self) -> DrainConfig {
        DrainConfig {
            notice: self.notice.0,
            rate_per_s: Some(self.rate).filter(|r| *r > 0),
            max: Some(self.max.0).filter(|m| !m.is_zero()),
        }
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
    /// The limits that may change while it runs.
    #[must_use]
    pub fn live_limits(&self) -> LiveLimits {
        LiveLimits {
            admit_per_s: self.admit_per_s,
            connections_max: self.connections_max,
            admission: self.admission.clone(),
        }
    }

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
        let l = &self.limits;
        if l.payload.0 > l.frame.0 {
            return Err(ConfigError("limits.payload: must not be above limits.frame".into()));
        }
        if l.ping.0 * 2 > l.dead.0 {
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
            admission: self.live_limits().settings()?,
            keys_file: Some(self.admission.keys_file.as_str()).filter(|f| !f.is_empty()).map(Into::into),
            link: self.link_tls.security(&self.link_token_file)?,
            fast_path: self.placement.fast_path,
            placement: self.placement.addrs(),
            held,
            drain: self.drain.config(),
        })
    }
}

impl Gateway {
    /// What the listeners take. Reads certificate and keys.
    ///
    /// # Errors
    /// An address is none, a file cannot be used, or a value cannot be right: named by its key.
    pub fn listeners(&self) -> Result<Vec<ListenerConfig>, ConfigError> {
        let bad = |key: &str, e: &dyn std::fmt::Display| ConfigError(format!("{key}: {e}"));
        if self.auth.audience.is_empty() {
            return Err(ConfigError("auth.audience: must not be empty".into()));
        }
        if self.auth.jwks.is_empty() {
            return Err(ConfigError("auth.jwks: a file with keys is wanted, else no client gets in".into()));
        }
        let keys = Jwks::load(&self.auth.jwks).map_err(|e| bad("auth.jwks", &e))?.for_audience(&self.auth.audience);
        let tls = match self.tls.cert.as_str() {
            "" => None,
            cert => Some(tls::Tls::load(cert, &self.tls.key).map_err(|e| bad("tls", &e))?),
        };
        let trust = self.proxy.trust()?;
        let listener = |key: &str, addr: &str, tls: Option<tls::Tls>| {
            let listen =
                addr.parse().map_err(|_| ConfigError(format!("{key}: \"{addr}\" is not an address (ip:port)")))?;
            Ok::<_, ConfigError>(ListenerConfig {
                listen,
                tls,
                keys: keys.clone(),
                origins: self.auth.origins.clone(),
                gateway: self.node.clone(),
                features: Vec::new(),
                pages: None,
                ready: None,
                trust: trust.clone(),
                limits: self.listener_limits()?,
            })
        };
        let mut all = vec![listener("listen", &self.listen, tls)?];
        if !self.listen_plain.is_empty() {
            all.push(listener("listen_plain", &self.listen_plain, None)?);
        }
        Ok(all)
    }

    fn listener_limits(&self) -> Result<limits::Limits, ConfigError> {
        let l = &self.limits;
        let small = |key: &str, n: u64| usize::try_from(n).map_err(|_| ConfigError(format!("limits.{key}: too large")));
        let ms = |key: &str, span: Span| {
            u32::try_from(span.0.as_millis()).map_err(|_| ConfigError(format!("limits.{key}: too long")))
        };
        Ok(limits::Limits {
            backlog: self.backlog,
            hello_timeout: l.hello.0,
            ping_ms: ms("ping", l.ping)?,
            dead_ms: ms("dead", l.dead)?,
            frame_bytes_max: small("frame", l.frame.0)?,
            payload_bytes_max: small("payload", l.payload.0)?,
            sessions_max: small("sessions", l.sessions.into())?,
            queue_bytes_max: small("queue", l.queue.0)?,
            ..limits::Limits::default()
        })
    }
}

impl LinkTls {
    /// Of three files.
    #[must_use]
    pub fn of(ca: &Path, cert: &Path, key: &Path) -> Self {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        Self { ca: text(ca), cert: text(cert), key: text(key) }
    }

    /// What this process shows others and wants to be shown, with the token of `link_token_file`. Reads the files.
    ///
    /// # Errors
    /// A file cannot be used, named by its key.
    pub fn security(&self, link_token_file: &str) -> Result<Security, ConfigError> {
        let mut security = Security::default();
        if let Some(token) = secret("link_token_file", link_token_file)? {
            security = security.with_token(&token).map_err(|e| ConfigError(format!("link_token_file: {e}")))?;
        }
        let given = [&self.ca, &self.cert, &self.key].iter().filter(|f| !f.is_empty()).count();
        match given {
            0 => Ok(security),
            3 => {
                let [ca, cert, key] = [&self.ca, &self.cert, &self.key].map(Path::new);
                let security = security.with_tls(ca, cert, key).map_err(|e| ConfigError(format!("link_tls: {e}")))?;
                security.server().map_err(|e| ConfigError(format!("link_tls: {e:?}")))?;
                Ok(security)
            }
            _ => Err(ConfigError("link_tls.ca, link_tls.cert, link_tls.key: all three or none".into())),
        }
    }
}

impl PlacementLink {
    /// The endpoints as `host:port`.
    #[must_use]
    pub fn addrs(&self) -> Vec<String> {
        addrs(&self.endpoints)
    }
}

/// Endpoints as `host:port`.
pub(super) fn addrs(endpoints: &[String]) -> Vec<String> {
    let host = |e: &String| e.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/').into();
    endpoints.iter().map(host).collect()
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
