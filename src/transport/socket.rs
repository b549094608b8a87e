//! Layers below a connection: when bytes arrived, TLS or not, and one pending write.
//!
//! [`Timed`] notes the time of every successful socket read, below TLS (design 5.2). [`Stream`] is plain or TLS.
//! [`Framed`] is what tungstenite reads from; whatever it writes (pongs, closes) is appended to the same pending write as
//! our own ready-made frames, so the two can never interleave inside a frame.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use holdfast_core::time::Now;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;

use crate::clock::Clock;

/// Control frames tungstenite may queue behind a blocked write before it has to wait: 32 pongs of 127 B.
const PENDING_CONTROL_BYTES_MAX: usize = 4096;
/// An emptied write buffer above this is given back, so that idle connections hold nothing.
const KEPT_WRITE_BYTES_MAX: usize = 256;

/// A socket that remembers when its last read returned bytes.
#[derive(Debug)]
pub struct Timed {
    inner: TcpStream,
    clock: Clock,
    last_read: Now,
    /// Read before TLS and not yet given on; `None` soon and for good.
    early: Option<Box<io::Cursor<Vec<u8>>>>,
}

impl Timed {
    /// Wraps an accepted socket from which `early` was read just now.
    #[must_use]
    pub fn new(inner: TcpStream, early: Vec<u8>, clock: Clock) -> Self {
        let last_read = clock.now();
        let early = (!early.is_empty()).then(|| Box::new(io::Cursor::new(early)));
        Self { inner, clock, last_read, early }
    }

    /// When the newest bytes were read.
    #[must_use]
    pub fn last_read(&self) -> Now {
        self.last_read
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        &self.inner
    }
}

impl AsyncRead for Timed {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(early) = &mut self.early {
            let polled = Pin::new(&mut **early).poll_read(cx, buf);
            if early.position() == early.get_ref().len() as u64 {
                self.early = None;
            }
            return polled;
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        if matches!(polled, Poll::Ready(Ok(()))) && buf.filled().len() > before {
            self.last_read = self.clock.now();
        }
        polled
    }
}

impl AsyncWrite for Timed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// A client's byte stream. The TLS state is boxed: inline it would be 5 KiB of every task.
#[derive(Debug)]
pub enum Stream {
    /// As accepted.
    Plain(Timed),
    /// Under TLS.
    Tls(Box<TlsStream<Timed>>),
}

impl Stream {
    /// When the newest bytes were read from the socket, below TLS.
    #[must_use]
    pub fn last_read(&self) -> Now {
        match self {
            Self::Plain(s) => s.last_read(),
            Self::Tls(s) => s.get_ref().0.last_read(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(s) => Pin::new(s).poll_read(cx, buf),
            Self::Tls(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(s) => Pin::new(s).poll_write(cx, buf),
            Self::Tls(s) => Pin::new(s).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(s) => Pin::new(s).poll_flush(cx),
            Self::Tls(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(s) => Pin::new(s).poll_shutdown(cx),
            Self::Tls(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}

/// A stream with one pending write, at whose end whole frames are appended.
#[derive(Debug)]
pub struct Framed {
    stream: Stream,
    pending: Vec<u8>,
    written: usize,
}

impl Framed {
    /// Nothing is pending.
    #[must_use]
    pub fn new(stream: Stream) -> Self {
        Self { stream, pending: Vec::new(), written: 0 }
    }

    /// When the newest bytes were read from the socket, below TLS.
    #[must_use]
    pub fn last_read(&self) -> Now {
        self.stream.last_read()
    }

    /// Appends a whole frame, header included.
    pub fn push(&mut self, frame: &[u8]) {
        self.pending.extend_from_slice(frame);
    }

    /// Bytes not yet given to the stream.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len() - self.written
    }

    /// Writes what is pending; ready when the kernel has taken all of it.
    pub fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.pending.len() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.pending[self.written..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => self.written += n,
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => return Poll::Pending,
            }
        }
        self.written = 0;
        self.pending.clear();
        if self.pending.capacity() > KEPT_WRITE_BYTES_MAX {
            self.pending = Vec::new();
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Ends our direction of the stream.
    pub fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl AsyncRead for Framed {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

/// What tungstenite writes: always whole control frames, taken at once.
impl AsyncWrite for Framed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.pending() > PENDING_CONTROL_BYTES_MAX {
            // Behind a blocked write of ours, or a client that pings and does not read: wait until the socket takes some.
            if let Poll::Ready(Err(e)) = self.poll_drain(cx) {
                return Poll::Ready(Err(e));
            }
            if self.pending() > PENDING_CONTROL_BYTES_MAX {
                return Poll::Pending;
            }
        }
        self.push(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_end(cx)
    }
}
