//! `zombie`: an owner stopped past its lease, in the middle of a write, then continued with ops and reactions in its socket.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::json;

use super::crash::Fault as Victim;
use super::load::Load;
use crate::clock::now_us;
use crate::dump::Record;
use crate::journal::{Line, What};
use crate::local::{Cluster, http, placement};
use crate::report::Report;

/// The store stands still this long before the owner is stopped: whatever the owner writes then has no answer yet.
const MID_WRITE: Duration = Duration::from_millis(120);
/// Past the lease by this much.
const PAST_LEASE_MS: u64 = 4_000;
/// Gateways give a silent link up after 3 s: until then they send to it.
const LINK_DEAD_US: u64 = 3_000_000;

pub struct Fault {
    victim: Victim,
    cont_us: u64,
    /// The store's revision just before the owner went on.
    store_rev: i64,
    back: bool,
    /// Growth of the owner's own counters after it went on, by name.
    counters: Vec<(String, f64)>,
}

pub async fn fault(load: &Load, cluster: &mut Cluster) -> anyhow::Result<Fault> {
    let (index, sessions) = load.victim()?;
    load.fault_time().await;
    cluster.store.stop()?;
    tokio::time::sleep(MID_WRITE).await;
    let at_us = now_us();
    cluster.owners[index].proc.stop()?;
    cluster.store.cont()?;
    println!("owner-{index} stopped, the store's answers unread");
    let lease_ms = cluster.spec.kinds.iter().map(|k| k.lease_ms()).min().unwrap_or(3_000);
    tokio::time::sleep(Duration::from_millis(lease_ms + PAST_LEASE_MS)).await;
    let store_rev = placement::revision(&cluster.store_url).await?;
    let cont_us = now_us();
    cluster.owners[index].proc.cont()?;
    println!("owner-{index} continued");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let admin = cluster.owners[index].admin();
    let back = http::is_ok(&admin, "/readyz").await;
    cluster.owners[index].proc.check()?;
    let text = http::get(&admin, "/metrics").await.map(|(_, text)| text).unwrap_or_default();
    let counters = text
        .lines()
        .filter(|l| {
            !l.starts_with('#')
                && (l.contains("fence") || l.contains("conflict") || l.contains("reaction") || l.contains("depos"))
        })
        .filter_map(|l| l.rsplit_once(' ').and_then(|(n, v)| Some((n.to_owned(), v.parse().ok()?))))
        .collect();
    Ok(Fault {
        victim: Victim { node: format!("owner-{index}"), at_us, sessions, capped: false, held: None },
        cont_us,
        store_rev,
        back,
        counters,
    })
}

pub fn judge(load: &Load, lines: &[Line], record: &Record, fault: &Fault, report: &mut Report) {
    let (moved, _) = super::crash::moves(load, &fault.victim);
    let orphans: HashSet<_> = fault.victim.sessions.iter().cloned().collect();
    let new_epoch = |session: &str| moved.get(session).map_or(u64::MAX, |m| m.1);
    let waiting = |what: What| {
        let span = fault.victim.at_us.saturating_sub(MID_WRITE.as_micros() as u64)..fault.victim.at_us + LINK_DEAD_US;
        lines.iter().filter(|l| l.what == what && orphans.contains(&l.session) && span.contains(&l.t_us)).count()
    };
    let (attempts, reactions) = (waiting(What::Sent), waiting(What::ReactionSent));
    let mut landed = 0;
    for session in &orphans {
        let entries = record.get(&**session).map_or(&[][..], |r| &r.entries);
        landed +=
            entries.iter().filter(|e| e.create_rev > fault.store_rev && e.entry.epoch < new_epoch(session)).count();
    }
    let old = |l: &&Line| {
        matches!(l.what, What::Reaction | What::Stale)
            && orphans.contains(&l.session)
            && l.t_us > fault.cont_us
            && l.epoch < new_epoch(&l.session)
    };
    let delivered = lines.iter().filter(old).count();
    report.set(
        "zombie",
        json!({"write_attempts": attempts, "writes_landed": landed, "reactions_sent": reactions, "reactions_delivered": delivered,
            "moved": moved.len(), "rejoined": fault.back, "owner_counters": fault.counters}),
    );
    report.at_least("ops in the zombie's socket", attempts as f64, 20.0);
    report.at_least("reactions in the zombie's socket", reactions as f64, 100.0);
    report.at_most("zombie.writes_landed", landed as f64, 0.0);
    report.at_most("zombie.reactions_delivered", delivered as f64, 0.0);
    report.at_least("sessions moved", moved.len() as f64, orphans.len() as f64);
    report.at_least("zombie ready again", f64::from(u8::from(fault.back)), 1.0);
    let resent = report.fields["ops"]["resent"].as_f64().unwrap_or(0.0);
    report.at_least("resent", resent, 1.0);
}
