//! Bytes of messages that more than one place must agree on: the digest of an op and its stamp.

use bytes::Bytes;
use prost::Message;
use sha2::{Digest, Sha256};

use crate::proto;

/// Digest length in bytes: the first 16 of SHA-256 (`HeldOp.digest`).
pub const DIGEST_BYTES: usize = 16;

/// What an op's identity covers: session, lane, seq, base, kind, content and payload (not `settled`).
#[derive(Clone, Copy, Debug)]
pub struct DigestInput<'a> {
    /// Session id.
    pub session: &'a str,
    /// The op's lane, 8 to 16 bytes.
    pub lane: &'a [u8],
    /// The op's seq.
    pub seq: u64,
    /// `base_ver`.
    pub base_ver: u64,
    /// `op_kind`.
    pub op_kind: u32,
    /// `Content` as its number.
    pub content: i32,
    /// The payload, verbatim.
    pub payload: &'a [u8],
}

/// First 16 bytes of SHA-256 over the fields in schema order, each preceded by its length as u32 LE, integers as u64 LE.
#[must_use]
pub fn digest(input: &DigestInput<'_>) -> Bytes {
    let mut hash = Sha256::new();
    let mut field = |b: &[u8]| {
        hash.update(u32::try_from(b.len()).unwrap_or(u32::MAX).to_le_bytes());
        hash.update(b);
    };
    field(input.session.as_bytes());
    field(input.lane);
    field(&input.seq.to_le_bytes());
    field(&input.base_ver.to_le_bytes());
    field(&u64::from(input.op_kind).to_le_bytes());
    field(&u64::try_from(input.content).unwrap_or(0).to_le_bytes());
    field(input.payload);
    Bytes::copy_from_slice(&hash.finalize()[..DIGEST_BYTES])
}

/// Encodes a message once; the bytes are shared from then on.
#[must_use]
pub fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

/// `OpId` of a lane's op.
#[must_use]
pub fn op_id(lane: &[u8], seq: u64) -> proto::OpId {
    proto::OpId { lane: Bytes::copy_from_slice(lane), seq }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_changes_with_every_field_and_with_where_one_ends() {
        let base =
            DigestInput { session: "g", lane: b"12345678", seq: 1, base_ver: 2, op_kind: 3, content: 1, payload: b"x" };
        let other = [
            DigestInput { session: "g1", ..base },
            DigestInput { lane: b"12345679", ..base },
            DigestInput { seq: 2, ..base },
            DigestInput { base_ver: 1, ..base },
            DigestInput { op_kind: 4, ..base },
            DigestInput { content: 2, ..base },
            DigestInput { payload: b"y", ..base },
            DigestInput { session: "", payload: b"gx", ..base },
        ];
        assert_eq!(digest(&base).len(), DIGEST_BYTES);
        for o in &other {
            assert_ne!(digest(&base), digest(o), "{o:?}");
        }
    }
}
