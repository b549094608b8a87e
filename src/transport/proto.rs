//! The binary form: varint-delimited `ClientFrame` and `ServerFrame` (design 4.1).

use holdfast_core::proto::{ClientFrame, Content, ServerFrame, client_frame as c, server_frame};
use prost::Message;

use super::{Decoded, json::check_inline};

/// The frames of one binary message, in order. After a mistake the rest of the message is lost: there is no way to find the next frame.
pub fn decode(message: &[u8], frame_bytes_max: usize, mut each: impl FnMut(Decoded)) {
    let mut rest = message;
    while !rest.is_empty() {
        let Ok(len) = prost::decode_length_delimiter(&mut rest) else {
            each(Decoded::Bad("no varint length before the frame".into()));
            return;
        };
        if len > frame_bytes_max {
            each(Decoded::TooLarge(len));
            return;
        }
        let Some((frame, behind)) = rest.split_at_checked(len) else {
            each(Decoded::Bad(format!("frame of {len} bytes announced, {} are there", rest.len())));
            return;
        };
        // From a slice prost copies: a held payload must not pin the read buffer.
        each(match ClientFrame::decode(frame) {
            Ok(ClientFrame { f: Some(f) }) => checked(f),
            Ok(ClientFrame { f: None }) => Decoded::Unknown(String::new()),
            Err(e) => Decoded::Bad(format!("not protobuf: {e}")),
        });
        rest = behind;
    }
}

fn checked(mut f: c::F) -> Decoded {
    let verdict = match &mut f {
        c::F::Op(op) => {
            op.attempt = op.attempt.max(1);
            if op.op.as_ref().is_none_or(|id| id.seq == 0) {
                Err("op: seq starts at 1".to_owned())
            } else {
                inline(op.content, &op.payload)
            }
        }
        c::F::Reaction(r) => inline(r.content, &r.payload),
        _ => Ok(()),
    };
    verdict.map_or_else(Decoded::Bad, |()| Decoded::Frame(f))
}

fn inline(content: i32, payload: &[u8]) -> Result<(), String> {
    if content == i32::from(Content::Json) { check_inline(payload) } else { Ok(()) }
}

/// `frame` with its length before it.
#[must_use]
pub fn encode(frame: &server_frame::F) -> Vec<u8> {
    ServerFrame { f: Some(frame.clone()) }.encode_length_delimited_to_vec()
}

#[cfg(test)]
mod tests {
    use holdfast_core::proto::OpId;

    use super::*;

    fn all(message: &[u8]) -> Vec<Decoded> {
        let mut out = Vec::new();
        decode(message, 65_536, |d| out.push(d));
        out
    }

    fn op(payload: &'static [u8], content: Content) -> Vec<u8> {
        let op = c::Op {
            session: "g".into(),
            op: Some(OpId { seq: 1, ..OpId::default() }),
            payload: payload.into(),
            content: content.into(),
            ..c::Op::default()
        };
        ClientFrame { f: Some(c::F::Op(op)) }.encode_length_delimited_to_vec()
    }

    #[test]
    fn two_frames_in_one_message_come_out_in_order() {
        let mut message = op(b"{}", Content::Json);
        message.extend(ClientFrame { f: Some(c::F::Ping(c::Ping { n: 4 })) }.encode_length_delimited_to_vec());
        let out = all(&message);
        assert!(matches!(&out[0], Decoded::Frame(c::F::Op(op)) if op.attempt == 1), "{out:?}");
        assert_eq!(out[1], Decoded::Frame(c::F::Ping(c::Ping { n: 4 })));
    }

    #[test]
    fn bad_input_is_named() {
        assert!(matches!(&all(&[0xff; 11])[..], [Decoded::Bad(_)]));
        assert!(matches!(&all(&[5, 1, 2])[..], [Decoded::Bad(d)] if d.contains("2 are there")));
        assert!(matches!(&all(&[2, 0x0a, 0xff])[..], [Decoded::Bad(_)]));
        assert!(matches!(&all(&[0])[..], [Decoded::Unknown(_)]));
        assert!(matches!(&all(&[0x81, 0x80, 0x04])[..], [Decoded::TooLarge(65_537)]));
    }

    #[test]
    fn mutated_input_never_panics() {
        use rand::{Rng as _, SeedableRng as _};
        let mut rng = rand::rngs::StdRng::seed_from_u64(7);
        for _ in 0..20_000 {
            let mut message = op(b"{\"a\":1}", Content::Json);
            for _ in 0..rng.random_range(1..5) {
                let at = rng.random_range(0..message.len());
                message[at] = rng.random();
            }
            for decoded in all(&message) {
                if let Decoded::Frame(c::F::Op(op)) = decoded {
                    assert!(op.content() != Content::Json || check_inline(&op.payload).is_ok());
                }
            }
        }
    }

    #[test]
    fn a_payload_marked_json_is_checked_where_it_enters() {
        assert!(matches!(&all(&op(b"{\"a\":\n1}", Content::Json))[..], [Decoded::Bad(_)]));
        assert!(matches!(&all(&op(b"{} {}", Content::Json))[..], [Decoded::Bad(_)]));
        assert!(matches!(&all(&op(b"\n", Content::Bytes))[..], [Decoded::Frame(_)]));
    }
}
