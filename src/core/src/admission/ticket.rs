//! Slot tickets (design 9.3): 44 bytes that any gateway of the fleet can check in under a microsecond.
//!
//! `version 1 | key id 1 | class 1 | flags 1 | issued_ms 6 | slot_ms 6 | client tag 12 | HMAC tag 16`. Integers are big-endian.

use super::{
    Class,
    keys::{FleetKeys, TAG_BYTES, Use},
};
use crate::time::Wall;

/// Bytes of a ticket: 59 characters of base64url, so that a close reason stays below 123.
pub const TICKET_BYTES: usize = 44;
const SIGNED: usize = TICKET_BYTES - TAG_BYTES;
const VERSION: u8 = 1;
/// Flag: good only together with a resume token of the same client.
const BOUND: u8 = 1;

/// Which client a ticket or a slot belongs to: the head of its client id, or random for the anonymous.
pub type ClientTag = [u8; 12];

/// The tag of a client id.
#[must_use]
pub fn client_tag(client: &[u8; 16]) -> ClientTag {
    let mut tag = [0; 12];
    tag.copy_from_slice(&client[..12]);
    tag
}

/// A ticket that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// What its holder was when it was issued.
    pub class: Class,
    /// Good only with a resume token of the same client; not set for the anonymous.
    pub bound: bool,
    /// When it was sealed (milliseconds are kept).
    pub issued: Wall,
    /// The moment its holder is expected (milliseconds are kept, rounded up).
    pub slot: Wall,
    /// Whose it is.
    pub tag: ClientTag,
}

/// Why a ticket was not honoured. The last four are found at the gate, not in the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TicketError {
    /// Not 44 bytes, or not of this version.
    Malformed,
    /// Sealed with a key that is not known here.
    UnknownKey,
    /// The tag does not match.
    Forged,
    /// Before its window.
    Early,
    /// After its window.
    Expired,
    /// Honoured here before.
    Replayed,
    /// Belongs to a client other than the one that shows it.
    OtherIdentity,
}

impl TicketError {
    /// All of them, for zero-initialised metrics.
    pub const ALL: [Self; 7] = [
        Self::Malformed,
        Self::UnknownKey,
        Self::Forged,
        Self::Early,
        Self::Expired,
        Self::Replayed,
        Self::OtherIdentity,
    ];

    /// Metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::Forged => "forged",
            Self::Early => "early",
            Self::Expired => "expired",
            Self::Replayed => "replayed",
            Self::OtherIdentity => "other_identity",
        }
    }
}

impl Ticket {
    /// The bytes the client gets, sealed with the current key.
    #[must_use]
    pub fn seal(&self, keys: &FleetKeys) -> [u8; TICKET_BYTES] {
        let mut out = [0; TICKET_BYTES];
        out[0] = VERSION;
        out[1] = keys.current().id;
        out[2] = self.class.code();
        out[3] = if self.bound { BOUND } else { 0 };
        out[4..10].copy_from_slice(&self.issued.0.div_euclid(1000).to_be_bytes()[2..]);
        out[10..16].copy_from_slice(&self.slot.0.div_ceil(1000).to_be_bytes()[2..]);
        out[16..SIGNED].copy_from_slice(&self.tag);
        let tag = keys.current().tag(Use::Ticket, &out[..SIGNED]);
        out[SIGNED..].copy_from_slice(&tag);
        out
    }

    /// Checks bytes that a client showed. Says nothing of the time.
    pub fn open(keys: &FleetKeys, bytes: &[u8]) -> Result<Self, TicketError> {
        if bytes.len() != TICKET_BYTES || bytes[0] != VERSION {
            return Err(TicketError::Malformed);
        }
        let key = keys.find(bytes[1]).ok_or(TicketError::UnknownKey)?;
        if !key.verify(Use::Ticket, &bytes[..SIGNED], &bytes[SIGNED..]) {
            return Err(TicketError::Forged);
        }
        let class = Class::from_code(bytes[2]).ok_or(TicketError::Malformed)?;
        let mut tag = [0; 12];
        tag.copy_from_slice(&bytes[16..SIGNED]);
        let (issued, slot) = (ms(&bytes[4..10]), ms(&bytes[10..16]));
        Ok(Self { class, bound: bytes[3] & BOUND != 0, issued, slot, tag })
    }
}

/// Big-endian milliseconds.
pub(super) fn ms(bytes: &[u8]) -> Wall {
    Wall(bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b)) * 1000)
}

#[cfg(test)]
mod tests {
    use super::{super::keys::Key, *};

    fn keys() -> FleetKeys {
        FleetKeys::new(Key::new(2, &[2; 32]), vec![Key::new(1, &[1; 32])])
    }

    fn ticket() -> Ticket {
        Ticket {
            class: Class::Game,
            bound: true,
            issued: Wall(1_700_000_000_123_000),
            slot: Wall(1_700_000_004_000_000),
            tag: *b"twelve bytes",
        }
    }

    #[test]
    fn opens_as_sealed_with_any_known_key() {
        assert_eq!(Ticket::open(&keys(), &ticket().seal(&keys())), Ok(ticket()));
        let old = FleetKeys::new(Key::new(1, &[1; 32]), vec![]);
        assert_eq!(Ticket::open(&keys(), &ticket().seal(&old)), Ok(ticket()));
        assert_eq!(Ticket::open(&old, &ticket().seal(&keys())), Err(TicketError::UnknownKey));
    }

    #[test]
    fn no_single_bit_can_be_changed() {
        let sealed = ticket().seal(&keys());
        for bit in 0..TICKET_BYTES * 8 {
            let mut forged = sealed;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(Ticket::open(&keys(), &forged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn no_other_length_is_a_ticket() {
        let sealed = ticket().seal(&keys());
        for n in 0..TICKET_BYTES {
            assert_eq!(Ticket::open(&keys(), &sealed[..n]), Err(TicketError::Malformed));
        }
        assert_eq!(Ticket::open(&keys(), &[sealed.as_slice(), &[0]].concat()), Err(TicketError::Malformed));
    }

    #[test]
    fn fits_a_close_reason() {
        let chars = (TICKET_BYTES * 8).div_ceil(6);
        assert!(r#"{"r":"drain","ms":4294967295,"k":""}"#.len() + chars <= 123);
    }
}
