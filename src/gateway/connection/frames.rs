//! Messages of a client, frame by frame.

use std::time::Duration;

use bytes::Bytes;
use holdfast_core::{
    id::{Lane, SessionId},
    proto::{
        Applied, Code, client_frame as c,
        server_frame::{F, Nack, Pong},
    },
};
use tokio_tungstenite::tungstenite::Message;

use super::Connection;
use crate::{
    gateway::limits::Stats,
    transport::{Decoded, Form, json, proto},
};

/// Mistakes are counted within this.
const MISTAKES_WINDOW: Duration = Duration::from_secs(60);

impl Connection {
    pub(super) fn message(&mut self, message: Message) {
        let max = self.shared.config.limits.frame_bytes_max;
        match (self.upgrade.form, message) {
            (Form::Json, Message::Text(text)) => json::decode(&text, max, |d| self.decoded(d)),
            (Form::Proto, Message::Binary(bytes)) => proto::decode(&bytes, max, |d| self.decoded(d)),
            (_, Message::Pong(nonce)) => {
                let at = self.socket.get_ref().last_read().mono;
                self.rtt.pong(at, &nonce);
            }
            (_, Message::Close(frame)) => {
                let code = frame.map(|f| u16::from(f.code));
                self.reason = if code == Some(1000) { 1 } else { 2 };
                self.closed_by_client(code);
            }
            (Form::Json, Message::Binary(_)) => self.bad("binary message on holdfast.v1.json, which is text"),
            (Form::Proto, Message::Text(_)) => self.bad("text message on holdfast.v1.proto, which is binary"),
            (_, Message::Ping(_) | Message::Frame(_)) => {}
        }
    }

    fn decoded(&mut self, decoded: Decoded) {
        if self.closing.is_some() {
            return;
        }
        match decoded {
            Decoded::Frame(frame) => {
                self.clocks.heard = self.socket.get_ref().last_read().mono;
                self.frame(frame);
            }
            Decoded::Unknown(name) if !self.unknown_told => {
                self.unknown_told = true;
                self.error(format!("unknown frame type {name:?}: ignored, like all later ones"));
            }
            Decoded::Unknown(_) => {}
            Decoded::Bad(detail) => self.bad(&detail),
            Decoded::TooLarge(bytes) => {
                let max = self.shared.config.limits.frame_bytes_max;
                self.close(4004, &format!("frame of {bytes} bytes; {max} are allowed"));
            }
        }
    }

    fn bad(&mut self, detail: &str) {
        Stats::add(&self.shared.stats.bad_frames);
        let now = self.shared.clock.now().mono;
        if now.since(self.mistakes.0) >= MISTAKES_WINDOW {
            self.mistakes = (now, 0);
        }
        self.mistakes.1 += 1;
        self.error(detail.to_owned());
        if self.mistakes.1 >= self.shared.config.limits.bad_frames_per_min {
            self.close(4000, &format!("{} bad frames within a minute; the last: {detail}", self.mistakes.1));
        }
    }

    fn frame(&mut self, frame: c::F) {
        if self.client.is_none() && !matches!(frame, c::F::Hello(_) | c::F::Ping(_) | c::F::Pong(_) | c::F::Bye(_)) {
            return self.close(4000, "the first frame must be hello");
        }
        match frame {
            c::F::Hello(_) if self.client.is_some() => self.close(4000, "a second hello: one per connection"),
            c::F::Hello(hello) => self.hello(hello),
            c::F::Attach(attach) => self.attach(attach),
            c::F::Detach(detach) => {
                if let Some(session) = self.session(&detach.session) {
                    self.detach(&session);
                }
            }
            c::F::Op(op) => self.op(op),
            c::F::Reaction(reaction) => {
                if let Some(session) = self.session(&reaction.session)
                    && reaction.payload.len() <= self.shared.config.limits.payload_bytes_max
                {
                    self.shared.port.reaction(&session, self.outbox.conn, reaction);
                }
            }
            c::F::Resync(resync) => {
                if let Some(session) = self.session(&resync.session) {
                    self.shared.port.resync(&session, self.outbox.conn, resync);
                }
            }
            c::F::Ping(ping) => self.send(F::Pong(Pong { n: ping.n, now_us: self.shared.clock.now().wall.0 })),
            // Any frame is a sign of life.
            c::F::Pong(_) => {}
            c::F::Auth(auth) => self.auth(&auth.token),
            c::F::Bye(_) => {
                self.reason = 1;
                self.close(1000, "bye");
            }
        }
    }

    fn op(&mut self, mut op: c::Op) {
        let Some(session) = self.session(&op.session) else { return };
        if let Err(detail) = self.own_lane(&mut op) {
            return if detail.1 { self.close(4000, &detail.0) } else { self.bad(&detail.0) };
        }
        let max = self.shared.config.limits.payload_bytes_max;
        if op.payload.len() > max {
            let detail = format!("payload of {} bytes; {max} are allowed", op.payload.len());
            return self.send(F::Nack(Nack {
                session: op.session,
                op: op.op,
                code: Code::TooLarge.into(),
                applied: Applied::No.into(),
                attempt: op.attempt,
                detail,
                ..Nack::default()
            }));
        }
        let arrival = self.arrival();
        self.shared.port.op(&session, self.outbox.conn, op, arrival);
    }

    /// Leaves `op.lane` empty if it is the attachment's, else names it. The error says whether it ends the connection.
    fn own_lane(&self, op: &mut c::Op) -> Result<(), (String, bool)> {
        let Some(client) = &self.client else { return Ok(()) };
        let Some(id) = &mut op.op else { return Ok(()) };
        let meant = if id.lane.is_empty() {
            client.lane
        } else {
            let reserved = id.lane.first() == Some(&b'!');
            Lane::parse(&id.lane).map_err(|e| (format!("op: {e}"), reserved))?
        };
        let attached = self.outbox.lock().queue.lane(&op.session).unwrap_or(client.lane);
        id.lane = if meant == attached { Bytes::new() } else { Bytes::copy_from_slice(meant.as_bytes()) };
        Ok(())
    }

    fn session(&mut self, name: &str) -> Option<SessionId> {
        SessionId::parse(name).map_err(|e| self.bad(&e.to_string())).ok()
    }
}
