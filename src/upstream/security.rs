//! What protects the gRPC between our own processes (owner links, placement): a shared token, mutual TLS, or both
//! (design 7.1, 14). Neither is for loopback only.

use std::{fmt, path::Path, sync::Arc};

use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataMap, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Error, Identity, Server, ServerTlsConfig},
};

/// A client's channel, with the token on every call.
pub type Secured = InterceptedService<Channel, Security>;

/// What a process shows to others of the fleet, and wants to be shown. Cheap to clone.
#[derive(Clone, Default)]
pub struct Security {
    token: Option<Token>,
    tls: Option<Arc<Tls>>,
}

#[derive(Clone)]
struct Token {
    header: MetadataValue<Ascii>,
}

/// PEM: the fleet's authority, and this process's certificate and key.
struct Tls {
    ca: Certificate,
    identity: Identity,
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Security").field("token", &self.token.is_some()).field("tls", &self.tls.is_some()).finish()
    }
}

impl Security {
    /// With this token: `authorization: Bearer …`.
    ///
    /// # Errors
    /// It is not ASCII that may stand in a header.
    pub fn with_token(mut self, token: &str) -> Result<Self, &'static str> {
        let mut header: MetadataValue<Ascii> =
            format!("Bearer {token}").parse().map_err(|_| "must be printable ASCII")?;
        header.set_sensitive(true);
        self.token = Some(Token { header });
        Ok(self)
    }

    /// With mutual TLS: both sides show a certificate signed by `ca`; the server's is for the host that is dialled. PEM files.
    ///
    /// # Errors
    /// A file cannot be read: its path and why.
    pub fn with_tls(mut self, ca: &Path, cert: &Path, key: &Path) -> Result<Self, String> {
        let read = |path: &Path| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
        let identity = Identity::from_pem(read(cert)?, read(key)?);
        self.tls = Some(Arc::new(Tls { ca: Certificate::from_pem(read(ca)?), identity }));
        Ok(self)
    }

    /// How to dial `addr`, a `host:port`.
    ///
    /// # Errors
    /// It is no address, or the certificates cannot be used.
    pub fn endpoint(&self, addr: &str) -> Result<Endpoint, Error> {
        match &self.tls {
            None => Endpoint::from_shared(format!("http://{addr}")),
            Some(tls) => Endpoint::from_shared(format!("https://{addr}"))?
                .tls_config(ClientTlsConfig::new().ca_certificate(tls.ca.clone()).identity(tls.identity.clone())),
        }
    }

    /// A server to add services to.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub fn server(&self) -> Result<Server, Error> {
        match &self.tls {
            None => Ok(Server::builder()),
            Some(tls) => Server::builder()
                .tls_config(ServerTlsConfig::new().client_ca_root(tls.ca.clone()).identity(tls.identity.clone())),
        }
    }

    /// Puts the token on a request.
    pub fn sign(&self, metadata: &mut MetadataMap) {
        if let Some(token) = &self.token {
            metadata.insert("authorization", token.header.clone());
        }
    }

    /// Looks for the token.
    ///
    /// # Errors
    /// It is missing or another.
    pub fn check(&self, metadata: &MetadataMap) -> Result<(), Status> {
        let Some(token) = &self.token else { return Ok(()) };
        let shown = metadata.get("authorization").map_or(&[][..], MetadataValue::as_bytes);
        if same(shown, token.header.as_bytes()) { Ok(()) } else { Err(Status::unauthenticated("link token")) }
    }

    /// For servers: [`Security::check`] before every call.
    #[must_use]
    pub fn guard(&self) -> Guard {
        Guard(self.clone())
    }
}

/// On a client: signs.
impl Interceptor for Security {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        self.sign(request.metadata_mut());
        Ok(request)
    }
}

/// On a server: checks.
#[derive(Clone, Debug)]
pub struct Guard(Security);

impl Interceptor for Guard {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        self.0.check(request.metadata()).map(|()| request)
    }
}

/// Equal, in a time that depends only on the lengths.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}
