//! A TCP hop that can reset everything that goes through it.

use std::time::Duration;

use socket2::SockRef;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// Listens on loopback and passes on to an address. Lives as long as the runtime that made it.
pub struct Proxy {
    /// Where it listens.
    pub addr: String,
    cut: watch::Sender<u64>,
}

impl Proxy {
    /// A hop to `to`.
    pub async fn start(to: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let (cut, cuts) = watch::channel(0);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(pass(socket, to.clone(), cuts.clone()));
            }
        });
        Self { addr, cut }
    }

    /// Resets every connection; new ones are passed again.
    pub fn reset(&self) {
        self.cut.send_modify(|n| *n += 1);
    }
}

async fn pass(mut near: TcpStream, to: String, mut cuts: watch::Receiver<u64>) {
    cuts.mark_unchanged();
    let Ok(mut far) = TcpStream::connect(to).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    tokio::select! {
        _ = copy_bidirectional(&mut near, &mut far) => {}
        _ = cuts.changed() => {
            for socket in [&near, &far] {
                let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
            }
        }
    }
}
