//! A small client of the JSON form (design 4.2), for `play` and for the built-in players of `dev`: one connection, one
//! session, one op at a time. Not a load generator (`loadtest`) and not the browser's client.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::{net::TcpStream, time::timeout};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        client::IntoClientRequest as _,
        http::HeaderValue,
        protocol::frame::{CloseFrame, coding::CloseCode},
    },
};

/// TCP, upgrade and welcome together; a gateway near by needs milliseconds.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// A page load's worth of identity: what stays the same when its connection is lost.
#[derive(Clone, Debug)]
pub struct Seat {
    /// `ws://host:port/v1/ws`.
    pub url: String,
    /// The token.
    pub token: String,
    /// The session.
    pub session: String,
    /// 8 random bytes, base64url.
    lane: String,
    /// Connections made so far.
    conn_seq: u32,
}

/// One connection, attached.
#[derive(Debug)]
pub struct Client {
    ws: WebSocketStream<TcpStream>,
    queue: std::collections::VecDeque<Value>,
    session: String,
    /// Highest version seen.
    pub ver: u64,
    /// The last `attached`: `lane_seq` says which ops are decided.
    pub attached: Value,
}

impl Seat {
    /// A seat with a new lane.
    #[must_use]
    pub fn new(url: &str, token: &str, session: &str) -> Self {
        let lane = URL_SAFE_NO_PAD.encode((rand::random::<u64>() >> 8).to_le_bytes());
        Self { url: url.into(), token: token.into(), session: session.into(), lane, conn_seq: 0 }
    }

    /// Connects, says hello and attaches. What follows `attached` (a snapshot or events) comes from [`Client::next`].
    ///
    /// # Errors
    /// The gateway cannot be reached, or refuses the token or the session.
    pub async fn connect(&mut self, seen: (u64, u64)) -> anyhow::Result<Client> {
        self.conn_seq += 1;
        timeout(CONNECT_MAX, self.attach(seen)).await.with_context(|| format!("{}: no answer", self.url))?
    }

    async fn attach(&self, seen: (u64, u64)) -> anyhow::Result<Client> {
        let mut request =
            self.url.as_str().into_client_request().with_context(|| format!("\"{}\" is no URL", self.url))?;
        ensure!(request.uri().scheme_str() == Some("ws"), "{}: only ws:// is spoken here", self.url);
        let address = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static("holdfast.v1.json"));
        let stream = TcpStream::connect(&address).await.with_context(|| format!("{address} cannot be reached"))?;
        stream.set_nodelay(true)?;
        let (ws, _) = tokio_tungstenite::client_async(request, stream).await.context("the upgrade was refused")?;
        let mut client = Client {
            ws,
            queue: std::collections::VecDeque::new(),
            session: self.session.clone(),
            ver: 0,
            attached: Value::Null,
        };
        let hello = json!({"t": "hello", "token": self.token, "lane": self.lane, "conn_seq": self.conn_seq,
            "client": concat!("holdfast-cli/", env!("CARGO_PKG_VERSION")), "attempt": self.conn_seq - 1});
        let attach = json!({"t": "attach", "session": self.session, "n": 1, "role": "participant",
            "seen": {"epoch": seen.0, "ver": seen.1}});
        client.send(&format!("{hello}\n{attach}")).await?;
        loop {
            let frame = client.next().await?;
            match frame["t"].as_str() {
                Some("attached") => {
                    client.ver = seen.1;
                    client.attached = frame;
                    return Ok(client);
                }
                Some("detached") => bail!("{}: {}", self.session, frame["code"].as_str().unwrap_or("refused")),
                _ => {}
            }
        }
    }
}

impl Client {
    /// Sends op `seq` of the lane with `data`; every smaller one is settled.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn op(&mut self, seq: u64, attempt: u32, data: &Value) -> anyhow::Result<()> {
        let op = json!({"t": "op", "session": self.session, "op": seq, "settled": seq, "base": self.ver, "kind": 0,
            "attempt": attempt, "data": data});
        self.send(&op.to_string()).await
    }

    /// The next frame of the server; pings are answered on the way.
    ///
    /// # Errors
    /// The connection is lost or closed; says why.
    pub async fn next(&mut self) -> anyhow::Result<Value> {
        loop {
            if let Some(frame) = self.queue.pop_front() {
                if frame["t"] == "ping" {
                    let pong = json!({"t": "pong", "n": frame["n"]});
                    self.send(&pong.to_string()).await?;
                    continue;
                }
                let top = frame["to"].as_u64().or(frame["ver"].as_u64()).unwrap_or(0);
                if matches!(frame["t"].as_str(), Some("event" | "snapshot")) {
                    self.ver = self.ver.max(top);
                }
                return Ok(frame);
            }
            match self.ws.next().await {
                None => bail!("the connection is lost"),
                Some(Err(e)) => return Err(e).context("the connection is lost"),
                Some(Ok(Message::Close(close))) => match close {
                    Some(CloseFrame { code, reason }) => bail!("closed by the gateway: {} {reason}", u16::from(code)),
                    None => bail!("closed by the gateway"),
                },
                Some(Ok(Message::Text(text))) => {
                    for line in text.lines().filter(|l| !l.is_empty()) {
                        self.queue.push_back(serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?);
                    }
                }
                Some(Ok(_)) => {}
            }
        }
    }

    /// Says goodbye.
    pub async fn bye(mut self) {
        let _ = self.send("{\"t\":\"bye\"}").await;
        let close = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        let _ = timeout(Duration::from_secs(1), self.ws.close(Some(close))).await;
    }

    async fn send(&mut self, text: &str) -> anyhow::Result<()> {
        self.ws.send(Message::text(text)).await.context("the connection is lost")
    }
}
