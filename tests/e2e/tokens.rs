//! Tokens, good and bad, signed with a key of this test run.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

/// Secret of the key that gateways know.
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

/// The JWK set for gateways.
pub fn jwks() -> String {
    json!({"keys": [{"kty": "oct", "alg": "HS256", "kid": "e2e", "k": URL_SAFE_NO_PAD.encode(SECRET)}]}).to_string()
}

/// Seconds since 1970, plus `later`.
pub fn unix(later: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    i64::try_from(now).unwrap() + later
}

/// A token good for an hour that gives `seat` in every session; an empty seat: no `sessions` claim at all.
pub fn token(sub: &str, seat: &str) -> String {
    let mut claims = json!({"sub": sub, "aud": "holdfast", "exp": unix(3_600)});
    if !seat.is_empty() {
        claims["sessions"] = json!({"*": {"role": "participant", "seat": seat}});
    }
    signed(&claims, SECRET)
}

/// Any claims under the right key.
pub fn with_claims(claims: &Value) -> String {
    signed(claims, SECRET)
}

/// Right claims under a key no gateway knows.
pub fn wrong_key(sub: &str) -> String {
    signed(&json!({"sub": sub, "aud": "holdfast", "exp": unix(3_600)}), b"another secret, of an attacker!!")
}

/// Right claims, `alg: none`, no signature.
pub fn alg_none(sub: &str) -> String {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = json!({"sub": sub, "aud": "holdfast", "exp": unix(3_600)});
    format!("{}.{}.", part(json!({"alg": "none", "typ": "JWT"})), part(claims))
}

fn signed(claims: &Value, secret: &[u8]) -> String {
    let mut header = Header::new(Algorithm::HS256);
    header.kid = Some("e2e".into());
    jsonwebtoken::encode(&header, claims, &EncodingKey::from_secret(secret).unwrap()).unwrap()
}
