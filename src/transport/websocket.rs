//! HTTP/1.1 upgrade at `/v1/ws` and the WebSocket that comes of it (design 4.1).

mod answer;

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::protocol::{Role, WebSocketConfig},
};

use super::{
    Form,
    socket::{Framed, Stream},
};

/// The path of the WebSocket endpoint.
pub const PATH: &str = "/v1/ws";
/// Subprotocol of the JSON form.
pub const JSON: &str = "holdfast.v1.json";
/// Subprotocol of the binary form.
pub const PROTO: &str = "holdfast.v1.proto";
/// Read buffer per connection: 1 KiB keeps an idle connection at 2.7 KiB in all (measured, design 17).
const READ_BUFFER_BYTES: usize = 1024;
/// Largest HTTP header: browsers send 1 KiB, with cookies of a shared domain 4 KiB. 1,250 handshakes x 16 KiB are 20 MiB.
const HEADER_BYTES_MAX: usize = 16 * 1024;

/// The socket of one client, frames in, frames out.
pub type Socket = WebSocketStream<Framed>;

/// What the upgrade request said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// Chosen from the subprotocols offered: the client's first that we know.
    pub form: Form,
    /// The `Origin` header, as browsers send it.
    pub origin: Option<String>,
    /// `k` and `r` of the query (slot ticket, resume token), percent-decoding not needed: base64url.
    pub query: String,
    /// Values of all `X-Forwarded-For` headers in their order, to be believed through trusted hops only.
    pub forwarded_for: Option<String>,
}

/// Static pages beside the endpoint: path to (content type, body).
pub type Pages = Arc<dyn Fn(&str) -> Option<(&'static str, Bytes)> + Send + Sync>;

/// Whether this gateway should get new clients, as `/readyz` answers balancers. Asked for each of their checks.
pub type Ready = Arc<dyn Fn() -> bool + Send + Sync>;

/// What an upgrade request wants, before it is answered.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The query.
    pub query: &'a str,
    /// The `Origin` header.
    pub origin: Option<&'a str>,
    /// See [`Upgrade::forwarded_for`].
    pub forwarded_for: Option<&'a str>,
}

/// The answer to a client that is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// A whole close frame, for those who get one.
    pub frame: Vec<u8>,
    /// The body of a 503, for the others.
    pub body: String,
    /// Its `Retry-After`, in seconds.
    pub retry_after_s: Option<u64>,
}

/// Whether the client behind a request is let in.
pub type Admit<'a> = &'a (dyn Fn(&Wish<'_>) -> Result<(), Refused> + Sync);

/// What the caller adds to the HTTP.
pub struct Hooks<'a> {
    /// Pages beside the endpoint.
    pub pages: Option<&'a Pages>,
    /// What `/readyz` says.
    pub ready: Option<&'a Ready>,
    /// Asked once for each upgrade request.
    pub admit: Admit<'a>,
}

/// What became of a stream.
#[expect(clippy::large_enum_variant, reason = "moved once, out of the handshake")]
pub enum Upgraded {
    /// A client.
    Client(Upgrade, Socket),
    /// It was refused, and told so.
    Refused,
    /// It left, or wanted only pages or our health.
    Served,
}

/// What the answer to the request decided.
enum Agreed {
    Client(Upgrade),
    /// This frame goes out with the 101, and that is all.
    Refused(Vec<u8>),
}

/// Between the answer and those who write it.
#[derive(Default)]
struct Desk {
    agreed: Mutex<Option<Agreed>>,
    /// From now on what hyper writes is kept.
    corked: AtomicBool,
}

/// Serves HTTP on `stream` until a client upgrades or is refused.
///
/// The caller bounds the time. hyper's read buffer is dropped (it would pin 8 KiB); bytes behind the request are kept. A
/// refusal is one write, 101 and close frame together, and FIN: nothing waits for the client's own close.
pub async fn upgrade(stream: Stream, hooks: &Hooks<'_>, message_bytes_max: usize) -> io::Result<Upgraded> {
    let desk = Arc::new(Desk::default());
    let checked = AtomicBool::new(false);
    let service = service_fn(|request: Request<Incoming>| {
        let health = answer::health(&request, hooks.ready);
        checked.store(health.is_some(), Ordering::Relaxed);
        let response = health.unwrap_or_else(|| answer::answer(&request, hooks, &desk));
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let parts = hyper::server::conn::http1::Builder::new()
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(Corked { stream, desk: desk.clone(), kept: Vec::new() }), service)
        .without_shutdown()
        .await;
    let parts = match parts {
        Ok(parts) => parts,
        // Balancers reset their checks once they have heard enough.
        Err(_) if checked.load(Ordering::Relaxed) => return Ok(Upgraded::Served),
        Err(e) => return Err(io::Error::other(e)),
    };
    let Corked { mut stream, kept, .. } = parts.io.into_inner();
    let agreed = desk.agreed.lock().unwrap_or_else(PoisonError::into_inner).take();
    match agreed {
        None => Ok(Upgraded::Served),
        Some(Agreed::Refused(frame)) => {
            let mut all = kept;
            all.extend(frame);
            stream.write_all(&all).await?;
            stream.shutdown().await?;
            Ok(Upgraded::Refused)
        }
        Some(Agreed::Client(upgrade)) => {
            let early = parts.read_buf.to_vec();
            drop(parts.read_buf);
            Ok(Upgraded::Client(upgrade, socket(stream, early, message_bytes_max).await))
        }
    }
}

async fn socket(stream: Stream, early: Vec<u8>, message_bytes_max: usize) -> Socket {
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(0)
        .max_message_size(Some(message_bytes_max))
        .max_frame_size(Some(message_bytes_max));
    let framed = Framed::new(stream);
    if early.is_empty() {
        WebSocketStream::from_raw_socket(framed, Role::Server, Some(config)).await
    } else {
        WebSocketStream::from_partially_read(framed, early, Role::Server, Some(config)).await
    }
}

/// The stream as hyper sees it: once corked, what it writes is kept for us to send in one piece.
struct Corked {
    stream: Stream,
    desk: Arc<Desk>,
    kept: Vec<u8>,
}

impl AsyncRead for Corked {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Corked {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.desk.corked.load(Ordering::Relaxed) {
            self.kept.extend_from_slice(buf);
            return Poll::Ready(Ok(buf.len()));
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
