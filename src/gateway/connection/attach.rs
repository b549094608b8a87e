//! Attaches of one connection: what its token allows, its turn at the owner, and what it makes of the client's class.

use holdfast_core::{
    admission::Class,
    id::{Lane, SessionId},
    proto::{
        Code, client_frame as c,
        server_frame::{Detached, F},
    },
    time::Mono,
};

use super::Connection;
use crate::{
    gateway::{
        admission::{AttachTurn, UnderWay, Waiting},
        port::ClientSpec,
    },
    metrics::Point,
};

/// Told with an attach above the session limit: something must be detached first.
const SESSIONS_RETRY_MS: u32 = 1000;

/// What a connection knows of its attaches. Each list has at most as many entries as it may have sessions.
#[derive(Debug, Default)]
pub(super) struct Attaching {
    /// Not sent yet: their turn at the owner is to come.
    waiting: Vec<(Waiting, SessionId, ClientSpec)>,
    /// When the next of them is to be looked at.
    next: Option<Mono>,
    /// Sent, not answered.
    under_way: Vec<(SessionId, UnderWay)>,
    /// Sessions it takes part in.
    seats: Vec<SessionId>,
    /// They changed since the class was last found out.
    changed: bool,
}

impl Attaching {
    /// When something is to be done.
    pub(super) fn next(&self) -> Option<Mono> {
        self.next
    }

    /// A frame to the client may be the answer to an attach.
    pub(super) fn heard(&mut self, frame: &F) {
        let session = match frame {
            F::Attached(f) => &f.session,
            F::Detached(f) => &f.session,
            // It says that the session moves: the owner it waits for is none.
            F::Status(f) => &f.session,
            _ => return,
        };
        self.under_way.retain(|(s, _)| s.as_str() != session);
    }

    fn forget(&mut self, session: &str) {
        self.waiting.retain(|(_, s, _)| s.as_str() != session);
        self.under_way.retain(|(s, _)| s.as_str() != session);
        self.seats.retain(|s| s.as_str() != session);
        self.changed = true;
    }
}

impl Connection {
    /// Attaches when it is this owner's turn, or says why not.
    pub(super) fn attach(&mut self, attach: c::Attach) {
        let n = attach.n;
        match self.admit(&attach) {
            Ok((session, client)) => {
                self.attaching.forget(session.as_str());
                if client.role == 1 {
                    self.attaching.seats.push(session.clone());
                }
                let owner = self.shared.port.place(&session).map(|(node, _)| node);
                match self.shared.gate.attach(self.shared.clock.now(), owner.as_deref().unwrap_or_default()) {
                    Ok(waiting) => {
                        self.attaching.waiting.push((waiting, session, client));
                        self.look_at_attaches(true);
                    }
                    Err(wait) => self.attach_refused(&session, n, wait),
                }
            }
            Err(code) => {
                let retry_after_ms = if code == Code::Overloaded { SESSIONS_RETRY_MS } else { 0 };
                self.detached(attach.session, n, code, retry_after_ms);
            }
        }
    }

    /// The client leaves a session.
    pub(super) fn detach(&mut self, session: &SessionId) {
        self.attaching.forget(session.as_str());
        self.outbox.lock().queue.leave(session.as_str());
        self.shared.port.detach(session, self.outbox.conn, 1);
    }

    /// Sends the attaches whose turn has come, in order. `first`: the newest has just been queued.
    pub(super) fn look_at_attaches(&mut self, first: bool) {
        if self.attaching.waiting.is_empty() {
            return;
        }
        let now = self.shared.clock.now().mono;
        let unanswered_max = self.shared.gate.settings().attach_inflight;
        self.attaching.next = None;
        for (waiting, session, client) in std::mem::take(&mut self.attaching.waiting) {
            match waiting.look(now, unanswered_max) {
                AttachTurn::Go(under_way) => {
                    self.attaching.under_way.push((session.clone(), under_way));
                    self.shared.port.attach(&session, client);
                }
                AttachTurn::At(at) => {
                    if first {
                        self.count(Point::AttachWaited);
                    }
                    self.attaching.next = Some(self.attaching.next.map_or(at, |next| next.min(at)));
                    self.attaching.waiting.push((waiting, session, client));
                }
                AttachTurn::TooLate(wait) => self.attach_refused(&session, client.n, wait),
            }
        }
    }

