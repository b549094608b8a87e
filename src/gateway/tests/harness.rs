//! The fake sessions, a listener in this process and a client of it.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{SinkExt as _, StreamExt as _};
use holdfast_core::{
    id::{ConnId, SessionId},
    proto::{
        Pos,
        client_frame::{Op, Reaction, Resync},
        server_frame::{Attached, Event, F},
    },
    time::Wall,
};
use jsonwebtoken::{EncodingKey, Header};
use serde_json::{Value, json};
use tokio::{net::TcpStream, sync::watch, task::JoinHandle, time::timeout};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Message, client::IntoClientRequest as _},
};

use crate::{
    clock::Clock,
    gateway::{
        admission::{Gate, Settings, keys},
        jwks::Jwks,
        limits::{Limits, ListenerConfig},
        listener::{Handle, Listener},
        port::{Arrival, ClientSpec, Downstream, SessionPort},
    },
    transport::{outgoing::Outgoing, trust::Trust},
};

const SECRET: &[u8] = b"secret-secret-secret-secret-secret";

/// What the port heard.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    Register(String),
    Unregister(u32),
    Attach(String, ClientSpec),
    Detach(String, u32),
    Op(String, Op, Arrival),
    Reaction(String, Reaction),
    Resync(String, Resync),
    Slow(String),
    Delivered(String, u64, Wall),
}

/// Answers attaches with `attached` and ops with their echo.
#[derive(Default)]
pub struct Port {
    pub heard: Mutex<Vec<Heard>>,
    pub down: Mutex<Option<Arc<dyn Downstream>>>,
}

impl Port {
    fn note(&self, heard: Heard) {
        self.heard.lock().unwrap().push(heard);
    }

    pub fn deliver(&self, frame: F, stamp: bool) {
        self.down.lock().unwrap().clone().unwrap().deliver(Outgoing::with_stamp(frame, stamp));
    }

    /// Waits until the port heard something that `pick` picks.
    pub async fn wait<T>(&self, pick: impl Fn(&Heard) -> Option<T>) -> T {
        for _ in 0..300 {
            if let Some(found) = self.heard.lock().unwrap().iter().find_map(&pick) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("not heard; heard: {:#?}", self.heard.lock().unwrap())
    }
}

impl SessionPort for Port {
    fn register(&self, _: ConnId, down: Arc<dyn Downstream>, principal: Arc<str>) {
        *self.down.lock().unwrap() = Some(down);
        self.note(Heard::Register(principal.to_string()));
    }
    fn unregister(&self, _: ConnId, reason: u32) {
        self.note(Heard::Unregister(reason));
    }
    fn attach(&self, session: &SessionId, client: ClientSpec) {
        let attached = Attached {
            session: session.to_string(),
            n: client.n,
            head: Some(Pos { epoch: 1, ver: 0 }),
            resume: 3,
            role: client.role,
            ..Attached::default()
        };
        self.note(Heard::Attach(session.to_string(), client));
        self.deliver(F::Attached(attached), false);
    }
    fn detach(&self, session: &SessionId, _: ConnId, reason: u32) {
        self.note(Heard::Detach(session.to_string(), reason));
    }
    fn op(&self, session: &SessionId, _: ConnId, op: Op, arrival: Arrival) {
        let ver = op.op.as_ref().unwrap().seq;
        let event = Event {
            session: session.to_string(),
            at: Some(Pos { epoch: 1, ver }),
            op: op.op.clone(),
            content: op.content,
            payload: op.payload.clone(),
            ..Event::default()
        };
        self.note(Heard::Op(session.to_string(), op, arrival));
        self.deliver(F::Event(event), true);
    }
    fn reaction(&self, session: &SessionId, _: ConnId, reaction: Reaction) {
        self.note(Heard::Reaction(session.to_string(), reaction));
    }
    fn resync(&self, session: &SessionId, _: ConnId, resync: Resync) {
        self.note(Heard::Resync(session.to_string(), resync));
    }
    fn slow(&self, session: &SessionId, _: ConnId) {
        self.note(Heard::Slow(session.to_string()));
    }
    fn delivered(&self, session: &SessionId, _: ConnId, ver: u64, sent_at: Wall) {
        self.note(Heard::Delivered(session.to_string(), ver, sent_at));
    }
}

/// A listener running in this process.
pub struct Bench {
    pub gate: Arc<Gate>,
    pub port: Arc<Port>,
    pub addr: SocketAddr,
    pub handle: Handle,
    pub clock: Clock,
    pub stop: watch::Sender<bool>,
    pub task: JoinHandle<()>,
}

pub fn config() -> ListenerConfig {
    ListenerConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        tls: None,
        keys: Jwks::from_secret(SECRET).unwrap(),
        origins: vec!["https://ok.example".into()],
        gateway: "gw-1".into(),
        features: vec!["status".into()],
        pages: None,
        ready: None,
        trust: Trust::default(),
        limits: Limits::default(),
    }
}

