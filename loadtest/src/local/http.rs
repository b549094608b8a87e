//! The few requests a run needs: health, readiness, metrics, limits.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Status and body of a GET.
pub async fn get(addr: &str, path: &str) -> anyhow::Result<(u16, String)> {
    ask(addr, &format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")).await
}

/// Status and body of a PUT of JSON.
pub async fn put(addr: &str, path: &str, json: &str) -> anyhow::Result<(u16, String)> {
    let head = format!(
        "PUT {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        json.len()
    );
    ask(addr, &(head + json)).await
}

/// HTTP/1.0: the body ends with the connection.
async fn ask(addr: &str, request: &str) -> anyhow::Result<(u16, String)> {
    let asking = async {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text).await?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let status = text.split_whitespace().nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok((status, body.to_owned()))
    };
    tokio::time::timeout(Duration::from_secs(5), asking).await?
}

pub async fn is_ok(addr: &str, path: &str) -> bool {
    get(addr, path).await.is_ok_and(|(status, _)| status == 200)
}
