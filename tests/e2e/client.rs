//! A client that speaks the JSON form of design 4 and nothing else.

use std::collections::VecDeque;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Message, client::IntoClientRequest as _, http::HeaderValue},
};

use super::process::DEADLINE;

/// What the server said.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// A frame.
    Frame(Value),
    /// The end: close code and reason; (1006, why) without a close frame.
    Closed(u16, String),
}

/// A client nobody looks at just now.
pub struct Resting {
    client: tokio::task::JoinHandle<Client>,
    stop: tokio::sync::oneshot::Sender<()>,
}

impl Resting {
    /// The client, with everything it heard meanwhile still to be heard.
    pub async fn back(self) -> Client {
        let _ = self.stop.send(());
        self.client.await.expect("it was closed")
    }
}

/// A connection and the sender's side of one lane.
pub struct Client {
    pub ws: WebSocketStream<TcpStream>,
    addr: String,
    token: String,
    pub lane: String,
    conn_seq: u64,
    inbox: VecDeque<Value>,
    /// Highest seq sent.
    pub seq: u64,
    /// Highest seq known to be settled.
    pub settled: u64,
    /// Newest (epoch, ver) heard of the session, as attach wants it.
    pub seen: (u64, u64),
}

impl Client {
    /// An open WebSocket; nothing is said yet.
    pub async fn connect(addr: &str) -> Self {
        Self::connect_from(addr, TcpSocket::new_v4().unwrap()).await
    }

