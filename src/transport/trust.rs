//! Whose word about a client's address is taken (design 10).

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::Peer;

/// Most networks in a list: matched one after the other at about 2 ns each.
pub const NETWORKS_MAX: usize = 1024;

/// Whether connections begin with a PROXY header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Header {
    /// Never: none is looked for.
    #[default]
    Off,
    /// Those from trusted addresses may; clients may also come directly.
    Optional,
    /// All do; whoever is not trusted, or sends none, is reset.
    Required,
}

/// Which hops are believed, and what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// PROXY headers.
    pub header: Header,
    /// The balancers' addresses.
    pub networks: Vec<IpNet>,
    /// Most values of `X-Forwarded-For` that are believed, from the right; 0 = none.
    pub forwarded_hops: usize,
}

impl Trust {
    /// Whether a balancer may have this address.
    #[must_use]
    pub fn trusts(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.networks.iter().any(|net| net.contains(&ip))
    }

    /// Who is at the other end of a socket, as far as the socket tells.
    #[must_use]
    pub fn direct(&self, from: SocketAddr) -> Peer {
        if self.trusts(from.ip()) { Peer::behind(from) } else { Peer::known(from) }
    }

    /// What `X-Forwarded-For` (all its values, joined by commas) adds to `peer`.
    ///
    /// Each hop appends the address it was connected from, so the values are walked from the right, only as long as the
    /// address so far is a trusted one, and at most `forwarded_hops` of them. What is left of that anybody may have written.
    #[must_use]
    pub fn forwarded(&self, peer: Peer, values: Option<&str>) -> Peer {
        let Some(values) = values else { return peer };
        let mut found = peer;
        for value in values.rsplit(',').take(self.forwarded_hops) {
            if !self.trusts(found.addr.ip()) {
                break;
            }
            match address(value.trim()) {
                Some(addr) => found = Peer::known(addr),
                None => return Peer::behind(found.addr),
            }
        }
        found
    }
}

/// An address as balancers write it: bare, with a port, IPv6 with or without brackets. `unknown` and `_hidden` are none.
fn address(text: &str) -> Option<SocketAddr> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    bare.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0)).or_else(|_| text.parse()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust(hops: usize) -> Trust {
        let networks = vec!["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
        Trust { networks, forwarded_hops: hops, ..Trust::default() }
    }

    fn told(hops: usize, from: &str, values: Option<&str>) -> String {
        let trust = trust(hops);
        trust.forwarded(trust.direct(from.parse().unwrap()), values).to_string()
    }

    #[test]
    fn hops_are_walked_from_the_right_and_never_past_the_trusted_ones() {
        for (hops, from, values, expected) in [
            // nobody is asked to be believed
            (0, "10.0.0.1:5", Some("192.0.2.7"), "behind 10.0.0.1:5"),
            (1, "10.0.0.1:5", None, "behind 10.0.0.1:5"),
            // one hop: whatever the client wrote stands to the left
            (1, "10.0.0.1:5", Some("192.0.2.7"), "192.0.2.7:0"),
            (1, "10.0.0.1:5", Some("6.6.6.6, 192.0.2.7"), "192.0.2.7:0"),
            (9, "10.0.0.1:5", Some("6.6.6.6, 192.0.2.7"), "192.0.2.7:0"),
            // two hops, the second one trusted too
            (2, "10.0.0.1:5", Some("6.6.6.6, 192.0.2.7, 10.9.9.9"), "192.0.2.7:0"),
            (2, "10.0.0.1:5", Some("192.0.2.7,10.9.9.9"), "192.0.2.7:0"),
            // a client of our own network, through one hop and not more
            (1, "10.0.0.1:5", Some("6.6.6.6,10.9.9.9"), "10.9.9.9:0"),
            (3, "10.0.0.1:5", Some("10.9.9.9"), "10.9.9.9:0"),
            // who comes directly may write what they like
            (1, "192.0.2.1:5", Some("6.6.6.6"), "192.0.2.1:5"),
            // forms of addresses, and what is none
            (1, "10.0.0.1:5", Some("192.0.2.7:81"), "192.0.2.7:81"),
            (1, "10.0.0.1:5", Some("2001:db9::7"), "[2001:db9::7]:0"),
            (1, "10.0.0.1:5", Some("[2001:db9::7]"), "[2001:db9::7]:0"),
            (1, "10.0.0.1:5", Some("[2001:db9::7]:81"), "[2001:db9::7]:81"),
            (1, "[::ffff:10.0.0.1]:5", Some("::ffff:192.0.2.7"), "192.0.2.7:0"),
            (1, "[2001:db8::1]:5", Some("192.0.2.7, unknown"), "behind [2001:db8::1]:5"),
            (2, "10.0.0.1:5", Some("unknown, 10.9.9.9"), "behind 10.9.9.9:0"),
            (1, "10.0.0.1:5", Some(""), "behind 10.0.0.1:5"),
            (1, "10.0.0.1:5", Some("192.0.2.7,"), "behind 10.0.0.1:5"),
        ] {
            assert_eq!(told(hops, from, values), expected, "{hops} {from} {values:?}");
        }
    }
}
