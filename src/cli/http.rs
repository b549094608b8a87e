//! One request to an admin server.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

/// An admin server on loopback answers in milliseconds.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// 100,000 held ops at 150 bytes each.
const BODY_BYTES_MAX: usize = 16 << 20;

/// Status code and body of the answer of `addr` (`host:port`).
async fn ask(method: Method, addr: &str, path: &str, body: String) -> anyhow::Result<(u16, String)> {
    let answer = async {
        let stream = TcpStream::connect(addr).await.with_context(|| format!("{addr} cannot be reached"))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = Request::builder().method(method).uri(path).header("host", addr);
        let request = request.body(Full::new(Bytes::from(body)))?;
        let asking = async {
            let response = sender.send_request(request).await?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
            let body = body.map_err(|e| anyhow::anyhow!("{addr}{path}: {e}"))?.to_bytes();
            anyhow::Ok((status, String::from_utf8_lossy(&body).into_owned()))
        };
        let mut asking = std::pin::pin!(asking);
        tokio::select! {
            answer = &mut asking => answer,
            // the connection may end before the answer has been read from it
            ended = connection => { ended?; asking.await }
        }
    };
    timeout(ANSWER_MAX, answer).await.with_context(|| format!("{addr} did not answer within {ANSWER_MAX:?}"))?
}

/// The body of a 200 to a GET.
pub(super) async fn get_ok(addr: &str, path: &str) -> anyhow::Result<String> {
    ok(Method::GET, addr, path, String::new()).await
}

/// The body of a 200 to a POST without a body.
pub(super) async fn post_ok(addr: &str, path: &str) -> anyhow::Result<String> {
    ok(Method::POST, addr, path, String::new()).await
}

/// The body of a 200 to a PUT of JSON.
pub(super) async fn put_ok(addr: &str, path: &str, body: String) -> anyhow::Result<String> {
    ok(Method::PUT, addr, path, body).await
}

async fn ok(method: Method, addr: &str, path: &str, body: String) -> anyhow::Result<String> {
    let (status, body) = ask(method, addr, path, body).await?;
    if status != 200 {
        // A problem's detail says it all (RFC 9457).
        let problem = serde_json::from_str::<serde_json::Value>(&body).ok();
        let detail = problem.as_ref().and_then(|p| p["detail"].as_str()).unwrap_or_else(|| body.trim());
        bail!("{addr}{path}: status {status}: {detail}");
    }
    Ok(body)
}