    /// The class of what the client takes part in, if that changed: the best of its sessions, `Known` if it has none.
    pub(super) fn new_class(&mut self) -> Option<Class> {
        if !std::mem::take(&mut self.attaching.changed) {
            return None;
        }
        let mut class = Class::Known;
        let state = self.outbox.lock();
        self.attaching.seats.retain(|seat| state.queue.sessions().any(|s| s == seat));
        drop(state);
        for seat in &self.attaching.seats {
            match self.shared.port.place(seat) {
                Some((_, kind)) => class = class.min(class_of(&kind)),
                // Not in the cache yet: look again with the next ping.
                None => self.attaching.changed = true,
            }
        }
        Some(class)
    }

    fn attach_refused(&mut self, session: &SessionId, n: u32, wait: std::time::Duration) {
        self.count(Point::AttachRefused);
        self.attaching.forget(session.as_str());
        self.outbox.lock().queue.leave(session.as_str());
        let retry_after_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).max(1);
        self.detached(session.to_string(), n, Code::Overloaded, retry_after_ms);
    }

    fn detached(&self, session: String, n: u32, code: Code, retry_after_ms: u32) {
        self.send(F::Detached(Detached { session, code: code.into(), retry_after_ms, n }));
    }

    fn count(&self, point: Point) {
        let class = self.client.as_ref().map(|c| c.member.class());
        self.shared.gate.counts().count(point, self.shared.config.transport(), class);
    }

    fn admit(&mut self, attach: &c::Attach) -> Result<(SessionId, ClientSpec), Code> {
        let session = SessionId::parse(&attach.session).map_err(|_| Code::BadFrame)?;
        let client = self.client.as_ref().ok_or(Code::BadFrame)?;
        let lane =
            if attach.lane.is_empty() { client.lane } else { Lane::parse(&attach.lane).map_err(|_| Code::BadFrame)? };
        let grant = if attach.token.is_empty() {
            client.identity.grant(session.as_str())
        } else {
            let own = self.verify(&attach.token).map_err(|_| Code::Unauthenticated)?;
            if own.principal != client.identity.principal || !own.allows_origin(self.upgrade.origin.as_deref()) {
                return Err(Code::Forbidden);
            }
            own.grant(session.as_str())
        };
        let grant = grant.ok_or(Code::Forbidden)?;
        let role = match (attach.role, grant.spectator_only) {
            (0 | 1, false) => 1,
            (0 | 2, true) | (2, false) => 2,
            (1, true) => return Err(Code::Forbidden),
            _ => return Err(Code::BadFrame),
        };
        let other = Some(lane).filter(|l| *l != client.lane);
        if !self.outbox.lock().queue.enter(&session, attach.n, other) {
            return Err(Code::Overloaded);
        }
        let seen = attach.last_seen.unwrap_or_default();
        let spec = ClientSpec {
            conn: self.outbox.conn,
            principal: client.identity.principal.clone(),
            participant: if role == 1 { grant.seat } else { "".into() },
            role,
            lane,
            conn_seq: client.conn_seq,
            n: attach.n,
            seen,
            reconnect: client.reconnect || seen.ver > 0,
        };
        Ok((session, spec))
    }
}

/// The class of those who take part in a session of that kind; parameters after `:` are ignored.
fn class_of(kind: &str) -> Class {
    match kind.split(':').next() {
        Some("game") => Class::Game,
        Some("meeting") => Class::Meeting,
        _ => Class::Document,
    }
}
