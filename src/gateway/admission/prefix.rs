//! Limits by the address a client comes from: connections before TLS, and tokens that do not verify (design 9.4).
//!
//! They hold only where the client's own address is known (behind a balancer that does not name it, all clients share
//! one), and not for private addresses unless configured: a balancer, a proxy or the operator's own machines are there.

use std::{net::IpAddr, time::Duration};

use holdfast_core::time::Mono;

use super::{
    settings::Settings,
    table::{Rate, Table},
};
use crate::transport::Peer;

/// Sets for /32 and /64: 262,144 prefixes in 4.5 MiB. At 50/s a prefix seen once says nothing after 20 ms, so only
/// 13 million new prefixes a second would push out one that matters.
const NARROW_SETS: usize = 32_768;
/// Sets for /48: 65,536 prefixes in 1.1 MiB (2.5 ms each).
const WIDE_SETS: usize = 8_192;
/// Sets for failures: 32,768 prefixes in 0.6 MiB. A failure says something for 12 s.
const FAILURE_SETS: usize = 4_096;
/// All three tables together; fixed, whatever comes.
pub const TABLES_BYTES_MAX: usize = 7 << 20;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// What is known by prefix.
pub(super) struct Prefixes {
    narrow: Table,
    wide: Table,
    failures: Table,
}

/// An IPv4 address, or the network of an IPv6 one: what one subscriber usually has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Prefix {
    V4(u32),
    V6(u64),
}

impl Prefixes {
    pub(super) fn new() -> Self {
        Self { narrow: Table::new(NARROW_SETS), wide: Table::new(WIDE_SETS), failures: Table::new(FAILURE_SETS) }
    }

    /// Whether one more connection may come from there.
    pub(super) fn connect(&self, now: Mono, peer: Peer, s: &Settings) -> bool {
        let Some(prefix) = limited(peer, s) else { return true };
        let rate = Rate::new(s.prefix_per_s, SECOND, s.prefix_burst);
        if self.narrow.check(now, &prefix, rate).is_err() {
            return false;
        }
        let Prefix::V6(network) = prefix else { return true };
        let wide = Rate::new(
            s.prefix_per_s.saturating_mul(s.prefix_wide_factor),
            SECOND,
            s.prefix_burst.saturating_mul(s.prefix_wide_factor),
        );
        self.wide.check(now, &(network >> 16), wide).is_ok()
    }

    /// How long no token from there is looked at; zero = it is.
    pub(super) fn barred(&self, now: Mono, peer: Peer, s: &Settings) -> Duration {
        limited(peer, s).map_or(Duration::ZERO, |prefix| self.failures.wait(now, &prefix, failures(s)))
    }

    /// A token from there did not verify.
    pub(super) fn failed(&self, now: Mono, peer: Peer, s: &Settings) {
        if let Some(prefix) = limited(peer, s) {
            // Whoever is over the limit is barred already.
            let _ = self.failures.check(now, &prefix, failures(s));
        }
    }

    /// Memory of the tables.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.narrow.bytes() + self.wide.bytes() + self.failures.bytes()
    }
}

fn failures(s: &Settings) -> Rate {
    Rate::new(s.token_failures_per_min, MINUTE, s.token_failures_per_min)
}

/// The prefix the limits hold for; `None` = they do not.
fn limited(peer: Peer, s: &Settings) -> Option<Prefix> {
    let ip = peer.addr.ip().to_canonical();
    if !peer.known || (!s.prefix_private && private(ip)) {
        return None;
    }
    Some(match ip {
        IpAddr::V4(ip) => Prefix::V4(ip.to_bits()),
        IpAddr::V6(ip) => Prefix::V6(u64::try_from(ip.to_bits() >> 64).unwrap_or(0)),
    })
}

/// Not an address of the public internet: loopback, RFC 1918, link-local, shared (RFC 6598), unique local.
fn private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, ..] = ip.octets();
            ip.is_loopback() || ip.is_private() || ip.is_link_local() || (a == 100 && b & 0xc0 == 64)
        }
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(ip: &str) -> Peer {
        Peer::known((ip.parse::<IpAddr>().unwrap(), 1).into())
    }

    fn passes(p: &Prefixes, peer: Peer, tries: usize) -> usize {
        (0..tries).filter(|_| p.connect(Mono(1_000_000), peer, &Settings::default())).count()
    }

    #[test]
    fn addresses_and_networks_have_their_burst_and_wide_networks_eight_of_them() {
        let p = Prefixes::new();
        assert_eq!(passes(&p, peer("203.0.113.1"), 999), 200);
        assert_eq!(passes(&p, peer("203.0.113.2"), 999), 200);
        assert_eq!(passes(&p, peer("2001:db8:7:1::5"), 150) + passes(&p, peer("2001:db8:7:1:ffff::9"), 150), 200);
        let rest: usize = (2..20).map(|n| passes(&p, peer(&format!("2001:db8:7:{n:x}::1")), 200)).sum();
        assert_eq!(rest, 1400, "1600 for the /48");
        assert_eq!(passes(&p, peer("2001:db8:8::1"), 999), 200);
    }

    #[test]
    fn shared_and_private_addresses_are_not_limited() {
        let p = Prefixes::new();
        for ip in ["127.0.0.1", "10.1.2.3", "192.168.0.9", "100.64.1.1", "::1", "fd00::1", "fe80::1", "::ffff:10.0.0.1"]
        {
            assert_eq!(passes(&p, peer(ip), 500), 500, "{ip}");
        }
        assert_eq!(passes(&p, Peer::behind("203.0.113.1:5".parse().unwrap()), 500), 500);
        let own = Settings { prefix_private: true, ..Settings::default() };
        let passed = (0..500).filter(|_| p.connect(Mono(9), peer("127.0.0.1"), &own)).count();
        assert_eq!(passed, 200);
    }

    #[test]
    fn five_bad_tokens_a_minute_bar_a_prefix_and_no_other() {
        let (p, s) = (Prefixes::new(), Settings::default());
        let (bad, good) = (peer("203.0.113.1"), peer("203.0.113.2"));
        let now = Mono(60_000_000);
        for _ in 0..5 {
            assert_eq!(p.barred(now, bad, &s), Duration::ZERO);
            p.failed(now, bad, &s);
        }
        assert_eq!(p.barred(now, bad, &s), Duration::from_secs(12));
        assert_eq!(p.barred(now, good, &s), Duration::ZERO);
        assert_eq!(p.barred(Mono(72_000_000), bad, &s), Duration::ZERO);
        assert_eq!(p.barred(now, Peer::behind(bad.addr), &s), Duration::ZERO);
    }

    #[test]
    fn two_million_prefixes_stay_within_the_named_memory() {
        let (p, s) = (Prefixes::new(), Settings::default());
        let victim = peer("203.0.113.1");
        for n in 0..2_000_000u32 {
            // 100 s in all: 20,000 new prefixes a second.
            let now = Mono(u64::from(n) * 50);
            let ip = if n % 2 == 0 { IpAddr::V4(n.into()) } else { IpAddr::V6((u128::from(n) << 70).into()) };
            p.connect(now, Peer::known((ip, 1).into()), &s);
            if n % 400 == 0 {
                p.connect(now, victim, &s);
                p.connect(now, victim, &s);
            }
        }
        assert!(p.bytes() <= TABLES_BYTES_MAX, "{}", p.bytes());
        // The victim asked 100 times a second, 50 are allowed: it is still known among the two million.
        let now = Mono(100_000_000);
        assert!((0..5).all(|_| !p.connect(now, victim, &s) || !p.connect(now, victim, &s)));
    }
}
