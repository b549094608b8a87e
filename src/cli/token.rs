//! `holdfast token`: tokens for setups that have no identity provider (design 4.7), signed with an HS256 key of a JWK set.

use std::{
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, bail};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::Span;

/// What the token says.
#[derive(Debug, clap::Args)]
pub(super) struct TokenArgs {
    /// Who it is for (`sub`).
    #[arg(long)]
    sub: String,
    /// A session, or a glob, with the seat: `g_8Kd2:black`. A session alone gives a spectator. May be repeated; without it the
    /// owner says who may do what.
    #[arg(long = "session", value_name = "ID[:SEAT]")]
    sessions: Vec<String>,
    /// How long it is good for.
    #[arg(long, default_value = "12h")]
    ttl: Span,
    /// Required audience of the gateways.
    #[arg(long, default_value = "holdfast")]
    audience: String,
    /// JWK set with an HS256 key.
    #[arg(long, value_name = "FILE", required_unless_present = "new_jwks")]
    jwks: Option<PathBuf>,
    /// Writes a JWK set with a new random key to this file first, and signs with it.
    #[arg(long, value_name = "FILE", conflicts_with = "jwks")]
    new_jwks: Option<PathBuf>,
}

/// A key that signs tokens.
pub struct Signer {
    kid: Option<String>,
    key: EncodingKey,
}

#[derive(Serialize)]
struct Claims<'a> {
    sub: &'a str,
    aud: &'a str,
    exp: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<Value>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    #[serde(default)]
    k: String,
}

impl Signer {
    /// A new random key, and the JWK set that verifies it.
    ///
    /// # Errors
    /// The library refuses the key.
    pub fn random() -> anyhow::Result<(Self, String)> {
        let secret: [u8; 32] = rand::random();
        let kid = format!("{:08x}", rand::random::<u32>());
        let k = URL_SAFE_NO_PAD.encode(secret);
        let set = json!({"keys": [{"kty": "oct", "alg": "HS256", "use": "sig", "kid": kid, "k": k}]});
        Ok((Self { kid: Some(kid), key: EncodingKey::from_secret(&secret)? }, set.to_string()))
    }

    /// A key of one's own, without an id.
    ///
    /// # Errors
    /// The library refuses the key.
    pub fn from_secret(secret: &[u8]) -> anyhow::Result<Self> {
        Ok(Self { kid: None, key: EncodingKey::from_secret(secret)? })
    }

    /// The first symmetric key of a JWK set.
    fn load(path: &Path) -> anyhow::Result<Self> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Jwk>,
        }
        let text = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let set: Set = serde_json::from_slice(&text).with_context(|| format!("{} is no JWK set", path.display()))?;
        let Some(jwk) = set.keys.into_iter().find(|k| k.kty == "oct") else {
            bail!("{} has no symmetric key (kty \"oct\") to sign with", path.display());
        };
        let secret = URL_SAFE_NO_PAD.decode(&jwk.k).context("the key's `k` is not base64url")?;
        Ok(Self { kid: jwk.kid, key: EncodingKey::from_secret(&secret)? })
    }

    /// A token for `sub` with `sessions` (`id` or glob -> role and seat), good until `ttl` from now.
    ///
    /// # Errors
    /// The library cannot sign.
    pub fn sign(&self, sub: &str, aud: &str, ttl: Span, sessions: Option<Value>) -> anyhow::Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
        let mut header = Header::new(Algorithm::HS256);
        header.kid.clone_from(&self.kid);
        let claims = Claims { sub, aud, exp: now.as_secs() + ttl.0.as_secs(), sessions };
        jsonwebtoken::encode(&header, &claims, &self.key).context("cannot sign")
    }
}

/// `["g1:white", "g2"]` as the claim `sessions`; nothing for nothing.
#[must_use]
pub fn sessions_claim<S: AsRef<str>>(sessions: &[S]) -> Option<Value> {
    if sessions.is_empty() {
        return None;
    }
    let grant = |text: &str| match text.rsplit_once(':') {
        Some((id, seat)) => (id.to_owned(), json!({"role": "participant", "seat": seat})),
        None => (text.to_owned(), json!({"role": "spectator", "seat": ""})),
    };
    Some(Value::Object(sessions.iter().map(|s| grant(s.as_ref())).collect()))
}

pub(super) fn main(args: &TokenArgs) -> anyhow::Result<()> {
    let signer = match (&args.jwks, &args.new_jwks) {
        (Some(path), _) => Signer::load(path)?,
        (None, Some(path)) => {
            let (signer, set) = Signer::random()?;
            crate::cli::startup::write_secret(path, &set)?;
            signer
        }
        (None, None) => bail!("--jwks or --new-jwks is wanted"),
    };
    println!("{}", signer.sign(&args.sub, &args.audience, args.ttl, sessions_claim(&args.sessions))?);
    Ok(())
}
