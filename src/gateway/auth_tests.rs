use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, jwk::Jwk};
use serde_json::{Value, json};

use super::*;

const NOW: Wall = Wall(1_000_000_000);

fn claims() -> Value {
    json!({"sub": "ann", "exp": 2000, "aud": "holdfast"})
}

fn hs(claims: &Value) -> String {
    encode(
        &Header::new(Algorithm::HS256),
        claims,
        &EncodingKey::from_secret(b"secret-secret-secret-secret-secret").unwrap(),
    )
    .unwrap()
}

fn keys() -> Jwks {
    Jwks::from_secret(b"secret-secret-secret-secret-secret").unwrap()
}

fn verify(claims: &Value) -> Result<Identity, TokenError> {
    Identity::verify(&hs(claims), &keys(), NOW)
}

/// An encoding key and the JWKS that verifies it.
fn pair(algorithm: Algorithm, dir: &std::path::Path) -> (EncodingKey, Jwks) {
    let make = |kind| rcgen::KeyPair::generate_for(kind).unwrap();
    let (key, jwk) = match algorithm {
        Algorithm::EdDSA => {
            let pair = make(&rcgen::PKCS_ED25519);
            let jwk = json!({"kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode(pair.public_key_raw())});
            (EncodingKey::from_ed_pem(pair.serialize_pem().as_bytes()).unwrap(), jwk)
        }
        other => {
            let key = match other {
                Algorithm::HS256 => EncodingKey::from_secret(b"another-secret-another-secret-ab").unwrap(),
                Algorithm::ES256 => {
                    EncodingKey::from_ec_pem(make(&rcgen::PKCS_ECDSA_P256_SHA256).serialize_pem().as_bytes()).unwrap()
                }
                _ => EncodingKey::from_rsa_pem(make(&rcgen::PKCS_RSA_SHA256).serialize_pem().as_bytes()).unwrap(),
            };
            let jwk = serde_json::to_value(Jwk::from_encoding_key(&key, other).unwrap()).unwrap();
            (key, jwk)
        }
    };
    let mut jwk = jwk;
    jwk["kid"] = json!(format!("{algorithm:?}"));
    let path = dir.join(format!("{algorithm:?}.json"));
    std::fs::write(&path, json!({"keys": [jwk]}).to_string()).unwrap();
    (key, Jwks::load(path).unwrap())
}

#[test]
fn every_algorithm_verifies_with_its_own_key_only() {
    let dir = tempfile::tempdir().unwrap();
    let all = [Algorithm::HS256, Algorithm::ES256, Algorithm::EdDSA, Algorithm::RS256];
    let pairs: Vec<_> = all.iter().map(|a| pair(*a, dir.path())).collect();
    for (i, (key, _)) in pairs.iter().enumerate() {
        let token = encode(&Header::new(all[i]), &claims(), key).unwrap();
        for (j, (_, keys)) in pairs.iter().enumerate() {
            let got = Identity::verify(&token, keys, NOW);
            assert_eq!(got.is_ok(), i == j, "{:?} by {:?}: {got:?}", all[i], all[j]);
        }
    }
}

#[test]
fn a_wrong_kid_a_wrong_signature_and_alg_none_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (key, keys) = pair(Algorithm::ES256, dir.path());
    let header = Header { kid: Some("other".into()), ..Header::new(Algorithm::ES256) };
    assert!(matches!(
        Identity::verify(&encode(&header, &claims(), &key).unwrap(), &keys, NOW),
        Err(TokenError::NoKey(_))
    ));
    let (stranger, _) = pair(Algorithm::ES256, dir.path());
    let forged = encode(&Header::new(Algorithm::ES256), &claims(), &stranger).unwrap();
    assert_eq!(Identity::verify(&forged, &keys, NOW), Err(TokenError::Signature));
    let part = |v: Value| URL_SAFE_NO_PAD.encode(v.to_string());
    for alg in ["none", "None"] {
        let unsigned = format!("{}.{}.", part(json!({"alg": alg, "typ": "JWT"})), part(claims()));
        assert!(
            matches!(Identity::verify(&unsigned, &keys, NOW), Err(TokenError::Malformed(_) | TokenError::NoKey(_))),
            "{alg}"
        );
    }
    // the public key as an HMAC secret
    let confused = encode(&Header::new(Algorithm::HS256), &claims(), &EncodingKey::from_secret(b"x").unwrap()).unwrap();
    assert!(matches!(Identity::verify(&confused, &keys, NOW), Err(TokenError::NoKey(_))));
}

#[test]
fn each_claim_is_checked() {
    assert_eq!(&*verify(&claims()).unwrap().principal, "ann");
    let without = |name: &str| {
        let mut c = claims();
        c.as_object_mut().unwrap().remove(name);
        verify(&c).unwrap_err().to_string()
    };
    for name in ["sub", "exp", "aud"] {
        assert!(without(name).contains(name), "{}", without(name));
    }
    let with = |name: &str, value: Value| {
        let mut c = claims();
        c[name] = value;
        verify(&c)
    };
    assert!(with("aud", json!("other")).unwrap_err().to_string().contains("aud"));
    assert!(with("aud", json!(["other", "holdfast"])).is_ok());
    assert_eq!(with("exp", json!(1000)), Err(TokenError::Expired));
    assert!(with("exp", json!("soon")).is_err() && with("exp", json!(-5)) == Err(TokenError::Expired));
    assert!(with("nbf", json!(1004)).is_ok() && with("nbf", json!(1006)).unwrap_err().to_string().contains("nbf"));
    assert!(with("exp", json!(1000.9)).is_err() && with("exp", json!(2000.5)).is_ok());
    assert!(with("sub", json!("")).is_err() && with("sub", json!("x".repeat(300))).is_err());
    assert!(with("sessions", json!({"a": {"role": "king"}})).is_err());
    assert_eq!(Identity::verify("", &keys(), NOW), Err(TokenError::Missing));
    assert!(matches!(Identity::verify("a.b", &keys(), NOW), Err(TokenError::Malformed(_))));
    assert!(matches!(Identity::verify(&"a".repeat(9000), &keys(), NOW), Err(TokenError::Malformed(_))));
}

#[test]
fn sessions_are_granted_by_name_then_by_the_longest_glob() {
    let mut c = claims();
    c["sessions"] = json!({"g_1": {"seat": "black"}, "g_*": {"role": "spectator"}, "g_12*": {"seat": "white"}});
    let id = verify(&c).unwrap();
    assert_eq!(&*id.grant("g_1").unwrap().seat, "black");
    assert!(id.grant("g_2").unwrap().spectator_only);
    assert_eq!(&*id.grant("g_123").unwrap().seat, "white");
    assert_eq!(id.grant("mtg"), None);
    assert_eq!(verify(&claims()).unwrap().grant("mtg"), Some(Grant::default()));
}

#[test]
fn globs_match_like_a_shell() {
    for (pattern, text, fits) in [
        ("*", "", true),
        ("a*c", "abc", true),
        ("a*c", "abcd", false),
        ("*b*", "abc", true),
        ("a?c", "abc", true),
        ("", "a", false),
        ("a", "a", true),
    ] {
        assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), fits, "{pattern} {text}");
    }
    assert!(!glob("*a*a*a*a*b".as_bytes(), "a".repeat(128).as_bytes()));
}

