//! `zombie`: an owner cut off from the directory and stopped past its lease, in the middle of a write, then continued with ops
//! and reactions in its socket.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use super::crash::Fault as Victim;
use super::load::Load;
use crate::clock::now_us;
use crate::dump::Record;
use crate::journal::{Line, What};
use crate::local::metrics::total;
use crate::local::{Cluster, http, placement, wait_for};
use crate::report::Report;

/// The store stands still this long before the owner is stopped: whatever the owner writes then has no answer yet.
const MID_WRITE: Duration = Duration::from_millis(120);
/// Past the lease by this much.
const PAST_LEASE_MS: u64 = 4_000;
/// How long it lives as a zombie before the cut is healed.
const ZOMBIE: Duration = Duration::from_secs(3);
/// Gateways give a silent link up after 3 s: until then they send to it.
const LINK_DEAD_US: u64 = 3_000_000;

/// What the owner itself counts: name, and its value when it was stopped and at the end of its life as a zombie.
type Counters = Vec<(&'static str, f64, f64)>;

pub struct Fault {
    victim: Victim,
    cont_us: u64,
    /// The store's revision just before the owner went on.
    store_rev: i64,
    back: bool,
    counters: Counters,
    /// Writes it had in flight when it was stopped.
    mid_write: f64,
}

const WRITES: &str = "holdfast_owner_writes_total";
const ANSWERED: &str = "holdfast_owner_writes_answered_total";
const FENCED: &str = "holdfast_owner_writes_fenced_total";
const RELAYED: &str = "holdfast_owner_reactions_sent_total";
const REFUSED: &str = "holdfast_owner_reactions_refused_total";
const NAMES: [&str; 6] = [WRITES, ANSWERED, FENCED, RELAYED, REFUSED, "holdfast_owner_deposed_total"];

/// The owner stays cut off from the directory, where it would hear that it was deposed: so nothing but the record's epoch
/// stands in its way. It serves the ops and reactions that lie in its socket as any owner in a network cut would.
pub async fn fault(load: &Load, cluster: &mut Cluster) -> anyhow::Result<Fault> {
    let (index, sessions) = load.victim_among(|node| node == "owner-0")?;
    let admin = cluster.owners[index].admin();
    let hop = cluster.hop.as_ref().context("the zombie's way to the directory")?;
    load.fault_time().await;
    cluster.store.stop()?;
    tokio::time::sleep(MID_WRITE).await;
    let before = http::get(&admin, "/metrics").await?.1;
    hop.cut();
    let at_us = now_us();
    cluster.owners[index].proc.stop()?;
    cluster.store.cont()?;
    let at = |text: &str, name: &str| total(text, name).unwrap_or(0.0);
    let mid_write = at(&before, WRITES) - at(&before, ANSWERED);
    println!("owner-{index} cut off and stopped with {mid_write} writes in flight");
    let lease_ms = cluster.spec.kinds.iter().map(|k| k.lease_ms()).min().unwrap_or(3_000);
    tokio::time::sleep(Duration::from_millis(lease_ms + PAST_LEASE_MS)).await;
    let store_rev = placement::revision(&cluster.store_url).await?;
    let cont_us = now_us();
    cluster.owners[index].proc.cont()?;
    println!("owner-{index} continued");
    tokio::time::sleep(ZOMBIE).await;
    let after = http::get(&admin, "/metrics").await?.1;
    hop.heal();
    let name = format!("owner-{index}");
    let back = wait_for(|| placement::is_registered(&cluster.directory_url, &name)).await.is_ok();
    cluster.owners[index].proc.check()?;
    let counters = NAMES.map(|name| (name, at(&before, name), at(&after, name))).to_vec();
    let victim = Victim { node: format!("owner-{index}"), at_us, sessions, capped: false, held: None };
    Ok(Fault { victim, cont_us, store_rev, back, counters, mid_write })
}

impl Fault {
    /// How much the owner's own counter grew.
    fn grew(&self, name: &str) -> f64 {
        self.counters.iter().find(|c| c.0 == name).map_or(0.0, |(_, before, after)| after - before)
    }
}

pub fn judge(load: &Load, lines: &[Line], record: &Record, fault: &Fault, report: &mut Report) {
    let (moved, _) = super::crash::moves(load, &fault.victim);
    let orphans: HashSet<_> = fault.victim.sessions.iter().cloned().collect();
    let new_epoch = |session: &str| moved.get(session).map_or(u64::MAX, |m| m.1);
    let waiting = |what: What| {
        let span = fault.victim.at_us.saturating_sub(MID_WRITE.as_micros() as u64)..fault.victim.at_us + LINK_DEAD_US;
        lines.iter().filter(|l| l.what == what && orphans.contains(&l.session) && span.contains(&l.t_us)).count()
    };
    let (ops, reactions) = (waiting(What::Sent), waiting(What::ReactionSent));
    let (fenced, attempted) = (fault.grew(FENCED), fault.grew(RELAYED) + fault.grew(REFUSED));
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
    let grew: serde_json::Map<_, _> = fault
        .counters
        .iter()
        .map(|(name, a, b)| (name.trim_start_matches("holdfast_owner_").into(), json!(b - a)))
        .collect();
    report.set(
        "zombie",
        json!({"write_attempts": fenced, "writes_landed": landed, "reactions_sent": attempted,
            "reactions_delivered": delivered, "mid_write": fault.mid_write, "ops_in_socket": ops,
            "reactions_in_socket": reactions, "moved": moved.len(), "rejoined": fault.back, "owner_counters": grew}),
    );
    report.at_least("zombie.write_attempts, by its own count", fenced, 20.0);
    report.at_least("zombie.reactions_sent, by its own count", attempted, 100.0);
    report.at_least("writes in flight at its SIGSTOP", fault.mid_write, 1.0);
    report.at_most("zombie.writes_landed", landed as f64, 0.0);
    report.at_most("zombie.reactions_delivered", delivered as f64, 0.0);
    report.at_least("sessions moved", moved.len() as f64, orphans.len() as f64);
    report.at_least("zombie ready again", f64::from(u8::from(fault.back)), 1.0);
    let resent = report.fields["ops"]["resent"].as_f64().unwrap_or(0.0);
    report.at_least("resent", resent, 1.0);
}
