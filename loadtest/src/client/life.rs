//! A client on its connections: the frames of one life after another, its seats, its journal.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use rand::Rng as _;
use tokio::sync::watch;
use tokio_tungstenite::tungstenite::{self, Message};

use super::conn::{Client, Live, Phase, Placed};
use super::dial::Socket;
use super::reconnect::{End, Rules, Told};
use super::seat::{Schedule, Scribe};
use super::wire::{self, Frame};
use crate::clock::{instant, now_us};
use crate::journal::{Line, What};

/// Frames go out in messages of at most this, below the server's limit of 64 KiB a frame.
const MESSAGE_BYTES: usize = 48 * 1024;
/// A server that says `bye` back, or a close frame behind a broken pipe, has this long.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// When things are due on this connection, µs; `u64::MAX` = never.
struct Due {
    /// A goaway named it.
    leave_us: u64,
    /// Nothing heard until then: the server is gone.
    silent_us: u64,
    dead_us: u64,
}

impl Due {
    const NEVER: Due = Due { leave_us: u64::MAX, silent_us: u64::MAX, dead_us: 0 };
}

pub struct Life {
    seats: Vec<Placed>,
    by_name: HashMap<Arc<str>, usize>,
    scribe: Scribe,
    live: Arc<Live>,
    reaction: (u64, u64, usize),
    /// What this client has added to the shared gauges: welcomed, attached, open.
    shown: (bool, i64, i64),
    until_us: u64,
    /// The ops of [`Live::parked`] have been brought forward.
    parked: bool,
    due: Due,
    stay: bool,
}

impl Life {
    pub fn new(client: Client) -> Self {
        let scribe = Scribe { client: client.sub, lane: Arc::from(crate::dump::hex(&client.lane)), lines: Vec::new() };
        let by_name = client.seats.iter().enumerate().map(|(i, p)| (p.seat.session.clone(), i)).collect();
        Life {
            seats: client.seats,
            by_name,
            scribe,
            live: client.live,
            reaction: (u64::MAX, client.reaction_every_us, client.index),
            shown: (false, 0, 0),
            until_us: 0,
            parked: false,
            due: Due::NEVER,
            stay: client.stay,
        }
    }

    /// The journal.
    pub fn lines(self) -> Vec<Line> {
        self.scribe.lines
    }

    /// A line that names no session.
    pub fn note(&mut self, what: What, code: &str) -> &mut Line {
        let mut line = Line::new(now_us(), &self.scribe.client, what);
        line.code = Arc::from(code);
        let at = self.scribe.lines.len();
        self.scribe.lines.push(line);
        &mut self.scribe.lines[at]
    }

    /// The connection, or the attempt at one, has ended.
    pub fn handle_end(&mut self, end: &End) {
        if !self.shown.0 {
            let (word, ms) = refusal(end);
            self.note(What::Refused, &word).to = ms;
            self.live.failed_dials.fetch_add(1, Relaxed);
        } else {
            self.note(What::Closed, &end.word());
        }
        if std::mem::take(&mut self.shown.0) {
            self.live.welcomed.fetch_add(-1, Relaxed);
        }
        self.seats.iter_mut().for_each(|p| p.seat.handle_connection_lost());
        self.show();
    }

    /// Sent away for good: a failure of the run.
    pub fn handle_stop(&mut self, end: &End) {
        self.live.stopped.fetch_add(1, Relaxed);
        self.note(What::Stopped, &end.word());
    }

    fn show(&mut self) {
        let attached = self.seats.iter().filter(|p| p.seat.is_live()).count() as i64;
        let open = self.seats.iter().filter(|p| !p.seat.is_settled()).count() as i64;
        self.live.attached.fetch_add(attached - self.shown.1, Relaxed);
        self.live.open_ops.fetch_add(open - self.shown.2, Relaxed);
        (self.shown.1, self.shown.2) = (attached, open);
    }

