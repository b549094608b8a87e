//! Names of things. Parsed once where they enter, correct from then on.

use std::{fmt, sync::Arc};

/// Longest session id in bytes (design 1).
pub const SESSION_ID_BYTES_MAX: usize = 128;
/// Shortest and longest lane in bytes (design 1).
pub const LANE_BYTES: std::ops::RangeInclusive<usize> = 8..=16;
/// The lane of gateway-made deadline claims; clients may not use a lane that starts with `!`.
pub const DEADLINE_LANE: &[u8] = b"!deadline";

/// A session id: 1 to 128 bytes of `[A-Za-z0-9._:~-]`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(Arc<str>);

/// Why a name was refused; says the field, the limit and the value's length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdError {
    /// Session id empty or too long: the length in bytes.
    SessionLength(usize),
    /// Session id holds a byte outside `[A-Za-z0-9._:~-]`.
    SessionByte(u8),
    /// Lane too short or too long: the length in bytes.
    LaneLength(usize),
    /// Lane starts with `!`, which is reserved for gateways.
    LaneReserved,
}

impl fmt::Display for IdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SessionLength(n) => write!(f, "session: {n} bytes; 1 to {SESSION_ID_BYTES_MAX} are allowed"),
            Self::SessionByte(b) => write!(f, "session: byte 0x{b:02x} is not one of A-Z a-z 0-9 . _ : ~ -"),
            Self::LaneLength(n) => write!(f, "lane: {n} bytes; 8 to 16 are allowed"),
            Self::LaneReserved => write!(f, "lane: starts with '!', which is reserved"),
        }
    }
}

impl std::error::Error for IdError {}

impl SessionId {
    /// Checks and takes a session id.
    pub fn parse(s: &str) -> Result<Self, IdError> {
        if s.is_empty() || s.len() > SESSION_ID_BYTES_MAX {
            return Err(IdError::SessionLength(s.len()));
        }
        let allowed = |b: &u8| b.is_ascii_alphanumeric() || b"._:~-".contains(b);
        match s.bytes().find(|b| !allowed(b)) {
            Some(b) => Err(IdError::SessionByte(b)),
            None => Ok(Self(s.into())),
        }
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One ordered sender: 8 to 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    len: u8,
    bytes: [u8; 16],
}

impl Lane {
    /// A client's lane: 8 to 16 bytes, not starting with `!`.
    pub fn parse(b: &[u8]) -> Result<Self, IdError> {
        if b.first() == Some(&b'!') {
            return Err(IdError::LaneReserved);
        }
        Self::any(b)
    }

    /// Any lane of valid length, the gateways' own included.
    pub fn any(b: &[u8]) -> Result<Self, IdError> {
        if !LANE_BYTES.contains(&b.len()) {
            return Err(IdError::LaneLength(b.len()));
        }
        let mut bytes = [0; 16];
        bytes[..b.len()].copy_from_slice(b);
        Ok(Self { len: u8::try_from(b.len()).unwrap_or(16), bytes })
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// A client connection of this gateway process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// An established gateway-owner stream; unique within the process on either end, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// Which life of a node: 64 random bits per process start; 16 hex digits as text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Boot(pub u64);

impl fmt::Debug for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