pub fn bench(config: ListenerConfig) -> Bench {
    gated(config, Settings::default())
}

/// With limits of the admission.
pub fn gated(config: ListenerConfig, settings: Settings) -> Bench {
    let (port, clock) = (Arc::new(Port::default()), Clock::start());
    let gate = Gate::new(settings, keys::own(), &config.gateway, Arc::default());
    let listener = Listener::bind(config, gate.clone(), port.clone(), clock.clone()).unwrap();
    let (addr, handle) = (listener.local_addr().unwrap(), listener.handle());
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(listener.run(stopped.clone(), stopped));
    Bench { gate, port, addr, handle, clock, stop, task }
}

pub fn token(bench: &Bench, seconds: i64, more: &Value) -> String {
    let exp = i64::try_from(bench.clock.now().wall.0 / 1_000_000).unwrap() + seconds;
    let mut claims = json!({"sub": "ann", "aud": "holdfast", "exp": exp});
    claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    jsonwebtoken::encode(&Header::default(), &claims, &EncodingKey::from_secret(SECRET).unwrap()).unwrap()
}

/// One client.
pub struct Peer {
    pub socket: WebSocketStream<TcpStream>,
}

impl Bench {
    pub async fn connect(&self, protocol: &str, origin: Option<&str>) -> Peer {
        self.request("", protocol, origin).await
    }

    /// With a query: `k=` a ticket, `r=` a resume token.
    pub async fn ask(&self, query: &str) -> Peer {
        self.request(query, "holdfast.v1.json", None).await
    }

    async fn request(&self, query: &str, protocol: &str, origin: Option<&str>) -> Peer {
        let uri = format!("ws://{}/v1/ws?{query}", self.addr);
        let mut request = uri.into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
        if let Some(origin) = origin {
            request.headers_mut().insert("origin", origin.parse().unwrap());
        }
        let stream = TcpStream::connect(self.addr).await.unwrap();
        Peer { socket: client_async(request, stream).await.unwrap().0 }
    }

    pub async fn peer(&self) -> Peer {
        self.connect("holdfast.v1.json", None).await
    }

    pub fn hello(&self, more: &Value) -> Value {
        let mut hello =
            json!({"t": "hello", "token": token(self, 600, &json!({})), "lane": "jxI0VniavN4", "conn_seq": 3});
        hello.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        hello
    }

    /// A client whose hello was answered.
    pub async fn open(&self) -> Peer {
        let mut peer = self.peer().await;
        peer.say(&self.hello(&json!({}))).await;
        assert_eq!(peer.hear().await["t"], "welcome");
        peer
    }
}

impl Peer {
    pub async fn say(&mut self, frame: &Value) {
        self.text(frame.to_string()).await;
    }

    /// Where the other end may be closing already.
    pub async fn try_say(&mut self, frame: &Value) {
        drop(self.socket.send(Message::text(frame.to_string())).await);
    }

    /// The next frame that is not a ping, or the close code and reason.
    pub async fn hear_or_close(&mut self) -> Result<Value, (u16, String)> {
        loop {
            let next = timeout(Duration::from_secs(5), self.socket.next()).await.expect("silence");
            match next.expect("end").unwrap() {
                Message::Text(text) => return Ok(serde_json::from_str(&text).unwrap()),
                Message::Close(frame) => {
                    let frame = frame.unwrap();
                    return Err((frame.code.into(), frame.reason.to_string()));
                }
                _ => {}
            }
        }
    }

    pub async fn text(&mut self, text: String) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    /// The next frame that is not a ping.
    pub async fn hear(&mut self) -> Value {
        loop {
            let message =
                timeout(Duration::from_secs(5), self.socket.next()).await.expect("silence").expect("end").unwrap();
            match message {
                Message::Text(text) => {
                    let frame: Value = serde_json::from_str(&text).unwrap();
                    if frame["t"] != "ping" {
                        return frame;
                    }
                }
                Message::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The close code and reason that end the connection.
    pub async fn closed(&mut self) -> (u16, String) {
        loop {
            let message =
                timeout(Duration::from_secs(5), self.socket.next()).await.expect("silence").expect("end").unwrap();
            if let Message::Close(frame) = message {
                let frame = frame.unwrap();
                return (frame.code.into(), frame.reason.to_string());
            }
        }
    }
}
