//! The PROXY protocol, versions 1 and 2: a balancer names the client before the client's first byte (design 10).
//!
//! [`parse`] follows HAProxy's `proxy-protocol.txt` of 2020/03/05 and is pure; [`accept`] reads a header from a socket, only
//! from those whom a [`Trust`](super::trust::Trust) names. Bytes behind the header are handed on to TLS or HTTP untouched.
//!
//! | header | the client is |
//! |---|---|
//! | v1 `TCP4`, `TCP6`; v2 `PROXY` with TCP over IPv4 or IPv6 | the source address |
//! | v1 `UNKNOWN`; v2 `PROXY` with UNSPEC, UNIX or UDP | unknown, the addresses are skipped |
//! | v2 `LOCAL` | the balancer itself (a health check), whatever addresses follow |
//! | reserved families, protocols, commands, versions; a wrong CRC32C; a TLV beyond the end | malformed |
//!
//! Written here rather than taken from the crate `ppp` (2.3): it refuses a `LOCAL` header with a family it does not know,
//! bounds no length, and checks no checksum.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

pub use read::{Accepted, Refusal, accept};

mod read;
#[cfg(test)]
mod tests;

/// First bytes of version 1.
const V1: &[u8] = b"PROXY ";
/// First bytes of version 2.
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Longest line of version 1, CR LF included.
const V1_BYTES_MAX: usize = 107;
/// Signature, version and command, family and protocol, length.
const V2_FIXED: usize = 16;
/// Longest header of version 2: addresses of 216 B and the TLVs balancers send (a certificate's name, a cloud's endpoint id)
/// stay below 1 KiB; nginx has the same limit. 1,250 handshakes x 4 KiB are 5 MiB.
pub const HEADER_BYTES_MAX: usize = 4096;
/// `PP2_TYPE_CRC32C`.
const TLV_CRC32C: u8 = 3;

/// What the first bytes of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Too few to tell.
    Incomplete,
    /// No header.
    Absent,
    /// A header of `len` bytes.
    Header {
        /// Its length; what follows is the client's.
        len: usize,
        /// Whom it names.
        source: Source,
    },
    /// Begins like a header and is none: why.
    Malformed(&'static str),
}

/// Whom a header names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A client.
    Client(SocketAddr),
    /// Somebody the balancer cannot, or does not want to, name.
    Unknown,
    /// The balancer itself.
    Local,
}

/// Whether `bytes` begin a header; `None`: too few to tell.
#[must_use]
pub fn begins(bytes: &[u8]) -> Option<bool> {
    let both = [V1, V2];
    if both.iter().any(|magic| bytes.starts_with(magic)) {
        return Some(true);
    }
    if both.iter().any(|magic| magic.starts_with(bytes)) { None } else { Some(false) }
}

/// Reads a header from the start of `bytes`. Never looks behind its end.
#[must_use]
pub fn parse(bytes: &[u8]) -> Parsed {
    match begins(bytes) {
        None => Parsed::Incomplete,
        Some(false) => Parsed::Absent,
        Some(true) if bytes.starts_with(V1) => v1(bytes),
        Some(true) => v2(bytes),
    }
}

fn v1(bytes: &[u8]) -> Parsed {
    let line = &bytes[..bytes.len().min(V1_BYTES_MAX)];
    let Some(lf) = line.iter().position(|b| *b == b'\n') else {
        return if line.len() < V1_BYTES_MAX {
            Parsed::Incomplete
        } else {
            Parsed::Malformed("a line of version 1 has at most 107 bytes")
        };
    };
    let source = line[..lf].strip_suffix(b"\r").and_then(|l| std::str::from_utf8(l).ok()).and_then(v1_source);
    match source {
        Some(source) => Parsed::Header { len: lf + 1, source },
        None => Parsed::Malformed("not a line of version 1"),
    }
}

