//! The page that `holdfast dev` serves beside the WebSocket endpoint.

use std::sync::Arc;

use bytes::Bytes;

use crate::transport::websocket::Pages;

/// A chess board for one seat; session and token come in the fragment.
const DEMO: &str = include_str!("demo.html");

/// `/` is the demo page; nothing else is there.
#[must_use]
pub fn pages() -> Pages {
    Arc::new(|path| (path == "/").then(|| ("text/html; charset=utf-8", Bytes::from_static(DEMO.as_bytes()))))
}
