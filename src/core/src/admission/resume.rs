//! Resume tokens (design 9.3): what a client carries from one connection to the next, sealed so that it cannot be edited.
//!
//! A token decides the admission class, never who the client is. It holds no secret: sealed means authenticated.
//! `version 1 | key id 1 | class 1 | flags 1 (0) | issued_ms 6 | client 16 | gateway 8 | srtt_us 4 | rtt_bound_us 4 | HMAC tag 16`,
//! integers big-endian.

use std::time::Duration;

use super::{
    Class,
    keys::{FleetKeys, TAG_BYTES, Use},
    ticket::ms,
};
use crate::time::Wall;

/// Bytes of a resume token.
pub const RESUME_BYTES: usize = 58;
/// How long a token is good: a player who comes back the next evening is still known.
pub const RESUME_TTL: Duration = Duration::from_secs(24 * 3600);
/// A token from the future is not good beyond this difference of clocks.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(60);
const SIGNED: usize = RESUME_BYTES - TAG_BYTES;
const VERSION: u8 = 1;

/// What the client carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeToken {
    /// Which client ([`FleetKeys::client_id`]).
    pub client: [u8; 16],
    /// Its most urgent kind of session on the connection that was lost.
    pub class: Class,
    /// The gateway that issued it: the head of a hash of its name.
    pub gateway: [u8; 8],
    /// Smoothed round trip on that connection, microseconds; 0 = not known.
    pub srtt_us: u32,
    /// Bound of that estimate, microseconds.
    pub rtt_bound_us: u32,
    /// When it was sealed (milliseconds are kept).
    pub issued: Wall,
}

/// Why a resume token counts for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResumeError {
    /// Wrong length or version.
    Malformed,
    /// Sealed with a key that is not known here.
    UnknownKey,
    /// The tag does not match.
    Forged,
    /// Older than [`RESUME_TTL`], or from the future.
    Expired,
}

impl ResumeToken {
    /// The bytes of `welcome.resume`.
    #[must_use]
    pub fn seal(&self, keys: &FleetKeys) -> [u8; RESUME_BYTES] {
        let mut out = [0; RESUME_BYTES];
        out[0] = VERSION;
        out[1] = keys.current().id;
        out[2] = self.class.code();
        out[4..10].copy_from_slice(&self.issued.0.div_euclid(1000).to_be_bytes()[2..]);
        out[10..26].copy_from_slice(&self.client);
        out[26..34].copy_from_slice(&self.gateway);
        out[34..38].copy_from_slice(&self.srtt_us.to_be_bytes());
        out[38..SIGNED].copy_from_slice(&self.rtt_bound_us.to_be_bytes());
        let tag = keys.current().tag(Use::Resume, &out[..SIGNED]);
        out[SIGNED..].copy_from_slice(&tag);
        out
    }

    /// Checks bytes that a client showed.
    pub fn open(keys: &FleetKeys, now: Wall, bytes: &[u8]) -> Result<Self, ResumeError> {
        if bytes.len() != RESUME_BYTES || bytes[0] != VERSION {
            return Err(ResumeError::Malformed);
        }
        let key = keys.find(bytes[1]).ok_or(ResumeError::UnknownKey)?;
        if !key.verify(Use::Resume, &bytes[..SIGNED], &bytes[SIGNED..]) {
            return Err(ResumeError::Forged);
        }
        let class = Class::from_code(bytes[2]).ok_or(ResumeError::Malformed)?;
        let issued = ms(&bytes[4..10]);
        if now > issued.after(RESUME_TTL) || issued > now.after(CLOCK_SKEW_MAX) {
            return Err(ResumeError::Expired);
        }
        let (mut client, mut gateway, mut srtt, mut bound) = ([0; 16], [0; 8], [0; 4], [0; 4]);
        client.copy_from_slice(&bytes[10..26]);
        gateway.copy_from_slice(&bytes[26..34]);
        srtt.copy_from_slice(&bytes[34..38]);
        bound.copy_from_slice(&bytes[38..SIGNED]);
        let (srtt_us, rtt_bound_us) = (u32::from_be_bytes(srtt), u32::from_be_bytes(bound));
        Ok(Self { client, class, gateway, srtt_us, rtt_bound_us, issued })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::keys::Key, *};

    const NOW: Wall = Wall(1_700_000_000_000_000);

    fn keys() -> FleetKeys {
        FleetKeys::new(Key::new(2, &[2; 32]), vec![])
    }

    fn token() -> ResumeToken {
        let client = keys().client_id("player-b");
        ResumeToken {
            client,
            class: Class::Meeting,
            gateway: *b"gateway1",
            srtt_us: 41_000,
            rtt_bound_us: 900,
            issued: NOW,
        }
    }

    #[test]
    fn opens_as_sealed_for_a_day() {
        let sealed = token().seal(&keys());
        assert_eq!(ResumeToken::open(&keys(), NOW, &sealed), Ok(token()));
        assert_eq!(ResumeToken::open(&keys(), NOW.after(RESUME_TTL), &sealed), Ok(token()));
        let day_after = NOW.after(RESUME_TTL + Duration::from_millis(1));
        assert_eq!(ResumeToken::open(&keys(), day_after, &sealed), Err(ResumeError::Expired));
        assert_eq!(ResumeToken::open(&keys(), Wall(NOW.0 - 61_000_000), &sealed), Err(ResumeError::Expired));
    }

    #[test]
    fn no_single_bit_can_be_changed() {
        let sealed = token().seal(&keys());
        for bit in 0..RESUME_BYTES * 8 {
            let mut forged = sealed;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(ResumeToken::open(&keys(), NOW, &forged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn says_nothing_of_the_name() {
        let sealed = token().seal(&keys());
        assert!(!sealed.windows(6).any(|w| w == b"player"));
    }
}