#[test]
fn origins_bind_browsers_only() {
    let mut c = claims();
    c["origin"] = json!(["https://a.example"]);
    let id = verify(&c).unwrap();
    assert!(
        id.allows_origin(None)
            && id.allows_origin(Some("https://a.example"))
            && !id.allows_origin(Some("https://b.example"))
    );
    assert!(allowed(&[], Some("https://b.example")) && allowed(&["*".into()], Some("x")));
}

#[test]
fn a_changed_key_file_is_used_and_a_broken_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (first, keys) = pair(Algorithm::EdDSA, dir.path());
    let (second, _) = pair(Algorithm::EdDSA, dir.path());
    let token = |key: &EncodingKey| encode(&Header::new(Algorithm::EdDSA), &claims(), key).unwrap();
    assert!(Identity::verify(&token(&first), &keys, NOW).is_ok());
    keys.reload().unwrap();
    assert!(
        Identity::verify(&token(&first), &keys, NOW).is_err() && Identity::verify(&token(&second), &keys, NOW).is_ok()
    );
    std::fs::write(keys.file().unwrap(), "{\"keys\":[\"s3cret").unwrap();
    let error = keys.reload().unwrap_err().to_string();
    assert!(error.contains("EdDSA.json") && !error.contains("s3cret"), "{error}");
    assert!(Identity::verify(&token(&second), &keys, NOW).is_ok());
}
