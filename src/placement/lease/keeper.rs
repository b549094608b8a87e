//! The task that keeps one registration alive.

use std::time::Duration;

use holdfast_core::id::Boot;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use super::{
    super::kv::{Compare, Kv, KvError, Op},
    Held, Info,
};

/// Failed renewals in a row after which a lease found gone was lost to an outage of the directory, not of this process. One
/// failure proves nothing: a process that was stopped finds the answer to its last request timed out.
const OUTAGE_ERRORS: u32 = 2;
/// A registration that keeps failing is logged the first time and then this often.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Wait after a failed registration or renewal.
const RETRY: Duration = Duration::from_millis(250);

/// See the module.
pub(super) struct Keeper<T: Info> {
    pub(super) kv: Kv,
    pub(super) name: String,
    /// TTL and renewal interval.
    pub(super) times: (Duration, Duration),
    pub(super) info: watch::Receiver<T>,
    pub(super) state: watch::Sender<Held>,
    pub(super) stop: watch::Receiver<bool>,
}

/// What a keeper does next.
enum Turn {
    Stop,
    Lapse,
    Renew,
    Publish,
}

/// Why a life ended.
enum End {
    Stopped,
    LeaseGone,
    /// The lease ran out while the directory did not answer: this life goes on under another lease, so that placement, which
    /// holds its re-homing after a silence (design 8.2), finds the same boot and moves nothing.
    Outage,
}

impl<T: Info> Keeper<T> {
    /// Until stopped.
    pub(super) async fn run(mut self) {
        let mut first = true;
        loop {
            let Some((lease, deadline)) = self.register_until_done(first).await else { return };
            first = false;
            tracing::info!(name = self.name, boot = %self.boot(), lease, "registered");
            match self.keep(lease, deadline).await {
                End::Stopped => {
                    self.state.send_modify(|s| s.held = false);
                    if let Err(e) = self.kv.revoke(lease).await {
                        tracing::warn!(name = self.name, error = %e, "the lease could not be revoked and will run out");
                    }
                    return;
                }
                End::Outage => {
                    self.state.send_modify(|s| s.held = false);
                    tracing::warn!(name = self.name, boot = %self.boot(), "the lease ran out in a directory outage");
                }
                End::LeaseGone => {
                    let old = self.boot();
                    self.state.send_replace(Held { held: false, boot: Boot(rand::random::<u64>().max(1)), lease: 0 });
                    tracing::warn!(name = self.name, %old, new = %self.boot(), "the lease is gone: registering anew");
                }
            }
        }
    }

    fn boot(&self) -> Boot {
        self.state.borrow().boot
    }

    /// Tries until it works; `None` = stopped.
    async fn register_until_done(&mut self, first: bool) -> Option<(i64, Instant)> {
        let (mut failed, mut said) = (0_u32, None::<Instant>);
        loop {
            let since = Instant::now();
            match self.register(first).await {
                Ok(lease) => {
                    self.state.send_modify(|s| (s.held, s.lease) = (true, lease));
                    return Some((lease, since + self.times.0));
                }
                Err(e) => {
                    failed += 1;
                    if said.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
                        said = Some(Instant::now());
                        tracing::warn!(name = self.name, error = %e, failed, "registration failed");
                    }
                }
            }
            tokio::select! {
                () = sleep(RETRY) => {}
                _ = self.stop.wait_for(|s| *s) => return None,
            }
        }
    }

    async fn register(&mut self, first: bool) -> Result<i64, KvError> {
        let key = T::key(&self.name);
        let (there, _) = self.kv.get(&key).await?;
        // a process that lost its lease does not push out the one that took its name meanwhile
        if !first && let Some(item) = &there {
            let other = T::decode(item.value.clone()).is_ok_and(|i| i.boot() != self.boot());
            if other {
                return Err(KvError::Unavailable("another process is registered under this name".into()));
            }
        }
        let lease = self.kv.grant(self.times.0).await?;
        let value = self.value(lease);
        let guard = Compare::ModRev(key.clone(), there.map_or(0, |i| i.mod_rev));
        let reply = self.kv.txn(vec![guard], vec![Op::Put { key, value, lease }]).await;
        match reply {
            Ok(r) if r.succeeded => Ok(lease),
            Ok(_) => Err(KvError::Unavailable("somebody registered at the same time".into())),
            Err(e) => Err(e),
        }
    }

    fn value(&mut self, lease: i64) -> bytes::Bytes {
        let mut info = self.info.borrow_and_update().clone();
        info.set_life(self.boot(), lease);
        info.encode_to_vec().into()
    }

    /// Keeps one life alive.
    async fn keep(&mut self, lease: i64, mut deadline: Instant) -> End {
        let mut renew = Instant::now() + self.times.1;
        let mut errors = 0;
        let gone = |errors| if errors >= OUTAGE_ERRORS { End::Outage } else { End::LeaseGone };
        loop {
            let held = self.state.borrow().held;
            let turn = tokio::select! {
                biased;
                _ = self.stop.wait_for(|s| *s) => Turn::Stop,
                () = sleep_until(deadline), if held => Turn::Lapse,
                () = sleep_until(renew) => Turn::Renew,
                changed = self.info.changed() => if changed.is_ok() { Turn::Publish } else { Turn::Stop },
            };
            match turn {
                Turn::Stop => return End::Stopped,
                Turn::Lapse => self.lapse(),
                Turn::Publish => {
                    if self.publish(lease).await == Err(KvError::LeaseGone) {
                        return gone(errors);
                    }
                }
                Turn::Renew => {
                    let asked = Instant::now();
                    match self.renew(lease, deadline).await {
                        Ok(left) if left.is_zero() => return gone(errors),
                        Ok(_) => {
                            errors = 0;
                            (deadline, renew) = (asked + self.times.0, asked + self.times.1);
                            self.state.send_if_modified(|s| !std::mem::replace(&mut s.held, true));
                        }
                        Err(e) => {
                            tracing::warn!(name = self.name, error = %e, "the lease was not renewed");
                            errors += 1;
                            renew = Instant::now() + RETRY;
                        }
                    }
                }
            }
        }
    }

    fn lapse(&self) {
        self.state.send_modify(|s| s.held = false);
        tracing::warn!(name = self.name, boot = %self.boot(), "past the lease's TTL by the own clock");
    }

    /// Renews; notices the deadline also while it waits.
    async fn renew(&self, lease: i64, deadline: Instant) -> Result<Duration, KvError> {
        let renewal = self.kv.keep_alive(lease);
        tokio::pin!(renewal);
        let held = self.state.borrow().held;
        tokio::select! {
            left = &mut renewal => return left,
            () = sleep_until(deadline), if held => self.lapse(),
        }
        renewal.await
    }

    /// Writes changed information; an error other than a lost lease is tried again by the next change or renewal.
    async fn publish(&mut self, lease: i64) -> Result<(), KvError> {
        let value = self.value(lease);
        let result = self.kv.txn(vec![], vec![Op::Put { key: T::key(&self.name), value, lease }]).await;
        match result {
            Ok(_) => Ok(()),
            Err(e) => {
                tracing::warn!(name = self.name, error = %e, "the registration was not updated");
                self.info.mark_changed();
                sleep(RETRY).await;
                Err(e)
            }
        }
    }
}
