//! The JSON form of the client protocol (design 4.2).
//!
//! A payload travels byte for byte: it is checked to be one JSON value without raw CR or LF, and never re-printed, so a
//! payload can neither change on its way nor break out of its line.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

pub use decode::decode;
pub use encode::encode;

/// base64url, written without padding, read with or without.
const B64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_encode_padding(false).with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// `bytes` as base64url without padding.
#[must_use]
pub fn b64(bytes: &[u8]) -> String {
    B64.encode(bytes)
}

/// The bytes of a base64url text; padding is optional.
#[must_use]
pub fn from_b64(text: &str) -> Option<Vec<u8>> {
    B64.decode(text).ok()
}

/// Whether `payload` may be shown inline: one JSON value, UTF-8, no raw CR or LF (so it cannot inject a frame).
pub fn check_inline(payload: &[u8]) -> Result<(), String> {
    if let Some(at) = payload.iter().position(|b| matches!(b, b'\r' | b'\n')) {
        return Err(format!(
            "data: raw CR or LF at byte {at}; write \\n inside strings and no line breaks between values"
        ));
    }
    serde_json::from_slice::<&serde_json::value::RawValue>(payload)
        .map(|_| ())
        .map_err(|e| format!("data: not one JSON value: {e}"))
}
