//! The admin server: HTTP/1 on a loopback address, for operators, probes and Prometheus (design 10, 11).
//!
//! It answers without a token, which is why it refuses to listen anywhere but on loopback.

mod dashboard;
mod drain;
mod limits;
mod routes;
mod views;

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};

pub use routes::{Member, Source};

/// Connections at a time: a few scrapers and probes. Each costs about 16 KiB.
const CONNECTIONS_MAX: usize = 64;
/// From accept to the last byte of the answer.
const CONNECTION_MAX: Duration = Duration::from_secs(30);
/// For a request's header.
const HEADER_MAX: Duration = Duration::from_secs(5);
/// Between tries when no descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listens at `addr`, a loopback `host:port`.
///
/// # Errors
/// Not an address, not a loopback one, or in use.
pub async fn bind(addr: &str) -> anyhow::Result<TcpListener> {
    let parsed: SocketAddr = addr.parse().with_context(|| format!("admin: \"{addr}\" is not an address (ip:port)"))?;
    ensure!(parsed.ip().is_loopback(), "admin: {addr} is not a loopback address, and the admin server has no token");
    TcpListener::bind(parsed).await.with_context(|| format!("admin: cannot listen on {addr}"))
}

/// Serves `source` until `shutdown` completes.
pub async fn serve(listener: TcpListener, source: Arc<dyn Source>, shutdown: impl Future<Output = ()>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = tokio::task::JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let stream = tokio::select! {
            () = &mut shutdown => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(e) => {
                    tracing::warn!("admin: accept: {e}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let source = source.clone();
        connections.spawn(async move {
            let service = service_fn(|request| routes::serve(request, source.as_ref()));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_MAX)
                .serve_connection(TokioIo::new(stream), service);
            // A client that goes away in the middle is its own business.
            let _ = timeout(CONNECTION_MAX, connection).await;
            drop(permit);
        });
    }
}
