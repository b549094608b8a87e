//! Hello and its answer, new tokens, and what a client is told about coming back.

use holdfast_core::{
    admission::Class,
    id::Lane,
    proto::{
        client_frame as c,
        server_frame::{F, Reconnect, Welcome},
    },
};

use super::{Client, Connection};
use crate::{
    gateway::{
        admission::{Member, Resumed},
        auth::{Identity, TokenError},
        limits::Stats,
    },
    metrics::Point,
};

/// `reconnect` is told again when the spread moved by one part in so many (design 9.2).
const SPREAD_MOVED: u32 = 5;

impl Connection {
    /// The first frame.
    pub(super) fn hello(&mut self, hello: c::Hello) {
        let lane = match Lane::parse(&hello.lane) {
            Ok(lane) => lane,
            Err(e) => return self.close(4000, &format!("hello: {e}")),
        };
        let now = self.shared.clock.now();
        let identity = match self.verify(&hello.token) {
            Ok(identity) => identity,
            Err(e) => return self.refuse(&e),
        };
        if !identity.allows_origin(self.upgrade.origin.as_deref()) {
            return self.close(4007, "this token is not for pages of this origin: see its `origin` claim");
        }
        self.clocks.heard = now.mono;
        let principal = identity.principal.clone();
        // Only the first hello gets here.
        let _ = self.outbox.principal.set(principal.clone());
        self.shared.gate.counts().attempts(hello.attempt);
        let class = self.carry_over(&hello, &principal);
        let member = Member::new(&self.shared.gate, class);
        let reconnect = hello.attempt > 0;
        let told = self.reconnect(&member);
        let client = Client { identity, lane, conn_seq: hello.conn_seq, reconnect, member, told };
        self.send(F::Welcome(self.welcome(&hello, &client)));
        self.client = Some(client);
        self.ping_for_rtt(now.mono);
        self.shared.port.register(self.outbox.conn, self.outbox.clone(), principal);
    }

    /// The class and round trip of the connection before this one, if the client brought a good token of its own; it may
    /// travel in the query or in hello.
    fn carry_over(&mut self, hello: &c::Hello, principal: &str) -> Class {
        let (gate, now) = (&self.shared.gate, self.shared.clock.now());
        let by_query = || gate.resumed(now, &crate::gateway::admission::resume_of(&self.upgrade.query)?, principal);
        match gate.resumed(now, &hello.resume, principal).or_else(by_query) {
            Some(was) => {
                self.rtt.carry(was.srtt_us, was.rtt_bound_us);
                was.class
            }
            None => Class::Known,
        }
    }

    fn welcome(&self, hello: &c::Hello, client: &Client) -> Welcome {
        let (config, limits) = (&self.shared.config, &self.shared.config.limits);
        Welcome {
            conn: super::label(self.outbox.conn),
            now_us: self.shared.clock.now().wall.0,
            ping_ms: limits.ping_ms,
            dead_ms: limits.dead_ms,
            limits: Some(limits.told(self.shared.gate.settings().ops.reactions)),
            reconnect: Some(client.told),
            features: config.features.iter().filter(|f| hello.features.contains(f)).cloned().collect(),
            token_exp_us: client.identity.expires.0,
            resume: self.resume(client).into(),
            gateway: config.gateway.clone(),
        }
    }

    /// What a ping tells anew: `reconnect` when the spread moved or the class changed, `resume` when the class did.
    pub(super) fn refreshed(&mut self) -> (Option<Reconnect>, Option<Vec<u8>>) {
        let class = self.new_class();
        let Some(mut client) = self.client.take() else { return (None, None) };
        let changed = class.is_some_and(|c| c != client.member.class());
        if let Some(class) = class.filter(|_| changed) {
            client.member.set(class);
        }
        let fresh = self.reconnect(&client.member);
        let moved = fresh.spread_ms.abs_diff(client.told.spread_ms) >= (client.told.spread_ms / SPREAD_MOVED).max(1);
        if moved || changed {
            client.told = fresh;
        }
        let resume = changed.then(|| self.resume(&client));
        self.client = Some(client);
        ((moved || changed).then_some(fresh), resume)
    }

    fn reconnect(&self, member: &Member) -> Reconnect {
        let configured = self.shared.config.limits.reconnect;
        Reconnect {
            rank_ppm: member.rank_ppm(),
            spread_ms: self.shared.stats.spread_ms(configured.spread_ms),
            ..configured
        }
    }

    fn resume(&self, client: &Client) -> Vec<u8> {
        let state =
            Resumed { class: client.member.class(), srtt_us: self.rtt.srtt_us, rtt_bound_us: self.rtt.bound_us };
        self.shared.gate.resume_token(self.shared.clock.now(), &client.identity.principal, state)
    }

    /// A new token for the connection; it must keep `sub`.
    pub(super) fn auth(&mut self, token: &str) {
        let fresh = self.verify(token);
        let Some(client) = &mut self.client else { return };
        match fresh {
            Ok(fresh) if fresh.principal != client.identity.principal => {
                self.close(4002, &TokenError::OtherSub.to_string())
            }
            Ok(fresh) => client.identity = fresh,
            Err(e) => self.refuse(&e),
        }
    }

    /// Looks at a token, unless too many from there were bad: then it costs nothing.
    pub(super) fn verify(&self, token: &str) -> Result<Identity, TokenError> {
        let (gate, now, peer) = (&self.shared.gate, self.shared.clock.now(), self.outbox.peer);
        let barred = gate.barred(now, peer);
        let outcome = if barred.is_zero() {
            Identity::verify(token, &self.shared.config.keys, now.wall)
        } else {
            Err(TokenError::Barred(barred))
        };
        if let Err(e) = &outcome {
            let point = match e {
                TokenError::Barred(_) => Point::Barred,
                // Signed by the right hand, if long ago.
                TokenError::Expired => Point::TokenExpired,
                _ => {
                    gate.auth_failed(now, peer);
                    Point::TokenRefused
                }
            };
            gate.counts().count(point, self.shared.config.transport(), None);
        }
        outcome
    }

    fn refuse(&mut self, e: &TokenError) {
        Stats::add(&self.shared.stats.tokens_refused);
        let code = match e {
            TokenError::Expired => 4201,
            // Another client behind the same address may be to blame: this one is to come back.
            TokenError::Barred(_) => 4101,
            _ => 4001,
        };
        self.close(code, &e.to_string());
    }
}
