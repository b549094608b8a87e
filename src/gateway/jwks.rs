//! Keys that tokens are verified with: a JWKS file (RFC 7517), read again when it changes.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm},
};
use serde::Deserialize;

use super::auth::AUDIENCE;

/// Most keys in one file; a token without `kid` tries each of its algorithm.
const KEYS_MAX: usize = 64;

/// Why a key file cannot be used; names the file.
#[derive(Debug, thiserror::Error)]
#[error("token keys {}: {why}", path.display())]
pub struct JwksError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// One key and the only algorithm it is good for (no confusion of algorithms).
pub struct Key {
    /// `kid`, if it has one.
    pub id: Option<String>,
    /// The algorithm a token's header must name.
    pub algorithm: Algorithm,
    /// The key.
    pub key: DecodingKey,
}

/// The current set of keys. Cheap to clone.
#[derive(Clone)]
pub struct Jwks {
    path: Option<Arc<Path>>,
    audience: Arc<str>,
    keys: Arc<ArcSwap<Vec<Key>>>,
}

impl std::fmt::Debug for Jwks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwks").field("path", &self.path).field("keys", &self.keys.load().len()).finish()
    }
}

impl Jwks {
    /// Reads a JWKS file: `oct` (HS256), `EC` P-256 (ES256), `OKP` Ed25519 (`EdDSA`), `RSA` (RS256). Other keys are skipped.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, JwksError> {
        let path = path.as_ref();
        let keys = read(path)?;
        Ok(Self { path: Some(path.into()), audience: AUDIENCE.into(), keys: Arc::new(ArcSwap::from_pointee(keys)) })
    }

    /// One HS256 secret, as `holdfast dev` uses.
    pub fn from_secret(secret: &[u8]) -> Result<Self, JwksError> {
        let key =
            DecodingKey::from_secret(secret).map_err(|e| JwksError { path: "(secret)".into(), why: e.to_string() })?;
        let keys = vec![Key { id: None, algorithm: Algorithm::HS256, key }];
        Ok(Self { path: None, audience: AUDIENCE.into(), keys: Arc::new(ArcSwap::from_pointee(keys)) })
    }

    /// For tokens of another audience than [`AUDIENCE`].
    #[must_use]
    pub fn for_audience(mut self, audience: &str) -> Self {
        self.audience = audience.into();
        self
    }

    /// The audience every token must name.
    #[must_use]
    pub fn audience(&self) -> &str {
        &self.audience
    }

    /// The file to watch, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Reads the file again. On an error the old keys stay in use.
    pub fn reload(&self) -> Result<(), JwksError> {
        if let Some(path) = &self.path {
            self.keys.store(Arc::new(read(path)?));
        }
        Ok(())
    }

    /// The keys now.
    #[must_use]
    pub fn keys(&self) -> Arc<Vec<Key>> {
        self.keys.load_full()
    }
}

#[derive(Deserialize)]
struct File {
    keys: Vec<serde_json::Value>,
}

fn read(path: &Path) -> Result<Vec<Key>, JwksError> {
    let fail = |why: String| JwksError { path: path.to_owned(), why };
    let bytes = std::fs::read(path).map_err(|e| fail(e.to_string()))?;
    // The JSON error's position, never its text: the file holds secrets.
    let file: File = serde_json::from_slice(&bytes)
        .map_err(|e| fail(format!("not a JWKS: line {} column {}", e.line(), e.column())))?;
    if file.keys.len() > KEYS_MAX {
        return Err(fail(format!("{} keys; {KEYS_MAX} are allowed", file.keys.len())));
    }
    let keys: Vec<Key> =
        file.keys.into_iter().filter_map(|value| usable(&serde_json::from_value(value).ok()?)).collect();
    if keys.is_empty() {
        return Err(fail("holds no key of a kind used here (HS256, ES256, EdDSA, RS256)".into()));
    }
    Ok(keys)
}

fn usable(jwk: &Jwk) -> Option<Key> {
    let algorithm = match &jwk.algorithm {
        AlgorithmParameters::OctetKey(_) => Algorithm::HS256,
        AlgorithmParameters::EllipticCurve(p) if p.curve == EllipticCurve::P256 => Algorithm::ES256,
        AlgorithmParameters::OctetKeyPair(p) if p.curve == EllipticCurve::Ed25519 => Algorithm::EdDSA,
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        _ => return None,
    };
    let named = match jwk.common.key_algorithm {
        None => algorithm,
        Some(KeyAlgorithm::HS256) => Algorithm::HS256,
        Some(KeyAlgorithm::ES256) => Algorithm::ES256,
        Some(KeyAlgorithm::EdDSA) => Algorithm::EdDSA,
        Some(KeyAlgorithm::RS256) => Algorithm::RS256,
        Some(_) => return None,
    };
    let key = DecodingKey::from_jwk(jwk).ok().filter(|_| named == algorithm)?;
    Some(Key { id: jwk.common.key_id.clone(), algorithm, key })
}
