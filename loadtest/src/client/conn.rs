//! One connection: dials, says hello, multiplexes its seats, comes back when it breaks.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::{SinkExt as _, StreamExt as _};
use rand::Rng as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpSocket;
use tokio::sync::{Semaphore, watch};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Message, http::HeaderValue};

use super::seat::{Schedule, Scribe, Seat};
use super::wire::{self, Frame};
use crate::clock::{instant, now_us};
use crate::journal::{Line, What};

/// First and longest pause between dials.
const BACKOFF_MS: (u64, u64) = (100, 4_000);
/// Frames go out in messages of at most this, below the server's limit of 64 KiB a frame.
const MESSAGE_BYTES: usize = 48 * 1024;
const DIAL: Duration = Duration::from_secs(10);

pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}
type Socket = WebSocketStream<Box<dyn Stream>>;

/// What all clients are doing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Phase {
    /// Connect and attach; no ops.
    Setup,
    /// Ops are due from `start_us` until `until_us`.
    Run { start_us: u64, until_us: u64 },
    /// Hang up and hand the journals over.
    Stop,
}

/// Counters shared by all clients, for progress and for knowing when everything has settled.
#[derive(Default)]
pub struct Live {
    pub connected: AtomicI64,
    pub attached: AtomicI64,
    pub open_ops: AtomicI64,
    pub ops: AtomicU64,
    pub failed_dials: AtomicU64,
    /// Frames the server called wrong.
    pub errors: AtomicU64,
}

/// Where and how to dial.
#[derive(Clone)]
pub struct Dial {
    pub addrs: Arc<[SocketAddr]>,
    pub tls: Option<tokio_rustls::TlsConnector>,
    /// At most this many dials at once.
    pub gate: Arc<Semaphore>,
}

/// A seat and when its ops are due after the start.
pub struct Placed {
    pub seat: Seat,
    pub offset_us: u64,
    pub every_us: u64,
}

/// One client: a principal with one lane.
pub struct Client {
    pub index: usize,
    pub sub: Arc<str>,
    pub token: String,
    pub lane: Vec<u8>,
    pub seats: Vec<Placed>,
    /// Time between reactions of this client (0: none), which go round its seats.
    pub reaction_every_us: u64,
    pub dial: Dial,
    pub live: Arc<Live>,
}

struct State {
    seats: Vec<Placed>,
    by_name: HashMap<Arc<str>, usize>,
    scribe: Scribe,
    live: Arc<Live>,
    reaction: (u64, u64, usize),
    /// What this client has added to the shared gauges.
    shown: (i64, i64),
    until_us: u64,
}

impl Client {
    /// Runs until `Phase::Stop`; returns the journal.
    pub async fn run(self, mut phase: watch::Receiver<Phase>) -> Vec<Line> {
        let scribe =
            Scribe { client: self.sub.clone(), lane: Arc::from(crate::dump::hex(&self.lane)), lines: Vec::new() };
        let by_name = self.seats.iter().enumerate().map(|(i, p)| (p.seat.session.clone(), i)).collect();
        let reaction = (u64::MAX, self.reaction_every_us, self.index);
        let mut state =
            State { seats: self.seats, by_name, scribe, live: self.live, reaction, shown: (0, 0), until_us: 0 };
        let (mut conn_seq, mut backoff, mut tries) = (0, BACKOFF_MS.0, 0);
        while *phase.borrow() != Phase::Stop {
            let source = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 0, 0, 2)) + (self.index / 8_000) as u32);
            let addr = self.dial.addrs[(self.index + tries as usize) % self.dial.addrs.len()];
            let dialled = dial(&self.dial, addr, source.into()).await;
            conn_seq += 1;
            if let Ok(mut socket) = dialled {
                state.live.connected.fetch_add(1, Relaxed);
                state.note(What::Connected, "");
                let hello = wire::hello(&self.token, &self.lane, conn_seq, tries);
                let started = now_us();
                let close = state.serve(&mut socket, hello, &mut phase).await.unwrap_or_else(|e| e.to_string());
                state.live.connected.fetch_add(-1, Relaxed);
                state.note(What::Closed, &close);
                state.lost();
                if now_us() - started > 5_000_000 {
                    (backoff, tries) = (BACKOFF_MS.0, 0);
                }
            } else {
                state.live.failed_dials.fetch_add(1, Relaxed);
            }
            tries += 1;
            if *phase.borrow() != Phase::Stop {
                backoff = rand::rng().random_range(BACKOFF_MS.0..=backoff * 3).min(BACKOFF_MS.1);
                let pause = tokio::time::sleep(Duration::from_millis(backoff));
                tokio::select! { () = pause => {}, _ = phase.wait_for(|p| *p == Phase::Stop) => {} }
            }
        }
        state.scribe.lines
    }
}

impl State {
    fn note(&mut self, what: What, code: &str) {
        let mut line = Line::new(now_us(), &self.scribe.client, what);
        line.code = Arc::from(code);
        self.scribe.lines.push(line);
    }

    fn lost(&mut self) {
        self.seats.iter_mut().for_each(|p| p.seat.handle_connection_lost());
        self.show();
    }

    fn show(&mut self) {
        let attached = self.seats.iter().filter(|p| p.seat.is_live()).count() as i64;
        let open = self.seats.iter().filter(|p| !p.seat.is_settled()).count() as i64;
        self.live.attached.fetch_add(attached - self.shown.0, Relaxed);
        self.live.open_ops.fetch_add(open - self.shown.1, Relaxed);
        self.shown = (attached, open);
    }

