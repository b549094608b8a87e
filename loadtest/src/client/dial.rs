//! Opens a WebSocket: TCP from an address of its own, TLS where asked for, the upgrade.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpSocket;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, http};

use super::reconnect::End;

const DIAL: Duration = Duration::from_secs(10);

pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}
/// An open WebSocket, whatever is beneath it.
pub type Socket = WebSocketStream<Box<dyn Stream>>;

/// Where and how to dial.
#[derive(Clone)]
pub struct Dial {
    pub addrs: Arc<[SocketAddr]>,
    /// `addrs` as text, for journals.
    pub names: Arc<[Arc<str>]>,
    pub tls: Option<tokio_rustls::TlsConnector>,
    /// At most this many dials at once.
    pub gate: Arc<Semaphore>,
    /// Host of the URL, and the name the certificate must have.
    pub host: Arc<str>,
    pub path: Arc<str>,
    /// Any WebSocket server: no subprotocol, no hello; connected is admitted.
    pub raw: bool,
}

impl Dial {
    /// Gateways of a local run.
    pub fn new(addrs: Vec<SocketAddr>, tls: Option<tokio_rustls::TlsConnector>, at_once: usize) -> Self {
        Dial {
            names: addrs.iter().map(|a| Arc::from(a.to_string())).collect(),
            addrs: addrs.into(),
            tls,
            gate: Arc::new(Semaphore::new(at_once)),
            host: Arc::from("localhost"),
            path: Arc::from("/v1/ws"),
            raw: false,
        }
    }

    /// A turn to dial; held until the connection is open.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.gate.acquire().await.ok()
    }

    /// Opens a WebSocket to a gateway, by its index, for the n-th client. `query` is empty or begins with `?`.
    pub async fn open(&self, gateway: usize, client: usize, query: &str) -> Result<Socket, End> {
        let addr = self.addrs[gateway % self.addrs.len()];
        match tokio::time::timeout(DIAL, self.dial(addr, client, query)).await {
            Ok(Ok(socket)) => Ok(socket),
            Ok(Err(error)) => Err(refusal(&error)),
            Err(_) => Err(End::NotReached),
        }
    }

    async fn dial(&self, addr: SocketAddr, client: usize, query: &str) -> anyhow::Result<Socket> {
        let tcp = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        if let Some(source) = source(addr, client) {
            tcp.bind((source, 0).into())?;
        }
        let tcp = tcp.connect(addr).await?;
        tcp.set_nodelay(true)?;
        let (scheme, stream): (_, Box<dyn Stream>) = match &self.tls {
            None => ("ws", Box::new(tcp)),
            Some(tls) => ("wss", Box::new(tls.connect(self.host.to_string().try_into()?, tcp).await?)),
        };
        let url = format!("{scheme}://{}:{}{}{query}", self.host, addr.port(), self.path);
        let mut request = url.into_client_request()?;
        if !self.raw {
            let ours = http::HeaderValue::from_static("holdfast.v1.json");
            request.headers_mut().insert("Sec-WebSocket-Protocol", ours);
        }
        // tungstenite's default of 128 KiB a connection would be a gigabyte here
        let config = WebSocketConfig::default().read_buffer_size(4096).write_buffer_size(0);
        let (socket, _) =
            tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await.context("the upgrade")?;
        Ok(socket)
    }
}

/// Each client its own loopback address, 127.1.0.0 and up: what a gateway limits by address, it limits per client, and
/// ports never run out. Elsewhere the kernel chooses.
fn source(to: SocketAddr, client: usize) -> Option<IpAddr> {
    let host = u32::try_from(client % 0x00fe_0000).unwrap_or_default();
    (to.is_ipv4() && to.ip().is_loopback())
        .then(|| Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 0)) + host).into())
}

/// A handshake that was answered with a status, or nothing at all.
fn refusal(error: &anyhow::Error) -> End {
    let Some(tungstenite::Error::Http(reply)) = error.downcast_ref() else { return End::NotReached };
    let after = reply.headers().get(http::header::RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    End::Http { status: reply.status().as_u16(), retry_after_ms: after.unwrap_or(0).saturating_mul(1_000) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_has_a_loopback_address_of_its_own() {
        let gateway = "127.0.0.1:80".parse().unwrap();
        assert_eq!(source(gateway, 0).unwrap().to_string(), "127.1.0.0");
        assert_eq!(source(gateway, 6_000).unwrap().to_string(), "127.1.23.112");
        assert_eq!(source("192.0.2.1:80".parse().unwrap(), 5), None);
        assert_eq!(source("[::1]:80".parse().unwrap(), 5), None);
    }

    #[test]
    fn a_status_is_kept_and_an_error_is_none() {
        let reply = http::Response::builder().status(503).header("Retry-After", "2").body(None).unwrap();
        let error = anyhow::Error::from(tungstenite::Error::Http(Box::new(reply)));
        assert_eq!(refusal(&error), End::Http { status: 503, retry_after_ms: 2_000 });
        assert_eq!(refusal(&anyhow::anyhow!("reset")), End::NotReached);
    }
}
