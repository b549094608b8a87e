//! TLS for clients: one certificate, exchanged without a restart when its files change (design 9.4, 17).

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

use super::socket::{Stream, Timed};

/// Why a certificate cannot be used; names the file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing, unreadable or holds no PEM of the kind wanted.
    #[error("TLS {what} {}: {why}", path.display())]
    File {
        /// "certificate" or "key".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Certificate and key do not fit, or the algorithm is not supported.
    #[error("TLS certificate {} with key {}: {why}", cert.display(), key.display())]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong with them.
        why: String,
    },
}

/// A certificate chain and its key from two PEM files, with the acceptor that uses them.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    cert: PathBuf,
    key: PathBuf,
    current: Arc<Current>,
    config: Arc<ServerConfig>,
}

#[derive(Debug)]
struct Current(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("cert", &self.0.cert).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads a PEM certificate chain and a PEM key (PKCS#8, SEC1 or PKCS#1).
    pub fn load(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self, TlsError> {
        let (cert, key) = (cert.into(), key.into());
        let current = Arc::new(Current(ArcSwap::from_pointee(read_pair(&cert, &key)?)));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| TlsError::Pair { cert: cert.clone(), key: key.clone(), why: e.to_string() })?
            .with_no_client_auth()
            .with_cert_resolver(current.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // One ticket is enough for a client that comes back once; each costs a write and 200 B on the wire.
        config.send_tls13_tickets = 1;
        Ok(Self(Arc::new(Inner { cert, key, current, config: Arc::new(config) })))
    }

    /// The files to watch.
    #[must_use]
    pub fn files(&self) -> [&Path; 2] {
        [&self.0.cert, &self.0.key]
    }

    /// Reads both files again. On an error the old certificate stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.0.current.0.store(Arc::new(read_pair(&self.0.cert, &self.0.key)?));
        Ok(())
    }

    /// Reads the whole ClientHello. What computes comes after it.
    pub async fn hello(socket: Timed) -> io::Result<StartHandshake<Timed>> {
        LazyConfigAcceptor::new(rustls::server::Acceptor::default(), socket).await
    }

    /// The server's half of a handshake whose ClientHello was read. Its first step is the dear one.
    pub async fn accept(&self, begun: StartHandshake<Timed>) -> io::Result<Stream> {
        Ok(Stream::Tls(Box::new(begun.into_stream(self.0.config.clone()).await?)))
    }
}

fn read_pair(cert: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let file = |what, path: &Path, why: String| TlsError::File { what, path: path.to_owned(), why };
    let read = |what, path: &Path| std::fs::read(path).map_err(|e| file(what, path, e.to_string()));
    let chain = CertificateDer::pem_slice_iter(&read("certificate", cert)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| file("certificate", cert, format!("not PEM: {e}")))?;
    if chain.is_empty() {
        return Err(file("certificate", cert, "holds no -----BEGIN CERTIFICATE-----".into()));
    }
    let private = PrivateKeyDer::from_pem_slice(&read("key", key)?)
        .map_err(|e| file("key", key, format!("no private key in PEM: {e}")))?;
    let pair = |why: String| TlsError::Pair { cert: cert.to_owned(), key: key.to_owned(), why };
    CertifiedKey::from_der(chain, private, &rustls::crypto::aws_lc_rs::default_provider())
        .map_err(|e| pair(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_pair(dir: &Path) -> (PathBuf, PathBuf) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (cert, key) = (dir.join("c.pem"), dir.join("k.pem"));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        (cert, key)
    }

    #[test]
    fn a_changed_certificate_is_used_and_a_broken_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = write_pair(dir.path());
        let tls = Tls::load(&cert, &key).unwrap();
        let first = tls.0.current.0.load().cert[0].clone();
        write_pair(dir.path());
        tls.reload().unwrap();
        let second = tls.0.current.0.load().cert[0].clone();
        assert_ne!(first, second);
        std::fs::write(&cert, "rubbish").unwrap();
        assert!(tls.reload().is_err());
        assert_eq!(tls.0.current.0.load().cert[0], second);
    }

    #[test]
    fn errors_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = write_pair(dir.path());
        let missing = Tls::load(dir.path().join("nope.pem"), &key).unwrap_err().to_string();
        assert!(missing.contains("certificate") && missing.contains("nope.pem"), "{missing}");
        let swapped = Tls::load(&cert, &cert).unwrap_err().to_string();
        assert!(swapped.contains("TLS key") && swapped.contains("c.pem"), "{swapped}");
        let other = tempfile::tempdir().unwrap();
        let (_, wrong) = write_pair(other.path());
        let unfit = Tls::load(&cert, &wrong).unwrap_err().to_string();
        assert!(unfit.contains("k.pem"), "{unfit}");
    }
}
