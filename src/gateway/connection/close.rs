//! How a connection ends: the sessions first, then what is queued, the close frame, FIN, and theirs.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use holdfast_core::time::Mono;
use tokio::io::{AsyncRead, ReadBuf};

use super::{Connection, Over};
use crate::gateway::outbox::REASON_BYTES_MAX;

/// First byte of a close frame.
const CLOSE: u8 = 0x88;

/// Where a closing connection is.
pub(super) struct Closing {
    /// No longer than this.
    pub(super) deadline: Mono,
    /// The close frame, until it was given to the socket.
    frame: Option<Vec<u8>>,
    fin: bool,
}

impl Connection {
    /// Starts closing with a code of design 4.4 and words a developer can act on. The first one counts.
    pub(super) fn close(&mut self, code: u16, reason: &str) {
        let mut end = reason.len().min(REASON_BYTES_MAX);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let mut frame = vec![CLOSE, u8::try_from(end + 2).unwrap_or(2)];
        frame.extend(code.to_be_bytes());
        frame.extend(&reason.as_bytes()[..end]);
        tracing::debug!(conn = %super::label(self.outbox.conn), code, reason, "closing");
        self.start_closing(frame);
    }

    /// The client closed: its code is answered, what is queued is of no use to it.
    pub(super) fn closed_by_client(&mut self, code: Option<u16>) {
        self.outbox.lock().queue.clear();
        let mut frame = vec![CLOSE, if code.is_some() { 2 } else { 0 }];
        frame.extend(code.into_iter().flat_map(u16::to_be_bytes));
        self.start_closing(frame);
    }

    fn start_closing(&mut self, frame: Vec<u8>) {
        if self.closing.is_some() {
            return;
        }
        self.leave();
        let deadline = self.shared.clock.now().mono.after(self.shared.config.limits.close_timeout);
        self.closing = Some(Closing { deadline, frame: Some(frame), fin: false });
    }

    /// Tells the sessions, once.
    pub(super) fn leave(&mut self) {
        self.outbox.lock().closed = true;
        if self.client.take().is_some() {
            self.shared.port.unregister(self.outbox.conn, self.reason);
        }
    }

    /// Everything queued is written: the close frame, FIN, then wait for the client to do the same.
    pub(super) fn poll_closing(&mut self, cx: &mut Context<'_>) -> Result<(), Over> {
        let Some(closing) = &mut self.closing else { return Ok(()) };
        let framed = self.socket.get_mut();
        if let Some(frame) = closing.frame.take() {
            framed.push(&frame);
        }
        if !closing.fin {
            match framed.poll_drain(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Err(Over),
                Poll::Pending => return Ok(()),
            }
            match framed.poll_end(cx) {
                Poll::Ready(Ok(())) => closing.fin = true,
                Poll::Ready(Err(_)) => return Err(Over),
                Poll::Pending => return Ok(()),
            }
        }
        // Closing a socket with unread bytes would be a reset, which may overtake the close frame.
        loop {
            let mut scratch = [0; 1024];
            let mut buf = ReadBuf::new(&mut scratch);
            match Pin::new(&mut *framed).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {}
                Poll::Ready(_) => return Err(Over),
                Poll::Pending => return Ok(()),
            }
        }
    }
}
