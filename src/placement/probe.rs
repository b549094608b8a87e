//! Is the process behind an address gone? Only a refused connection says so; silence is never evidence (design 8.2).

use std::{io::ErrorKind, time::Duration};

use tokio::{net::TcpStream, time::timeout};

/// Pause between the two tries.
pub(crate) const APART: Duration = Duration::from_millis(100);

/// How long one try waits.
const TRY_MAX: Duration = Duration::from_millis(300);

async fn refused_once(addr: &str) -> bool {
    let tried = timeout(TRY_MAX, TcpStream::connect(addr)).await;
    matches!(tried, Ok(Err(e)) if e.kind() == ErrorKind::ConnectionRefused)
}

/// Refused twice, [`APART`] apart.
pub(crate) async fn refused(addr: &str) -> bool {
    if !refused_once(addr).await {
        return false;
    }
    tokio::time::sleep(APART).await;
    refused_once(addr).await
}
