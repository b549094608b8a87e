//! Everything a connection does because time has passed, on one timer.

use std::{future::Future as _, task::Context, time::Duration};

use holdfast_core::{
    proto::server_frame::{F, Ping},
    time::Mono,
};

use super::{Connection, Over};
use crate::gateway::limits::Limits;

/// First byte of a WebSocket ping.
const PING: u8 = 0x89;

/// When what is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    /// The upgrade was done.
    pub(super) opened: Mono,
    /// The newest frame of the client.
    pub(super) heard: Mono,
    /// The next `ping` frame.
    pub(super) ping: Mono,
    /// The next WebSocket ping for the round trip.
    pub(super) rtt: Mono,
    /// Number of the newest `ping` frame.
    pub(super) n: u64,
}

impl Clocks {
    pub(super) fn new(now: Mono, limits: &Limits) -> Self {
        // A random phase: 50,000 clients that came at once must not be pinged at once for ever.
        let phase = rand::random_range(0..=u64::from(limits.ping_ms / 4));
        let ping = now.after(Duration::from_millis(u64::from(limits.ping_ms) - phase));
        Self { opened: now, heard: now, ping, rtt: now, n: 0 }
    }
}

impl Connection {
    pub(super) fn poll_timers(&mut self, cx: &mut Context<'_>) -> Result<(), Over> {
        loop {
            let now = self.shared.clock.now().mono;
            self.due(now)?;
            let at = self.shared.clock.instant(self.next()).into();
            if self.timer.deadline() != at {
                self.timer.as_mut().reset(at);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
        }
    }

    fn due(&mut self, now: Mono) -> Result<(), Over> {
        if let Some(closing) = &self.closing {
            return if closing.deadline <= now { Err(Over) } else { Ok(()) };
        }
        if self.client.is_none() {
            if self.hello_by() <= now {
                let seconds = self.shared.config.limits.hello_timeout.as_secs();
                self.close(4105, &format!("no hello within {seconds} s of the upgrade"));
            }
            return Ok(());
        }
        if self.token_by() <= now {
            self.close(4201, "token expired: send `auth` with a new one before exp, or reconnect with it");
        } else if self.dead_by() <= now {
            self.close(
                4103,
                &format!("nothing heard for {} ms: answer each ping with a pong", self.shared.config.limits.dead_ms),
            );
        } else if self.slow_by().is_some_and(|at| at <= now) {
            self.outbox.lock().queue.clear();
            self.reason = 4;
            self.close(
                4102,
                "too slow: the downstream queue stayed over its limit; read faster or attach to fewer sessions",
            );
        }
        if self.attaching.next().is_some_and(|at| at <= now) {
            self.look_at_attaches(false);
        }
        if self.closing.is_none() && self.clocks.ping <= now {
            self.ping(now);
            if self.clocks.rtt <= now {
                self.ping_for_rtt(now);
            }
        }
        Ok(())
    }

    fn next(&self) -> Mono {
        match (&self.closing, &self.client) {
            (Some(closing), _) => closing.deadline,
            (None, None) => self.hello_by(),
            (None, Some(_)) => {
                let soonest = self.clocks.ping.min(self.token_by()).min(self.dead_by());
                let soonest = self.attaching.next().map_or(soonest, |at| at.min(soonest));
                self.slow_by().map_or(soonest, |at| at.min(soonest))
            }
        }
    }

    /// A sign of life; with it what the client should know about coming back, if that changed.
    fn ping(&mut self, now: Mono) {
        self.clocks.n += 1;
        self.clocks.ping = now.after(ms(self.shared.config.limits.ping_ms));
        let (reconnect, resume) = self.refreshed();
        self.send(F::Ping(Ping { n: self.clocks.n, reconnect, resume: resume.unwrap_or_default().into() }));
    }

    /// A WebSocket ping with a random nonce in the same flush as what is queued (design 5.3).
    pub(super) fn ping_for_rtt(&mut self, now: Mono) {
        let nonce: u64 = rand::random();
        if self.rtt.start(now, nonce) {
            let mut frame = [PING, 8, 0, 0, 0, 0, 0, 0, 0, 0];
            frame[2..].copy_from_slice(&nonce.to_be_bytes());
            self.socket.get_mut().push(&frame);
        }
        self.clocks.rtt = now.after(ms(self.shared.config.limits.rtt_ping_ms));
    }

    fn hello_by(&self) -> Mono {
        self.clocks.opened.after(self.shared.config.limits.hello_timeout)
    }

    fn dead_by(&self) -> Mono {
        self.clocks.heard.after(ms(self.shared.config.limits.dead_ms))
    }

    fn slow_by(&self) -> Option<Mono> {
        self.outbox.lock().queue.slow_at()
    }

    /// `exp` and its grace on the monotonic clock.
    fn token_by(&self) -> Mono {
        let now = self.shared.clock.now();
        let expires = self.client.as_ref().map_or(0, |c| c.identity.expires.0);
        let anchor = now.wall.0.saturating_sub(now.mono.0);
        Mono(expires.saturating_sub(anchor)).after(self.shared.config.limits.token_grace)
    }
}

fn ms(n: u32) -> Duration {
    Duration::from_millis(u64::from(n))
}