    fn start(&mut self, phase: Phase) {
        let Phase::Run { start_us, until_us } = phase else { return };
        if let Some(all) = self.live.parked.get().filter(|_| !std::mem::replace(&mut self.parked, true)) {
            let named = self.seats.iter_mut().filter(|p| all.contains(&p.seat.session));
            named.for_each(|p| p.seat.hasten(now_us()));
        }
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

    /// One connection, from hello (`None`: a server of another kind) to its end.
    pub async fn serve(
        &mut self,
        socket: &mut Socket,
        hello: Option<String>,
        with: (&mut Rules, &mut watch::Receiver<Phase>),
    ) -> End {
        let (rules, phase) = with;
        self.live.connected.fetch_add(1, Relaxed);
        self.note(What::Connected, "");
        self.due = Due::NEVER;
        let end = self.frames(socket, hello, (rules, phase)).await;
        self.live.connected.fetch_add(-1, Relaxed);
        end
    }

    async fn frames(
        &mut self,
        socket: &mut Socket,
        hello: Option<String>,
        with: (&mut Rules, &mut watch::Receiver<Phase>),
    ) -> End {
        let (rules, phase) = with;
        if hello.is_none() {
            self.welcomed(&Frame::default(), rules);
        }
        let mut out: Vec<String> = hello.into_iter().collect();
        self.seats.iter_mut().for_each(|p| p.seat.attach(&mut out));
        let now = *phase.borrow_and_update();
        self.start(now);
        loop {
            let next = self.poll(&mut out);
            if send(socket, &mut out).await.is_err() {
                return last_words(socket).await.unwrap_or(End::Lost);
            }
            self.show();
            tokio::select! {
                biased;
                heard = socket.next() => {
                    self.due.silent_us = self.due.silent_us.max(now_us().saturating_add(self.due.dead_us));
                    match heard {
                        Some(Ok(Message::Text(text))) => {
                            text.lines().for_each(|line| self.handle(line, rules, &mut out));
                            if !self.stay && self.shown.0 {
                                let _ = socket.close(None).await;
                                return End::Over;
                            }
                        }
                        Some(Ok(Message::Close(frame))) => return closed(frame),
                        Some(Ok(_)) => {}
                        Some(Err(_)) | None => return End::Lost,
                    }
                }
                () = tokio::time::sleep_until(instant(next)) => {
                    let now = now_us();
                    if self.due.leave_us <= now {
                        let _ = socket.send(Message::text(wire::bye())).await;
                        let _ = last_words(socket).await;
                        return End::Moved;
                    }
                    if self.due.silent_us <= now {
                        return End::Silent;
                    }
                }
                _ = phase.changed() => {
                    let now = *phase.borrow_and_update();
                    if now == Phase::Stop {
                        let _ = socket.close(None).await;
                        return End::Over;
                    }
                    self.start(now);
                }
            }
        }
    }

    /// Queues what is due; returns when to call again.
    fn poll(&mut self, out: &mut Vec<String>) -> u64 {
        let (now, mut next) = (now_us(), self.due.leave_us.min(self.due.silent_us));
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

    fn handle(&mut self, text: &str, rules: &mut Rules, out: &mut Vec<String>) {
        let Ok(frame) = serde_json::from_str::<Frame>(text) else {
            self.live.errors.fetch_add(1, Relaxed);
            return;
        };
        if let Some(i) = self.by_name.get(&*frame.session) {
            self.seats[*i].seat.handle_frame(now_us(), &frame, &mut self.scribe, out);
            return;
        }
        match &*frame.t {
            "welcome" => self.welcomed(&frame, rules),
            "ping" => {
                rules.handle_hint(frame.reconnect);
                out.push(wire::pong(frame.n));
            }
            "goaway" => {
                self.due.leave_us = rules.handle_goaway(now_us(), frame.delay_ms, &frame.ticket);
                self.note(What::Goaway, frame.code()).to = frame.delay_ms;
            }
            "error" => {
                self.live.errors.fetch_add(1, Relaxed);
            }
            _ => {}
        }
    }

    fn welcomed(&mut self, frame: &Frame<'_>, rules: &mut Rules) {
        let now = now_us();
        rules.handle_welcome(now, frame.reconnect, &frame.resume);
        if frame.dead_ms > 0 {
            self.due.dead_us = frame.dead_ms * 1_000;
            self.due.silent_us = now + self.due.dead_us;
        }
        if !std::mem::replace(&mut self.shown.0, true) {
            self.live.welcomed.fetch_add(1, Relaxed);
            self.live.welcomes.fetch_add(1, Relaxed);
        }
        self.note(What::Welcome, &frame.gateway).server_us = frame.now_us;
    }
}

/// What an attempt without a welcome was told: a word and a time, ms.
fn refusal(end: &End) -> (String, u64) {
    match end {
        End::Closed { code, reason } => match Told::parse(reason) {
            Some(told) => (told.r.to_owned(), told.ms),
            None => (code.to_string(), 0),
        },
        End::Http { retry_after_ms, .. } => (end.word(), *retry_after_ms),
        _ => (end.word(), 0),
    }
}

fn closed(frame: Option<tungstenite::protocol::CloseFrame>) -> End {
    // a close frame without a code is 1005: nobody said why
    frame.map_or(End::Closed { code: 1005, reason: String::new() }, |f| End::Closed {
        code: f.code.into(),
        reason: f.reason.to_string(),
    })
}

/// Reads on until the server's close frame: it may lie behind a pipe that is broken for writing.
async fn last_words(socket: &mut Socket) -> Option<End> {
    let reading = async {
        while let Some(Ok(message)) = socket.next().await {
            if let Message::Close(frame) = message {
                return Some(closed(frame));
            }
        }
        None
    };
    tokio::time::timeout(LAST_WORDS, reading).await.ok().flatten()
}

async fn send(socket: &mut Socket, out: &mut Vec<String>) -> Result<(), tungstenite::Error> {
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
