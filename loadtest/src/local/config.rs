//! The files `--local` writes: one TOML per process, a key for tokens, a certificate.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64URL;
use serde::Serialize;

use super::Ports;
use crate::client::traffic::Kind;

/// Tokens outlive every run.
const TOKEN_S: u64 = 6 * 3600;

/// Where everything listens.
pub struct Shared<'a> {
    pub dir: &'a Path,
    pub directory: &'a str,
    pub store: &'a str,
    pub placement: u16,
    pub fast_path: bool,
    pub kinds: &'a [Kind],
    pub cap: u32,
    pub tls: bool,
    pub admit_per_s: Option<u64>,
}

impl Shared<'_> {
    pub fn placement(&self, ports: Ports) -> anyhow::Result<PathBuf> {
        let mut text = head("placement-0", ports, true);
        let _ = write!(text, "fast_path = {}\n[directory]\nendpoints = [\"{}\"]\n", self.fast_path, self.directory);
        self.file("placement-0", &text)
    }

    pub fn owner(&self, node: &str, ports: Ports) -> anyhow::Result<PathBuf> {
        let kinds: Vec<String> = self.kinds.iter().map(|k| format!("\"{}\"", k.word())).collect();
        let mut text = head(node, ports, true);
        let _ = write!(
            text,
            "kinds = [{}]\ncap = {}\n[directory]\nendpoints = [\"{}\"]\n[store]\nendpoints = [\"{}\"]\n\
             [placement]\nendpoints = [\"http://127.0.0.1:{}\"]\n",
            kinds.join(", "),
            self.cap,
            self.directory,
            self.store,
            self.placement
        );
        self.file(node, &text)
    }

    pub fn gateway(&self, node: &str, ports: Ports) -> anyhow::Result<PathBuf> {
        let dir = self.dir.display();
        let mut text = head(node, ports, false);
        if let Some(rate) = self.admit_per_s {
            let _ = writeln!(text, "admit_per_s = {rate}");
        }
        let _ = write!(
            text,
            "[directory]\nendpoints = [\"{}\"]\n[placement]\nendpoints = [\"http://127.0.0.1:{}\"]\nfast_path = {}\n\
             [auth]\njwks = \"{dir}/jwks.json\"\naudience = \"holdfast\"\n",
            self.directory, self.placement, self.fast_path
        );
        let _ = write!(text, "[admission]\nkeys_file = \"{dir}/fleet.json\"\n");
        if self.tls {
            let _ = write!(text, "[tls]\ncert = \"{dir}/cert.pem\"\nkey = \"{dir}/key.pem\"\n");
        }
        self.file(node, &text)
    }

    fn file(&self, node: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.dir.join(format!("{node}.toml"));
        std::fs::write(&path, text)?;
        Ok(path)
    }
}

fn head(node: &str, ports: Ports, advertise: bool) -> String {
    let mut text =
        format!("node = \"{node}\"\nlisten = \"127.0.0.1:{}\"\nadmin = \"127.0.0.1:{}\"\n", ports.main, ports.admin);
    if advertise {
        let _ = writeln!(text, "advertise = \"127.0.0.1:{}\"", ports.main);
    }
    text
}

/// Signs tokens; the public half (here the secret itself, HS256) lies in `jwks.json`.
pub struct Signer {
    key: jsonwebtoken::EncodingKey,
}

#[derive(Serialize)]
struct Claims<'a> {
    sub: &'a str,
    aud: &'a str,
    exp: u64,
    sessions: serde_json::Value,
}

impl Signer {
    /// Makes a key and writes `jwks.json`.
    pub fn create(dir: &Path) -> anyhow::Result<Self> {
        let secret: [u8; 32] = rand::random();
        let jwks = serde_json::json!({"keys": [
            {"kty": "oct", "alg": "HS256", "use": "sig", "kid": "loadtest", "k": B64URL.encode(secret)}]});
        std::fs::write(dir.join("jwks.json"), jwks.to_string())?;
        Ok(Signer { key: jsonwebtoken::EncodingKey::from_secret(&secret)? })
    }

    /// A token for `seat` in every session of the run.
    pub fn token(&self, sub: &str, seat: &str) -> anyhow::Result<String> {
        let mut header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::HS256);
        header.kid = Some("loadtest".to_owned());
        let exp = crate::clock::now_us() / 1_000_000 + TOKEN_S;
        let sessions = serde_json::json!({"lt-*": {"role": "participant", "seat": seat}});
        Ok(jsonwebtoken::encode(&header, &Claims { sub, aud: "holdfast", exp, sessions }, &self.key)?)
    }
}

/// Writes the keys of the fleet: what one gateway seals, the others honour.
pub fn fleet_keys(dir: &Path) -> anyhow::Result<()> {
    let secret: [u8; 32] = rand::random();
    let keys = serde_json::json!({"current": {"id": 1, "secret": B64URL.encode(secret)}, "others": []});
    Ok(std::fs::write(dir.join("fleet.json"), keys.to_string())?)
}

/// Writes a self-signed certificate for localhost; returns a connector that trusts it and nothing else.
pub fn certificate(dir: &Path) -> anyhow::Result<tokio_rustls::TlsConnector> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    std::fs::write(dir.join("cert.pem"), made.cert.pem())?;
    std::fs::write(dir.join("key.pem"), made.signing_key.serialize_pem())?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone())?;
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(tokio_rustls::TlsConnector::from(std::sync::Arc::new(config)))
}
