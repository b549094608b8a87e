//! A frame on its way to clients, shared between them and encoded at most once per form.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use holdfast_core::proto::server_frame;

/// A server frame, cheap to clone. Fan-out hands the same one to every connection.
#[derive(Clone, Debug)]
pub struct Outgoing(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    frame: server_frame::F,
    json: OnceLock<Bytes>,
    proto: OnceLock<Bytes>,
}

impl Outgoing {
    /// Takes a frame; nothing is encoded yet.
    #[must_use]
    pub fn new(frame: server_frame::F) -> Self {
        Self(Arc::new(Shared { frame, json: OnceLock::new(), proto: OnceLock::new() }))
    }

    /// The frame.
    #[must_use]
    pub fn frame(&self) -> &server_frame::F {
        &self.0.frame
    }
}

impl From<server_frame::F> for Outgoing {
    fn from(frame: server_frame::F) -> Self {
        Self::new(frame)
    }
}
