//! `crash --held N`: how long re-homing takes from the directory's commit until every held op has been written again,
//! against a bare etcd watcher that sees the same events in the same run.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::crash::{self, Fault, Moved};
use super::load::Load;
use crate::args::{Run, Switch};
use crate::dump::Record;
use crate::local::metrics::{Buckets, total};
use crate::local::{Cluster, bare::Bare, http};
use crate::report::Report;
use crate::stats::Op;

/// Ops may take this long to arrive at the gateways; the victim's lease (3 s or more) goes on meanwhile.
const ARRIVE: Duration = Duration::from_millis(2_500);
/// The last resend may take this many times what the bare watcher needed.
const RATIO: f64 = 2.0;

/// What was noted while the ops were parked.
pub struct Held {
    bare: Bare,
    wanted: usize,
    /// Held ops at the gateways when the victim was killed.
    parked: f64,
    /// When the last resend was handed to a link, by the gateways; filled in when the load has ended.
    pub last_resend_us: u64,
    /// Resends after the move, and the slowest bucket's bound, seconds.
    pub resends: (f64, f64),
}

/// What `--held` implies.
pub fn usual(mut run: Run) -> Run {
    if let Some(held) = run.held {
        run.victim_sessions.get_or_insert(held);
        run.fast_path = Switch::Off;
    }
    run
}

/// Sends one op in each of the sessions of an owner that stands still, and waits until the gateways hold them.
pub async fn park(load: &Load, cluster: &Cluster, of: (&[Arc<str>], usize)) -> anyhow::Result<Held> {
    let (sessions, wanted) = of;
    anyhow::ensure!(sessions.len() >= wanted, "the victim has {} sessions, not {wanted}", sessions.len());
    let bare = Bare::start(&cluster.directory_url).await?;
    load.park(sessions);
    let until = tokio::time::Instant::now() + ARRIVE;
    let mut parked = 0.0;
    while parked < wanted as f64 && tokio::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(20)).await;
        parked = sum(&metrics(cluster).await, "holdfast_held_ops");
    }
    println!("{parked} ops held");
    Ok(Held { bare, wanted, parked, last_resend_us: 0, resends: (0.0, 0.0) })
}

impl Held {
    /// Reads the gateways' own word on the resends, when they are over.
    pub async fn read(&mut self, cluster: &Cluster) {
        let texts = metrics(cluster).await;
        let last = texts.iter().filter_map(|t| total(t, "holdfast_last_resend_timestamp_seconds"));
        self.last_resend_us = (last.fold(0.0, f64::max) * 1e6) as u64;
        let count = sum(&texts, "holdfast_resend_after_move_seconds_count");
        let slowest = Buckets::read(&texts, "holdfast_resend_after_move_seconds").quantile(1.0);
        self.resends = (count, slowest.unwrap_or(0.0));
    }
}

async fn metrics(cluster: &Cluster) -> Vec<String> {
    let mut texts = Vec::new();
    for gateway in &cluster.gateways {
        texts.extend(http::get(&gateway.admin(), "/metrics").await.map(|(_, text)| text));
    }
    texts
}

fn sum(texts: &[String], name: &str) -> f64 {
    texts.iter().filter_map(|t| total(t, name)).sum()
}

pub fn judge(load: (&Load, &[Op]), of: (&Fault, &Held), by: (&Moved, &Record), report: &mut Report) {
    let ((load, ops), (fault, held), (moved, record)) = (load, of, by);
    let open = ops.iter().filter(|o| o.sent_us < fault.at_us && o.echo.is_none_or(|e| e.0 > fault.at_us));
    let waiting: HashSet<&str> = open.map(|o| &*o.session).filter(|s| moved.contains_key(*s)).collect();
    let decided = crash::decided(load, fault);
    let seen = held.bare.seen();
    let bare: Vec<u64> = seen.iter().filter(|(s, _)| moved.contains_key(&**s)).map(|(_, t)| *t).collect();
    let (Some(from), Some(first), Some(last)) = (decided, bare.iter().min(), bare.iter().max()) else {
        report.at_least("moves seen by the bare watcher", 0.0, moved.len() as f64);
        return;
    };
    let ms = |at: u64| at.saturating_sub(from) as f64 / 1e3;
    let claims = moved.keys().filter_map(|s| record.get(&**s)).map(|r| r.header.claimed_at_us);
    let (watcher, resend, claim) = (ms(*last), ms(held.last_resend_us), ms(claims.max().unwrap_or(0)));
    let ratio = if watcher > 0.0 { resend / watcher } else { f64::INFINITY };
    report.set(
        "held",
        json!({"ops": held.parked, "sessions": waiting.len(), "resends": held.resends.0, "watcher_first_ms": ms(*first), "watcher_last_ms": watcher,
            "last_resend_ms": resend, "ratio": (ratio * 1e3).round() / 1e3, "last_claim_ms": claim,
            "resend_after_event_max_ms": held.resends.1 * 1e3}),
    );
    report.at_least("sessions with a held op at the kill", waiting.len() as f64, held.wanted as f64);
    report.at_least("moves seen by the bare watcher", bare.len() as f64, moved.len() as f64);
    report.at_least("resends after the move", held.resends.0, held.wanted as f64);
    report.at_most("last resend / bare watcher's last event", ratio, RATIO);
}
