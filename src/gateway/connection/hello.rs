//! Hello and its answer, new tokens, and attaches: who the client is and where it may go.

use holdfast_core::{
    id::{Lane, SessionId},
    proto::{
        Code, client_frame as c,
        server_frame::{Detached, F, Reconnect, Welcome},
    },
};

use super::{Client, Connection};
use crate::gateway::{
    auth::{Identity, TokenError},
    limits::Stats,
    port::ClientSpec,
};

/// Ranks are parts of a million.
const RANK_PPM_MAX: u32 = 1_000_000;
/// Told with an attach above the session limit: something must be detached first.
const SESSIONS_RETRY_MS: u32 = 1000;
/// First byte of `welcome.resume`: nothing is carried yet, the admission point will seal its state here.
const RESUME_VERSION: u8 = 1;

impl Connection {
    /// The first frame.
    pub(super) fn hello(&mut self, hello: c::Hello) {
        let lane = match Lane::parse(&hello.lane) {
            Ok(lane) => lane,
            Err(e) => return self.close(4000, &format!("hello: {e}")),
        };
        let now = self.shared.clock.now();
        let identity = match Identity::verify(&hello.token, &self.shared.config.keys, now.wall) {
            Ok(identity) => identity,
            Err(e) => return self.refuse(&e),
        };
        if !identity.allows_origin(self.upgrade.origin.as_deref()) {
            return self.close(4007, "this token is not for pages of this origin: see its `origin` claim");
        }
        self.clocks.heard = now.mono;
        self.ping_for_rtt(now.mono);
        let principal = identity.principal.clone();
        // Only the first hello gets here.
        let _ = self.outbox.principal.set(principal.clone());
        self.send(F::Welcome(self.welcome(&hello, &identity)));
        let reconnect = hello.attempt > 0;
        self.client = Some(Client { identity, lane, conn_seq: hello.conn_seq, reconnect });
        self.shared.port.register(self.outbox.conn, self.outbox.clone(), principal);
    }

    fn welcome(&self, hello: &c::Hello, identity: &Identity) -> Welcome {
        let (config, limits) = (&self.shared.config, &self.shared.config.limits);
        let mut resume = vec![RESUME_VERSION];
        resume.extend(rand::random::<[u8; 16]>());
        Welcome {
            conn: super::label(self.outbox.conn),
            now_us: self.shared.clock.now().wall.0,
            ping_ms: limits.ping_ms,
            dead_ms: limits.dead_ms,
            limits: Some(limits.told()),
            reconnect: Some(Reconnect {
                rank_ppm: rand::random_range(0..RANK_PPM_MAX),
                spread_ms: self.shared.stats.spread_ms(limits.reconnect.spread_ms),
                ..limits.reconnect
            }),
            features: config.features.iter().filter(|f| hello.features.contains(f)).cloned().collect(),
            token_exp_us: identity.expires.0,
            resume: resume.into(),
            gateway: config.gateway.clone(),
        }
    }

    /// A new token for the connection; it must keep `sub`.
    pub(super) fn auth(&mut self, token: &str) {
        let now = self.shared.clock.now().wall;
        let fresh = Identity::verify(token, &self.shared.config.keys, now);
        let Some(client) = &mut self.client else { return };
        match fresh {
            Ok(fresh) if fresh.principal != client.identity.principal => {
                self.close(4002, &TokenError::OtherSub.to_string())
            }
            Ok(fresh) => client.identity = fresh,
            Err(e) => self.refuse(&e),
        }
    }

    fn refuse(&mut self, e: &TokenError) {
        Stats::add(&self.shared.stats.tokens_refused);
        self.close(if *e == TokenError::Expired { 4201 } else { 4001 }, &e.to_string());
    }

    /// Attaches, or says why not.
    pub(super) fn attach(&mut self, attach: c::Attach) {
        match self.admit(&attach) {
            Ok((session, client)) => self.shared.port.attach(&session, client),
            Err(code) => {
                let retry_after_ms = if code == Code::Overloaded { SESSIONS_RETRY_MS } else { 0 };
                self.send(F::Detached(Detached {
                    session: attach.session,
                    code: code.into(),
                    retry_after_ms,
                    n: attach.n,
                }));
            }
        }
    }

    fn admit(&mut self, attach: &c::Attach) -> Result<(SessionId, ClientSpec), Code> {
        let session = SessionId::parse(&attach.session).map_err(|_| Code::BadFrame)?;
        let client = self.client.as_ref().ok_or(Code::BadFrame)?;
        let lane =
            if attach.lane.is_empty() { client.lane } else { Lane::parse(&attach.lane).map_err(|_| Code::BadFrame)? };
        let grant = if attach.token.is_empty() {
            client.identity.grant(session.as_str())
        } else {
            let own = Identity::verify(&attach.token, &self.shared.config.keys, self.shared.clock.now().wall)
                .map_err(|_| Code::Unauthenticated)?;
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
