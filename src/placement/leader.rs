//! Who leads the placement service: the creator of one key under a lease of 3 s, by our own transaction; etcd's
//! `campaign()` has been seen to report leadership with no key (design 8.2).

use std::time::Duration;

use holdfast_core::proto::Leader;
use prost::Message as _;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{
    config::LEADER_TTL,
    keys,
    kv::{Compare, Kv, KvError, Op},
};

/// How often a follower looks whether the key is gone: adds at most this to a takeover.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Wait after a failed renewal.
const RETRY: Duration = Duration::from_millis(200);

/// A leader's term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    /// `create_revision` of the leader's key: the fencing token of every transaction.
    pub(crate) create_rev: i64,
    lease: i64,
}

/// What this process is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Role {
    /// Somebody else leads, or nobody yet.
    Follower(Option<Leader>),
    /// This process leads.
    Leader(Term),
}

impl Term {
    /// The condition that fences every write of this term.
    pub(crate) fn fence(&self) -> Compare {
        Compare::CreateRev(keys::LEADER.into(), self.create_rev)
    }
}

/// Stands for election for ever; ends, after giving up its lease, when `stop` turns true.
pub(crate) async fn campaign(kv: Kv, me: Leader, role: watch::Sender<Role>, mut stop: watch::Receiver<bool>) {
    loop {
        match elect(&kv, &me).await {
            Ok((Role::Leader(term), since)) => {
                tracing::info!(id = me.id, term = term.create_rev, "leading placement");
                role.send_replace(Role::Leader(term));
                let stopped = lead(&kv, term, since + LEADER_TTL, &mut stop).await;
                role.send_replace(Role::Follower(None));
                if stopped {
                    if let Err(e) = kv.revoke(term.lease).await {
                        tracing::warn!(error = %e, "the leader's lease will run out");
                    }
                    return;
                }
                tracing::warn!(id = me.id, term = term.create_rev, "no longer leading placement");
            }
            Ok((follower, _)) => {
                role.send_if_modified(|r| std::mem::replace(r, follower.clone()) != follower);
            }
            Err(e) => tracing::debug!(error = %e, "the election could not be held"),
        }
        tokio::select! {
            () = sleep(LOOK_EVERY) => {}
            _ = stop.wait_for(|s| *s) => return,
        }
    }
}

/// One try; the time is from when the lease counts at the latest.
async fn elect(kv: &Kv, me: &Leader) -> Result<(Role, Instant), KvError> {
    let since = Instant::now();
    if let (Some(item), _) = kv.get(keys::LEADER.as_bytes()).await? {
        let leader = Leader::decode(item.value).unwrap_or_default();
        if leader.boot == me.boot {
            // a creation that timed out but was applied
            kv.keep_alive(item.lease).await?;
            return Ok((Role::Leader(Term { create_rev: item.create_rev, lease: item.lease }), since));
        }
        return Ok((Role::Follower(Some(leader)), since));
    }
    let lease = kv.grant(LEADER_TTL).await?;
    let put = Op::Put { key: keys::LEADER.into(), value: me.encode_to_vec().into(), lease };
    let reply = kv.txn(vec![Compare::CreateRev(keys::LEADER.into(), 0)], vec![put]).await?;
    if reply.succeeded {
        return Ok((Role::Leader(Term { create_rev: reply.revision, lease }), since));
    }
    kv.revoke(lease).await?;
    Ok((Role::Follower(None), since))
}

/// Renews until the term ends; `true` = by our own wish. By the own clock the term ends with the TTL, whatever etcd says.
async fn lead(kv: &Kv, term: Term, mut deadline: Instant, stop: &mut watch::Receiver<bool>) -> bool {
    let mut renew = Instant::now() + LEADER_TTL / 3;
    loop {
        tokio::select! {
            () = sleep_until(renew) => {}
            _ = stop.wait_for(|s| *s) => return true,
        }
        let asked = Instant::now();
        match timeout_at(deadline, kv.keep_alive(term.lease)).await {
            Ok(Ok(left)) if left.is_zero() => return false,
            Ok(Ok(_)) => (deadline, renew) = (asked + LEADER_TTL, asked + LEADER_TTL / 3),
            Ok(Err(e)) => {
                tracing::warn!(error = %e, "the leader's lease was not renewed");
                renew = Instant::now() + RETRY;
            }
            Err(_) => return false,
        }
        if Instant::now() >= deadline {
            return false;
        }
    }
}
