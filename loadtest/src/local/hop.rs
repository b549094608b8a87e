//! A TCP hop between one process and its etcd that can go silent: what a network cut looks like from inside.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Bytes passed on at once.
const CHUNK: usize = 16 * 1024;

/// A running hop; its connections live as long as the runtime.
pub struct Hop {
    pub url: String,
    open: watch::Sender<bool>,
}

impl Hop {
    /// A hop to the etcd at `url`.
    pub async fn start(url: &str) -> anyhow::Result<Self> {
        let to: SocketAddr = url.trim_start_matches("http://").parse()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let hop = Hop { url: format!("http://{}", listener.local_addr()?), open: watch::channel(true).0 };
        let open = hop.open.subscribe();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(join(near, to, open.clone()));
            }
        });
        Ok(hop)
    }

    /// Nothing passes any more, either way; connections stay.
    pub fn cut(&self) {
        self.open.send_replace(false);
    }

    /// Everything passes again, what has waited first.
    pub fn heal(&self) {
        self.open.send_replace(true);
    }
}

async fn join(near: TcpStream, to: SocketAddr, open: watch::Receiver<bool>) {
    let Ok(far) = TcpStream::connect(to).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    tokio::select! {
        _ = pass(near_in, far_out, open.clone()) => {}
        _ = pass(far_in, near_out, open) => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut open: watch::Receiver<bool>) -> anyhow::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let n = from.read(&mut chunk).await?;
        open.wait_for(|open| *open).await?;
        if n == 0 {
            return Ok(());
        }
        to.write_all(&chunk[..n]).await?;
    }
}
