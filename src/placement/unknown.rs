//! Writers keep the fields they do not know (`holdfast.proto`, part 3), so that an older placement service does not strip
//! what a newer one wrote. prost drops them; protobuf allows them to be appended as they were.

use bytes::{Buf as _, Bytes};
use prost::{
    DecodeError,
    encoding::{DecodeContext, decode_key, skip_field},
};

/// Highest field number of `Placement` that this version knows.
pub(crate) const PLACEMENT_KNOWN: u32 = 7;

/// Highest field number of `NodeInfo` that this version knows.
pub(crate) const NODE_KNOWN: u32 = 8;

/// The encoded fields of `value` with numbers above `known`; nothing of a value that is not protobuf.
pub(crate) fn fields(value: &Bytes, known: u32) -> Bytes {
    scan(value, known).unwrap_or_default()
}

fn scan(value: &Bytes, known: u32) -> Result<Bytes, DecodeError> {
    let mut rest = value.clone();
    let mut kept = Vec::new();
    while rest.has_remaining() {
        let start = value.len() - rest.len();
        let (number, wire) = decode_key(&mut rest)?;
        skip_field(wire, number, &mut rest, DecodeContext::default())?;
        if number > known {
            kept.extend_from_slice(&value[start..value.len() - rest.len()]);
        }
    }
    Ok(kept.into())
}

/// `message` encoded, with the unknown fields behind it.
pub(crate) fn encode(message: &impl prost::Message, unknown: &Bytes) -> Bytes {
    let mut value = message.encode_to_vec();
    value.extend_from_slice(unknown);
    value.into()
}

#[cfg(test)]
mod tests {
    use holdfast_core::proto::Placement;
    use prost::Message as _;

    use super::*;

    #[test]
    fn fields_of_a_newer_version_survive_a_change() {
        let old = Placement { epoch: 7, kind: "game".into(), ..Placement::default() };
        // field 100, varint 5; field 101, bytes "xy"
        let foreign = [0xa0, 0x06, 5, 0xaa, 0x06, 2, b'x', b'y'];
        let value = encode(&old, &Bytes::copy_from_slice(&foreign));
        assert_eq!(fields(&value, PLACEMENT_KNOWN), foreign.as_slice());
        assert_eq!(Placement::decode(value).unwrap(), old);
        assert_eq!(fields(&old.encode_to_vec().into(), PLACEMENT_KNOWN), Bytes::new());
        assert_eq!(fields(&Bytes::from_static(&[0xff]), PLACEMENT_KNOWN), Bytes::new());
    }
}
