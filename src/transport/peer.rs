//! Who is at the other end, as far as that can be known (design 9.4, 10).

use std::{fmt, net::SocketAddr};

/// The other end of a connection.
///
/// Behind a balancer the socket's own address is the balancer's. What per-client limits may use is `addr` where it is
/// `known`; where it is not, many clients share that address, and limits by address would hit all of them at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The client's address if it is known, else that of the hop nearest to us. IPv4 is never mapped into IPv6 here.
    /// Port 0 if whoever told the address told no port.
    pub addr: SocketAddr,
    /// `addr` is the client's own: connected to us directly, or named by somebody who is trusted.
    pub known: bool,
}

impl Peer {
    /// A client at `addr`.
    #[must_use]
    pub fn known(addr: SocketAddr) -> Self {
        Self { addr: canonical(addr), known: true }
    }

    /// Somebody behind the hop at `addr`, or that hop itself.
    #[must_use]
    pub fn behind(addr: SocketAddr) -> Self {
        Self { addr: canonical(addr), known: false }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let behind = if self.known { "" } else { "behind " };
        write!(f, "{behind}{}", self.addr)
    }
}

/// A listener on `[::]` sees IPv4 clients as `::ffff:a.b.c.d`, which no list of networks would match.
fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_are_those_of_ipv4() {
        let peer = Peer::known("[::ffff:10.1.2.3]:44".parse().unwrap());
        assert_eq!(peer.to_string(), "10.1.2.3:44");
        assert_eq!(Peer::behind("[2001:db8::1]:9".parse().unwrap()).to_string(), "behind [2001:db8::1]:9");
    }
}