    /// As [`open`](Self::open), with a receive buffer of so many bytes.
    pub async fn open_small(addr: &str, token: &str, bytes: u32) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(bytes).unwrap();
        let mut client = Self::connect_from(addr, socket).await;
        client.token = token.into();
        client.hello().await;
        client
    }

    async fn connect_from(addr: &str, socket: TcpSocket) -> Self {
        let open = async { socket.connect(addr.parse().unwrap()).await.unwrap() };
        Self::upgrade(addr, timeout(DEADLINE, open).await.expect("no connection")).await
    }

    /// Upgrades a connection to `addr`; nothing is said yet.
    pub async fn upgrade(addr: &str, socket: TcpStream) -> Self {
        Self::upgrade_as(addr, socket, &[]).await
    }

    /// As [`upgrade`](Self::upgrade), with more headers.
    pub async fn upgrade_as(addr: &str, socket: TcpStream, headers: &[(&'static str, &'static str)]) -> Self {
        let mut request = format!("ws://{addr}/v1/ws").into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static("holdfast.v1.json"));
        for (name, value) in headers {
            request.headers_mut().insert(*name, HeaderValue::from_static(value));
        }
        let upgraded = timeout(DEADLINE, client_async(request, socket)).await.expect("no upgrade");
        let ws = upgraded.unwrap().0;
        let lane = URL_SAFE_NO_PAD.encode(format!("{:08x}", rand::random::<u32>()));
        Self {
            ws,
            addr: addr.into(),
            token: String::new(),
            lane,
            conn_seq: 1,
            inbox: VecDeque::new(),
            seq: 0,
            settled: 0,
            seen: (0, 0),
        }
    }

    /// Connects and gets its welcome.
    pub async fn open(addr: &str, token: &str) -> Self {
        let mut client = Self::connect(addr).await;
        client.token = token.into();
        client.hello().await;
        client
    }

    /// As [`open`](Self::open), from a loopback address of its own.
    pub async fn open_from(addr: &str, token: &str, from: &str) -> Self {
        let mut client = Self::connect_from(addr, bound(from)).await;
        client.token = token.into();
        client.hello().await;
        client
    }

    /// A new connection of the same lane.
    pub async fn reconnect(self, addr: &str) -> Self {
        self.again(addr, TcpSocket::new_v4().unwrap()).await
    }

    /// As [`reconnect`](Self::reconnect), from a loopback address of its own.
    pub async fn reconnect_from(self, addr: &str, from: &str) -> Self {
        self.again(addr, bound(from)).await
    }

    async fn again(self, addr: &str, socket: TcpSocket) -> Self {
        let Self { lane, token, seq, settled, seen, .. } = self;
        let conn_seq = self.conn_seq + 1;
        let mut client = Self { lane, token, seq, settled, seen, conn_seq, ..Self::connect_from(addr, socket).await };
        client.hello().await;
        client
    }

    async fn hello(&mut self) {
        let hello = json!({"t": "hello", "token": self.token, "lane": self.lane, "conn_seq": self.conn_seq});
        self.say(&hello).await;
        self.expect("welcome", |_| true).await;
    }

    /// Leaves the client alone: it goes on reading and answering pings, as a client must, until it is wanted back.
    pub fn rest(mut self) -> Resting {
        let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
        let client = tokio::spawn(async move {
            let mut kept = VecDeque::new();
            loop {
                tokio::select! {
                    _ = &mut stopped => {
                        kept.append(&mut self.inbox);
                        self.inbox = kept;
                        return self;
                    }
                    heard = self.next() => match heard {
                        Heard::Frame(frame) => kept.push_back(frame),
                        Heard::Closed(code, reason) => panic!("closed while resting: {code} {reason}"),
                    },
                }
            }
        });
        Resting { client, stop }
    }

    /// Where it is connected.
    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// Sends one frame.
    pub async fn say(&mut self, frame: &Value) {
        self.text(frame.to_string()).await;
    }

    /// Sends any text as one message. A connection that is gone already is for the reading side to tell.
    pub async fn text(&mut self, text: String) {
        let _ = timeout(DEADLINE, self.ws.send(Message::text(text))).await.expect("cannot write");
    }

    /// Sends any bytes on the socket beneath the WebSocket.
    pub async fn bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        timeout(DEADLINE, self.ws.get_mut().write_all(bytes)).await.expect("cannot write")
    }

    /// The next frame or the end. Pings are answered.
    pub async fn hear(&mut self) -> Heard {
        timeout(DEADLINE, self.next()).await.expect("nothing heard")
    }

    async fn next(&mut self) -> Heard {
        loop {
            if let Some(frame) = self.inbox.pop_front() {
                match frame["t"].as_str() {
                    Some("ping") => self.say(&json!({"t": "pong", "n": frame["n"]})).await,
                    _ => return Heard::Frame(self.noted(frame)),
                }
                continue;
            }
            match self.ws.next().await {
                Some(Ok(Message::Text(text))) => {
                    self.inbox
                        .extend(text.lines().map(|l| serde_json::from_str::<Value>(l).expect("server speaks JSON")));
                }
                Some(Ok(Message::Close(Some(frame)))) => {
                    return Heard::Closed(frame.code.into(), frame.reason.to_string());
                }
                Some(Ok(Message::Close(None))) => return Heard::Closed(1005, String::new()),
                Some(Ok(_)) => {}
                Some(Err(e)) => return Heard::Closed(1006, e.to_string()),
                None => return Heard::Closed(1006, "end of stream".into()),
            }
        }
    }

    fn noted(&mut self, frame: Value) -> Value {
        if let Some(epoch) = frame["epoch"].as_u64() {
            assert!(epoch >= self.seen.0, "the epoch fell from {} in {frame}", self.seen.0);
            self.seen.0 = epoch;
        }
        if frame["t"] == "event" {
            let ver = frame["ver"].as_u64().unwrap();
            self.seen.1 = self.seen.1.max(frame["to"].as_u64().unwrap_or(0)).max(ver);
        } else if frame["t"] == "snapshot" {
            self.seen.1 = frame["ver"].as_u64().unwrap();
        }
        frame
    }

    /// The next frame of type `t` that fits; others are skipped.
    pub async fn expect(&mut self, t: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let mut skipped = Vec::new();
        let found = timeout(DEADLINE, async {
            loop {
                match self.next().await {
                    Heard::Frame(frame) if frame["t"] == t && fits(&frame) => return frame,
                    Heard::Frame(frame) => skipped.push(frame),
                    Heard::Closed(code, reason) => panic!("waiting for {t}: closed {code} {reason}, after {skipped:?}"),
                }
            }
        });
        let found = found.await;
        found.unwrap_or_else(|_| panic!("no {t} came; others: {skipped:?}"))
    }

    /// The close; frames before it are skipped.
    pub async fn closed(&mut self) -> (u16, String) {
        loop {
            if let Heard::Closed(code, reason) = self.hear().await {
                return (code, reason);
            }
        }
    }
}

/// A socket that connects from this address.
fn bound(from: &str) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(std::net::SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
    socket
}
