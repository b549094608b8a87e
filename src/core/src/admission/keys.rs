//! The keys of the fleet: one set signs and checks tickets, resume tokens and receipts (design 5.6, 9.3, 14).
//!
//! Each use has its own key, derived by HMAC-SHA-256 (RFC 2104) from the secret and the use's name. A new key is published
//! in `others` before it becomes `current`. Secrets are never printed.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Keys known at once: the current one, the next, and what rotation has left behind (16 x ~1 KiB of prepared state).
pub const KEYS_MAX: usize = 16;
/// Bytes of a truncated tag (128 bits; RFC 2104 section 5 allows half of the hash).
pub const TAG_BYTES: usize = 16;

/// What a key is used for; the name is part of the derivation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Slot tickets.
    Ticket,
    /// Resume tokens.
    Resume,
    /// Sealed stamps.
    Receipt,
    /// Which client it is, without saying who.
    Identity,
}

/// One key of the fleet.
#[derive(Clone)]
pub struct Key {
    /// Its number in the key file; travels in the clear.
    pub id: u8,
    uses: [Hmac<Sha256>; 4],
}

impl Key {
    /// Prepares a key of the file for all its uses.
    #[must_use]
    pub fn new(id: u8, secret: &[u8; 32]) -> Self {
        let derive = |label: &[u8]| {
            let mut mac = keyed(secret);
            mac.update(label);
            keyed(&mac.finalize().into_bytes().into())
        };
        let labels: [&[u8]; 4] =
            [b"holdfast ticket 1", b"holdfast resume 1", b"holdfast receipt 1", b"holdfast identity 1"];
        Self { id, uses: labels.map(derive) }
    }

    /// The tag of `data` under this key.
    #[must_use]
    pub fn tag(&self, what: Use, data: &[u8]) -> [u8; TAG_BYTES] {
        let mut mac = self.uses[what as usize].clone();
        mac.update(data);
        let full = mac.finalize().into_bytes();
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&full[..TAG_BYTES]);
        tag
    }

    /// Whether `tag` is the tag of `data`; takes the same time whatever differs.
    #[must_use]
    pub fn verify(&self, what: Use, data: &[u8], tag: &[u8]) -> bool {
        let mut mac = self.uses[what as usize].clone();
        mac.update(data);
        tag.len() == TAG_BYTES && mac.verify_truncated_left(tag).is_ok()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id)
    }
}

/// The key that signs, and those that are accepted besides.
#[derive(Clone, Debug)]
pub struct FleetKeys {
    current: Key,
    others: Vec<Key>,
}

impl FleetKeys {
    /// Signs with `current`; accepts `others` too (the first [`KEYS_MAX`] - 1 of them).
    #[must_use]
    pub fn new(current: Key, mut others: Vec<Key>) -> Self {
        others.truncate(KEYS_MAX - 1);
        Self { current, others }
    }

    /// The key that signs.
    #[must_use]
    pub const fn current(&self) -> &Key {
        &self.current
    }

    /// The key of that number, if known.
    #[must_use]
    pub fn find(&self, id: u8) -> Option<&Key> {
        std::iter::once(&self.current).chain(&self.others).find(|k| k.id == id)
    }

    /// Which client a principal is: stable while the current key is, and it says nothing about the name.
    /// Kept in the resume token, so that a client stays the same one through a rotation.
    #[must_use]
    pub fn client_id(&self, principal: &str) -> [u8; 16] {
        self.current.tag(Use::Identity, principal.as_bytes())
    }
}

fn keyed(secret: &[u8; 32]) -> Hmac<Sha256> {
    // a key of one block at most: cannot be refused
    let mut block = sha2::digest::generic_array::GenericArray::default();
    block[..32].copy_from_slice(secret);
    <Hmac<Sha256> as hmac::digest::KeyInit>::new(&block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_use_and_each_key_has_its_own_tag() {
        let (a, b) = (Key::new(1, &[1; 32]), Key::new(1, &[2; 32]));
        let tags =
            [a.tag(Use::Ticket, b"x"), a.tag(Use::Resume, b"x"), a.tag(Use::Receipt, b"x"), b.tag(Use::Ticket, b"x")];
        for i in 0..tags.len() {
            assert!(tags[i + 1..].iter().all(|t| *t != tags[i]));
        }
        assert!(a.verify(Use::Ticket, b"x", &tags[0]));
        assert!(!a.verify(Use::Ticket, b"x", &tags[0][..8]), "a shorter tag is no tag");
        assert!(!a.verify(Use::Ticket, b"x", b""));
    }

    #[test]
    fn hmac_is_rfc_4231() {
        let mut secret = [0; 32];
        secret[..4].copy_from_slice(b"Jefe");
        let mut mac = keyed(&secret);
        mac.update(b"what do ya want for nothing?");
        assert_eq!(mac.finalize().into_bytes()[..8], [0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e]);
    }

    #[test]
    fn secrets_are_not_printed() {
        assert_eq!(format!("{:?}", Key::new(7, &[9; 32])), "Key(7)");
    }
}
