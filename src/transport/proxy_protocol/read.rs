//! A header from a socket, if it may send one.

use std::net::SocketAddr;

use tokio::{io::AsyncReadExt as _, net::TcpStream};

use super::{HEADER_BYTES_MAX, Parsed, Source, begins, parse};
use crate::transport::{
    Peer,
    trust::{Header, Trust},
};

/// First read: a header with its usual TLVs, and often the start of what the client says.
const READ_BYTES: usize = 512;

/// Who is there, before TLS.
#[derive(Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Somebody who has begun to speak; the bytes read so far, without the header.
    Speaking(Peer, Vec<u8>),
    /// It was closed before anything was said (but a header): a health check, or somebody who changed their mind.
    Silent,
}

/// Why a connection is reset before TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A header, or where one is required anything, from an address that is not trusted.
    #[error("PROXY header from an address that is not in proxy.trusted, or required and not from there")]
    Untrusted,
    /// No header where one is required.
    #[error("no PROXY header, and proxy.protocol is \"required\"")]
    Missing,
    /// A header that is none.
    #[error("malformed PROXY header: {0}")]
    Malformed(&'static str),
}

/// Learns who is behind `socket`, which comes from `from`. The caller bounds the time.
///
/// # Errors
/// See [`Refusal`]; the socket should be reset.
pub async fn accept(socket: &mut TcpStream, from: SocketAddr, trust: &Trust) -> Result<Accepted, Refusal> {
    let direct = trust.direct(from);
    let trusted = trust.trusts(direct.addr.ip());
    let (peer, early) = match trust.header {
        Header::Off => (direct, Vec::new()),
        Header::Required if !trusted => return Err(Refusal::Untrusted),
        mode => match header(socket, trusted).await? {
            None => return Ok(Accepted::Silent),
            Some((Some(Source::Client(addr)), early)) => (Peer::known(addr), early),
            Some((Some(Source::Unknown | Source::Local), early)) => (direct, early),
            Some((None, _)) if mode == Header::Required => return Err(Refusal::Missing),
            Some((None, early)) => (direct, early),
        },
    };
    if early.is_empty() && !speaks(socket).await {
        return Ok(Accepted::Silent);
    }
    Ok(Accepted::Speaking(peer, early))
}

/// The header, or `None` for it if there is none, and the bytes read behind it. `None`: closed without a byte.
async fn header(socket: &mut TcpStream, trusted: bool) -> Result<Option<(Option<Source>, Vec<u8>)>, Refusal> {
    let mut bytes = Vec::with_capacity(READ_BYTES);
    loop {
        if bytes.len() == bytes.capacity() {
            // Once: an incomplete header is shorter than that.
            bytes.reserve_exact(HEADER_BYTES_MAX - bytes.len());
        }
        if !matches!(socket.read_buf(&mut bytes).await, Ok(1..)) {
            return if bytes.is_empty() { Ok(None) } else { Err(Refusal::Malformed("closed before its end")) };
        }
        if !trusted && begins(&bytes) == Some(true) {
            return Err(Refusal::Untrusted);
        }
        match parse(&bytes) {
            Parsed::Incomplete => {}
            Parsed::Absent => return Ok(Some((None, bytes))),
            Parsed::Header { len, source } => {
                bytes.drain(..len);
                return Ok(Some((Some(source), bytes)));
            }
            Parsed::Malformed(why) => return Err(Refusal::Malformed(why)),
        }
    }
}

/// Waits for the first byte and leaves it where it is; `false`: closed without one.
async fn speaks(socket: &TcpStream) -> bool {
    matches!(socket.peek(&mut [0]).await, Ok(1..))
}
