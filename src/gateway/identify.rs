//! Who has connected, before TLS: by the socket, or by a balancer's PROXY header (design 10).

use std::net::SocketAddr;

use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};

use super::{handle::Handle, limits::Stats, listener::reset};
use crate::transport::{
    Peer,
    proxy_protocol::{Accepted, Refusal, accept},
};

impl Handle {
    /// Waits for the first byte: who says it, and what was read already. `None`: refused, or nobody's fault; counted.
    pub(super) async fn identify(
        &self,
        socket: &mut TcpStream,
        from: SocketAddr,
        by: Instant,
    ) -> Option<(Peer, Vec<u8>)> {
        let stats = self.stats();
        match timeout_at(by, accept(socket, from, &self.shared.config.trust)).await {
            Ok(Ok(Accepted::Speaking(peer, early))) => return Some((peer, early)),
            Ok(Ok(Accepted::Silent)) => Stats::add(&stats.silent),
            Ok(Err(refusal)) => {
                Stats::add(match refusal {
                    Refusal::Untrusted => &stats.proxy_untrusted,
                    Refusal::Missing => &stats.proxy_missing,
                    Refusal::Malformed(_) => &stats.proxy_malformed,
                });
                tracing::debug!(peer = %from, reason = %refusal, "connection reset");
                reset(socket);
            }
            Err(_) => {
                Stats::add(&stats.handshakes_failed);
                tracing::debug!(peer = %from, "said nothing in time");
            }
        }
        None
    }
}
