//! A frame on its way to clients, shared between them and encoded at most once per form.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use holdfast_core::{proto::server_frame, time::Mono};

use super::{Form, json, proto};

/// First byte of an unfragmented WebSocket text message.
const TEXT: u8 = 0x81;
/// First byte of an unfragmented WebSocket binary message.
const BINARY: u8 = 0x82;

/// A server frame, cheap to clone. Fan-out hands the same one to every connection.
///
/// What is encoded is the whole WebSocket message, header included: a server's messages are not masked, so even these
/// bytes are the same for everybody.
#[derive(Clone, Debug)]
pub struct Outgoing(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    frame: server_frame::F,
    stamp: bool,
    read_at: Option<Mono>,
    json: OnceLock<Bytes>,
    proto: OnceLock<Bytes>,
}

impl Outgoing {
    /// Takes a frame; nothing is encoded yet.
    #[must_use]
    pub fn new(frame: server_frame::F) -> Self {
        Self::with_stamp(frame, false)
    }

    /// Takes a frame; with `stamp`, the first write of it is reported by `SessionPort::delivered`.
    #[must_use]
    pub fn with_stamp(frame: server_frame::F, stamp: bool) -> Self {
        Self::relayed(frame, stamp, None)
    }

    /// As [`Outgoing::with_stamp`], for a frame made from what was read from a link at `read_at`.
    #[must_use]
    pub fn relayed(frame: server_frame::F, stamp: bool, read_at: Option<Mono>) -> Self {
        Self(Arc::new(Shared { frame, stamp, read_at, json: OnceLock::new(), proto: OnceLock::new() }))
    }

    /// The frame.
    #[must_use]
    pub fn frame(&self) -> &server_frame::F {
        &self.0.frame
    }

    /// Whether the time of its first write is wanted.
    #[must_use]
    pub fn stamp(&self) -> bool {
        self.0.stamp
    }

    /// When what it was made from was read from a link; the time to its write is `gateway_down`.
    #[must_use]
    pub fn read_at(&self) -> Option<Mono> {
        self.0.read_at
    }

    /// The WebSocket message of `form`, header included; encoded by the first who asks.
    #[must_use]
    pub fn websocket(&self, form: Form) -> &Bytes {
        match form {
            Form::Json => self.0.json.get_or_init(|| message(TEXT, &json::encode(&self.0.frame))),
            Form::Proto => self.0.proto.get_or_init(|| message(BINARY, &proto::encode(&self.0.frame))),
        }
    }
}

impl From<server_frame::F> for Outgoing {
    fn from(frame: server_frame::F) -> Self {
        Self::new(frame)
    }
}

/// An unmasked, unfragmented WebSocket message (RFC 6455, 5.2).
fn message(opcode: u8, payload: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(payload.len() + 10);
    out.push(opcode);
    match payload.len() {
        n @ 0..=125 => out.push(u8::try_from(n).unwrap_or(0)),
        n @ 126..=0xffff => {
            out.push(126);
            out.extend(u16::try_from(n).unwrap_or(0).to_be_bytes());
        }
        n => {
            out.push(127);
            out.extend((n as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
    out.into()
}

#[cfg(test)]
mod tests {
    use holdfast_core::proto::server_frame::{Error, F, Pong};

    use super::*;

    #[test]
    fn a_frame_is_encoded_once_and_shared() {
        let one = Outgoing::new(F::Pong(Pong { n: 4, now_us: 5 }));
        let two = one.clone();
        assert_eq!(one.websocket(Form::Json).as_ptr(), two.websocket(Form::Json).as_ptr());
        assert_eq!(&one.websocket(Form::Json)[..], b"\x81\x1d{\"t\":\"pong\",\"n\":4,\"now_us\":5}");
        assert_eq!(&one.websocket(Form::Proto)[..2], [0x82, 7]);
    }

    #[test]
    fn lengths_use_the_shortest_header() {
        for (detail, header) in [(0, 2), (200, 4), (70_000, 10)] {
            let frame = Outgoing::new(F::Error(Error { code: 400, detail: "x".repeat(detail) }));
            let bytes = frame.websocket(Form::Json);
            assert_eq!(bytes[header], b'{', "{detail}");
        }
    }
}