fn v1_source(line: &str) -> Option<Source> {
    let mut words = line.split(' ').skip(1);
    let (source, destination): (std::net::IpAddr, std::net::IpAddr) = match words.next()? {
        "TCP4" => (words.next()?.parse::<Ipv4Addr>().ok()?.into(), words.next()?.parse::<Ipv4Addr>().ok()?.into()),
        "TCP6" => (words.next()?.parse::<Ipv6Addr>().ok()?.into(), words.next()?.parse::<Ipv6Addr>().ok()?.into()),
        // What follows, if anything, is to be ignored.
        "UNKNOWN" => return Some(Source::Unknown),
        _ => return None,
    };
    let source = SocketAddr::new(source, v1_port(words.next()?)?);
    let _ = SocketAddr::new(destination, v1_port(words.next()?)?);
    words.next().is_none().then_some(Source::Client(source))
}

/// Digits, no sign, no leading zero.
fn v1_port(word: &str) -> Option<u16> {
    let plain = word == "0" || !word.starts_with(['0', '+']);
    plain.then(|| word.parse().ok()).flatten()
}

fn v2(bytes: &[u8]) -> Parsed {
    let Some(&[command, family, high, low]) = bytes.get(V2.len()..V2_FIXED) else { return Parsed::Incomplete };
    let len = V2_FIXED + usize::from(u16::from_be_bytes([high, low]));
    if command >> 4 != 2 || command & 15 > 1 {
        return Parsed::Malformed("a version or command that is not known");
    }
    if len > HEADER_BYTES_MAX {
        return Parsed::Malformed("longer than 4 KiB");
    }
    let Some(header) = bytes.get(..len) else { return Parsed::Incomplete };
    if command & 15 == 0 {
        return Parsed::Header { len, source: Source::Local };
    }
    match v2_source(family, header) {
        Ok(source) => Parsed::Header { len, source },
        Err(why) => Parsed::Malformed(why),
    }
}

/// `header` is whole.
fn v2_source(family: u8, header: &[u8]) -> Result<Source, &'static str> {
    let (block, tcp) = (&header[V2_FIXED..], family & 15 == 1);
    let addresses = match (family >> 4, family & 15) {
        (0, 0..=2) => return Ok(Source::Unknown),
        (1, 0..=2) => 12,
        (2, 0..=2) => 36,
        (3, 0..=2) => 216,
        _ => return Err("a family or protocol that is not known"),
    };
    let Some((addresses, tlvs)) = block.split_at_checked(addresses) else { return Err("too short for its addresses") };
    checksum(header, header.len() - tlvs.len())?;
    Ok(match addresses {
        [a, b, c, d, _, _, _, _, high, low, _, _] if tcp => {
            Source::Client(SocketAddr::from(([*a, *b, *c, *d], u16::from_be_bytes([*high, *low]))))
        }
        long if tcp && family >> 4 == 2 => {
            let mut ip = [0; 16];
            ip.copy_from_slice(&long[..16]);
            Source::Client(SocketAddr::from((ip, u16::from_be_bytes([long[32], long[33]]))))
        }
        _ => Source::Unknown,
    })
}

/// Walks the TLVs from `at` on; a CRC32C among them must be that of the whole header with the checksum's bytes zero.
fn checksum(header: &[u8], mut at: usize) -> Result<(), &'static str> {
    while at < header.len() {
        let Some(&[kind, high, low]) = header.get(at..at + 3) else { return Err("a TLV is cut off") };
        let (value, len) = (at + 3, usize::from(u16::from_be_bytes([high, low])));
        let Some(bytes) = header.get(value..value + len) else { return Err("a TLV is cut off") };
        if kind == TLV_CRC32C {
            let zeroed = crc32c(crc32c(crc32c(!0, &header[..value]), &[0; 4]), &header[value + len..]);
            if bytes != (!zeroed).to_be_bytes() {
                return Err("its CRC32C is wrong");
            }
        }
        at = value + len;
    }
    Ok(())
}

/// CRC-32C (RFC 3720, B.4), a bit at a time: headers with one are few and short.
fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let bit = |crc: u32, _| (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg());
    bytes.iter().fold(crc, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}
