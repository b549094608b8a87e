//! The fleet's keys: one file for all gateways, read again when it changes (design 9.3, 14).
//!
//! JSON: `{"current":{"id":2,"secret":"<32 bytes, base64url>"},"others":[{"id":1,"secret":"…"},{"id":3,"secret":"…"}]}`.
//! What a gateway seals it seals with `current`; it opens what any of them sealed. A rotation without a gap is three
//! files: the next key among `others` everywhere, then as `current`, then without the old one a day later.

use std::path::Path;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use holdfast_core::admission::{FleetKeys, Key};
use serde::Deserialize;

/// Most keys beside the current one: the next and the old, with room for a rotation that went wrong.
const OTHERS_MAX: usize = 8;

/// Why a file of keys cannot be used; names the file, never quotes a secret.
#[derive(Debug, thiserror::Error)]
#[error("fleet keys {}: {why}", path.display())]
pub struct KeysError {
    /// The file.
    pub path: std::path::PathBuf,
    /// What is wrong with it.
    pub why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    current: One,
    #[serde(default)]
    others: Vec<One>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct One {
    id: u8,
    secret: String,
}

/// Reads the file.
///
/// # Errors
/// It cannot be read, is not of the form, or two keys have one id.
pub fn read(path: &Path) -> Result<FleetKeys, KeysError> {
    let error = |why: String| KeysError { path: path.to_owned(), why };
    let text = std::fs::read_to_string(path).map_err(|e| error(e.to_string()))?;
    parse(&text).map_err(error)
}

/// Keys of this process alone: what it seals no other gateway opens, nor itself after a restart.
#[must_use]
pub fn own() -> FleetKeys {
    FleetKeys::new(Key::new(0, &rand::random()), Vec::new())
}

fn parse(text: &str) -> Result<FleetKeys, String> {
    // serde's message may quote the text around the mistake: only its place is told.
    let file: File = serde_json::from_str(text).map_err(|e| {
        format!(
            "line {} column {}: wanted {{\"current\":{{\"id\":1,\"secret\":\"…\"}},\"others\":[…]}}",
            e.line(),
            e.column()
        )
    })?;
    if file.others.len() > OTHERS_MAX {
        return Err(format!("{} others; {OTHERS_MAX} are allowed", file.others.len()));
    }
    let mut ids: Vec<u8> = file.others.iter().map(|k| k.id).chain([file.current.id]).collect();
    ids.sort_unstable();
    if let Some(twice) = ids.windows(2).find(|w| w[0] == w[1]) {
        return Err(format!("two keys have the id {}", twice[0]));
    }
    let others = file.others.iter().map(key).collect::<Result<_, _>>()?;
    Ok(FleetKeys::new(key(&file.current)?, others))
}

fn key(one: &One) -> Result<Key, String> {
    let wrong = || format!("key {}: the secret is not 32 bytes in base64url without padding", one.id);
    let secret = URL_SAFE_NO_PAD.decode(&one.secret).map_err(|_| wrong())?;
    let secret: [u8; 32] = secret.try_into().map_err(|_| wrong())?;
    Ok(Key::new(one.id, &secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(id: u8, byte: u8) -> String {
        format!(r#"{{"id":{id},"secret":"{}"}}"#, URL_SAFE_NO_PAD.encode([byte; 32]))
    }

    #[test]
    fn a_file_has_a_current_key_and_others() {
        let keys = parse(&format!(r#"{{"current":{},"others":[{}]}}"#, one(2, 9), one(1, 8))).unwrap();
        assert_eq!((keys.current().id, keys.find(1).map(|k| k.id), keys.find(3).map(|k| k.id)), (2, Some(1), None));
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not() {
        let twice = format!(r#"{{"current":{},"others":[{}]}}"#, one(2, 9), one(2, 8));
        for (text, word) in [
            (twice.as_str(), "two keys have the id 2"),
            (r#"{"current":{"id":1,"secret":"c2VjcmV0"}}"#, "key 1"),
            (r#"{"current":{"id":1,"secret":"c2VjcmV0","x":1}}"#, "line 1"),
            ("", "line 1"),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(word) && !why.contains("c2Vj"), "{why}");
        }
        assert!(read(Path::new("/nowhere/keys")).unwrap_err().to_string().contains("/nowhere/keys"));
    }
}