    fn start(&mut self, phase: Phase) {
        let Phase::Run { start_us, until_us } = phase else { return };
        if self.until_us == until_us {
            return;
        }
        self.until_us = until_us;
        for placed in &mut self.seats {
            placed.seat.schedule =
                Schedule { first_us: start_us + placed.offset_us, every_us: placed.every_us, until_us };
        }
        if self.reaction.1 > 0 {
            self.reaction.0 = start_us + rand::rng().random_range(0..self.reaction.1);
        }
    }

    /// One life of the connection. Returns why it ended.
    async fn serve(
        &mut self,
        socket: &mut Socket,
        hello: String,
        phase: &mut watch::Receiver<Phase>,
    ) -> anyhow::Result<String> {
        let mut out = vec![hello];
        self.seats.iter_mut().for_each(|p| p.seat.attach(&mut out));
        let now = *phase.borrow_and_update();
        self.start(now);
        loop {
            let next = self.poll(&mut out);
            send(socket, &mut out).await?;
            self.show();
            tokio::select! {
                heard = socket.next() => match heard {
                    Some(Ok(Message::Text(text))) => text.lines().for_each(|line| self.handle(line, &mut out)),
                    Some(Ok(Message::Close(frame))) => {
                        return Ok(frame.map_or_else(String::new, |f| u16::from(f.code).to_string()));
                    }
                    Some(Ok(_)) => {}
                    Some(Err(e)) => return Err(e.into()),
                    None => return Ok("1006".to_owned()),
                },
                () = tokio::time::sleep_until(instant(next)) => {}
                _ = phase.changed() => {
                    let now = *phase.borrow_and_update();
                    if now == Phase::Stop {
                        let _ = socket.close(None).await;
                        return Ok("1000".to_owned());
                    }
                    self.start(now);
                }
            }
        }
    }

    fn poll(&mut self, out: &mut Vec<String>) -> u64 {
        let (now, mut next) = (now_us(), u64::MAX);
        let before = out.len();
        for placed in &mut self.seats {
            next = next.min(placed.seat.poll(now, &mut self.scribe, out));
        }
        self.live.ops.fetch_add((out.len() - before) as u64, Relaxed);
        let (due, every, at) = &mut self.reaction;
        while *due <= now && *due < self.until_us && !self.seats.is_empty() {
            *due += *every;
            *at = (*at + 1) % self.seats.len();
            let seat = &self.seats[*at].seat;
            if seat.is_live() {
                out.push(wire::reaction(&seat.session, seat.epoch, "applause", now));
                let mut line = Line::new(now, &self.scribe.client, What::ReactionSent);
                (line.session, line.epoch) = (seat.session.clone(), seat.epoch);
                self.scribe.lines.push(line);
            }
        }
        if *due < self.until_us { next.min(*due) } else { next }
    }

    fn handle(&mut self, text: &str, out: &mut Vec<String>) {
        let Ok(frame) = serde_json::from_str::<Frame>(text) else {
            self.live.errors.fetch_add(1, Relaxed);
            return;
        };
        if let Some(i) = self.by_name.get(&*frame.session) {
            self.seats[*i].seat.handle_frame(now_us(), &frame, &mut self.scribe, out);
            return;
        }
        match &*frame.t {
            "ping" => out.push(wire::pong(frame.n)),
            "error" => {
                self.live.errors.fetch_add(1, Relaxed);
            }
            _ => {}
        }
    }
}

async fn send(socket: &mut Socket, out: &mut Vec<String>) -> anyhow::Result<()> {
    let mut message = String::new();
    for frame in out.drain(..) {
        if message.len() + frame.len() > MESSAGE_BYTES {
            socket.feed(Message::text(std::mem::take(&mut message))).await?;
        }
        if !message.is_empty() {
            message.push('\n');
        }
        message.push_str(&frame);
    }
    if !message.is_empty() {
        socket.send(Message::text(message)).await?;
    }
    Ok(())
}

/// Opens a WebSocket from `source`, with the JSON subprotocol.
pub async fn dial(dial: &Dial, addr: SocketAddr, source: IpAddr) -> anyhow::Result<Socket> {
    let _turn = dial.gate.acquire().await?;
    tokio::time::timeout(DIAL, async {
        let tcp = TcpSocket::new_v4()?;
        tcp.bind((source, 0).into())?;
        let tcp = tcp.connect(addr).await?;
        tcp.set_nodelay(true)?;
        let (scheme, stream): (_, Box<dyn Stream>) = match &dial.tls {
            None => ("ws", Box::new(tcp)),
            Some(tls) => ("wss", Box::new(tls.connect("localhost".try_into()?, tcp).await?)),
        };
        let mut request = format!("{scheme}://localhost:{}/v1/ws", addr.port()).into_client_request()?;
        request.headers_mut().insert("Sec-WebSocket-Protocol", HeaderValue::from_static("holdfast.v1.json"));
        // tungstenite's default of 128 KiB a connection would be a gigabyte here
        let config = WebSocketConfig::default().read_buffer_size(4096).write_buffer_size(0);
        let (socket, _) = tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await?;
        Ok(socket)
    })
    .await
    .context("dial timed out")?
}

#[cfg(test)]
#[path = "conn_tests.rs"]
mod tests;
