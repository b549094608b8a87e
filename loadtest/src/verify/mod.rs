//! The judge: joins what clients did and heard with what the store holds, and counts broken promises.
//!
//! It knows nothing of owners and gateways. An op is (session, client, lane, seq). Its verdict on an op uses only lines
//! of that client and the record's entries and lane outcomes; what is wrong is counted, and the first few are shown.

mod order;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64URL;
use prost::Message as _;

use crate::dump::{Record, Recorded, hex};
use crate::journal::{Line, What};
use crate::record::{Entry, Stamp, StampReceipt};

/// A stamp may be this much before the client's own send: both clocks are anchored on one machine's wall clock.
const STAMP_EARLY_US: u64 = 5_000;
/// A stamp later than this after the client's first send was made again on a resend (an owner takes seconds to replace).
const STAMP_LATE_US: u64 = 1_000_000;
/// Charged above the player's own think time: design 12.
const CHARGE_SLACK_US: u64 = 250_000;
/// A reaction is dead after this (design 1), plus the client's own scheduling on a full machine.
pub const REACTION_LATE_US: u64 = 1_250_000;
/// Examples kept.
const EXAMPLES: usize = 20;

/// What was found. All zero but the first four, and nothing unsettled, is a kept promise.
#[derive(Default, Debug)]
pub struct Verdict {
    pub sent: u64,
    pub acked: u64,
    /// Finally refused.
    pub nacked: u64,
    /// Entries that won on a later attempt of a gateway, or were sent again by a client: proof of a fault survived.
    pub resent: u64,
    pub unsettled: u64,
    pub acked_lost: u64,
    pub duplicated: u64,
    pub reordered: u64,
    pub final_nack_but_recorded: u64,
    pub stamps_changed: u64,
    pub stamps_checked: u64,
    pub charged_outage: u64,
    /// Writes of an epoch that had already been replaced in the store.
    pub stale_writes: u64,
    pub stale_epoch_delivered: u64,
    /// Acknowledged ops that are gone because the record went back, their clients being told to check them.
    pub rolled_back: u64,
    /// Ops whose clients were told so.
    pub told_to_check: u64,
    /// Of those: sent or recorded again all the same.
    pub re_raised: u64,
    pub resyncs: u64,
    /// Retryable refusals heard (2xx), by code.
    pub retries: HashMap<Arc<str>, u64>,
    /// Of every stamp: arrival after the client's first send.
    pub stamp_error_us: Vec<u64>,
    pub examples: Vec<String>,
}

impl Verdict {
    /// Nothing broken and something proven.
    pub fn clean(&self) -> bool {
        self.acked > 0 && self.broken() == 0
    }

    /// All violations together.
    pub fn broken(&self) -> u64 {
        self.unsettled
            + self.acked_lost
            + self.duplicated
            + self.reordered
            + self.final_nack_but_recorded
            + self.stamps_changed
            + self.charged_outage
            + self.stale_writes
            + self.stale_epoch_delivered
            + self.re_raised
    }

    fn example(&mut self, text: String) {
        if self.examples.len() < EXAMPLES {
            self.examples.push(text);
        }
    }
}

/// Entries of each (principal, lane, seq) of a session.
type Ops<'a> = HashMap<(String, String, u64), Vec<&'a Entry>>;
type OpKey = (Arc<str>, Arc<str>, Arc<str>, u64);

#[derive(Default)]
struct OpStory {
    first_sent_us: u64,
    attempts: u64,
    acked: bool,
    /// Versions the client was told.
    ack_vers: Vec<u64>,
    /// The last word, when it was a final refusal: (code, applied).
    refused: Option<(Arc<str>, Arc<str>)>,
    receipt: Option<Arc<str>>,
    /// The client was told to check it; and sent it again nevertheless.
    told: bool,
    sent_after: bool,
    /// From the newest event of the session to the send; `None` before any event.
    think_us: Option<u64>,
}

/// Judges journals (each client's lines in its own order) against the record.
pub fn judge(lines: &[Line], record: &Record) -> Verdict {
    let mut verdict = Verdict::default();
    order::check(lines, &mut verdict);
    let stories = collect(lines, &mut verdict);
    let none = Recorded::default();
    let mut index: HashMap<&str, Ops<'_>> = HashMap::new();
    for (session, of) in record {
        index.insert(session, check_session(session, of, &mut verdict));
    }
    for (key, story) in &stories {
        let of = record.get(&*key.0).unwrap_or(&none);
        let name = (key.1.to_string(), key.2.to_string(), key.3);
        let entries = index.get(&*key.0).and_then(|ops| ops.get(&name)).map_or(&[][..], Vec::as_slice);
        check_op(key, story, of, entries, &mut verdict);
    }
    verdict
}

fn collect(lines: &[Line], verdict: &mut Verdict) -> HashMap<OpKey, OpStory> {
    let mut stories: HashMap<OpKey, OpStory> = HashMap::new();
    let mut last_event: HashMap<(Arc<str>, Arc<str>), u64> = HashMap::new();
    for line in lines {
        if matches!(line.what, What::Echo | What::Event) {
            last_event.insert((line.client.clone(), line.session.clone()), line.t_us);
        }
        if matches!(line.what, What::Resync) {
            verdict.resyncs += 1;
        }
        if line.op == 0 {
            continue;
        }
        let key = (line.session.clone(), line.client.clone(), line.lane.clone(), line.op);
        let story = stories.entry(key).or_default();
        match line.what {
            What::Sent => {
                story.attempts += 1;
                story.sent_after |= story.told;
                if story.first_sent_us == 0 {
                    story.first_sent_us = line.t_us;
                    let before = last_event.get(&(line.client.clone(), line.session.clone()));
                    story.think_us = before.map(|t| line.t_us.saturating_sub(*t));
                }
            }
            What::Echo | What::Ack => {
                story.acked = true;
                story.ack_vers.push(line.ver);
            }
            What::LaneSeq if line.code.is_empty() => story.acked = true,
            What::LaneSeq => story.refused = Some((line.code.clone(), Arc::from("no"))),
            What::Nack if is_final(&line.code) => {
                story.refused = Some((line.code.clone(), line.applied.clone()));
            }
            What::Nack => *verdict.retries.entry(line.code.clone()).or_default() += 1,
            What::Check => story.told = true,
            What::Receipt => {
                story.receipt.get_or_insert_with(|| line.code.clone());
            }
            _ => {}
        }
    }
    stories
}

/// 4xx words; everything else is to be tried again (design 4.4).
pub fn is_final(code: &str) -> bool {
    !matches!(
        code,
        "STORE_UNAVAILABLE"
            | "OVERLOADED"
            | "NO_OWNER"
            | "GAP"
            | "TOO_MANY_INFLIGHT"
            | "HOLD_EXPIRED"
            | "TRY_AFTER_ATTACH"
    )
}

/// The record by itself: dense, epochs rising with the version and with the store's revision, lanes in order, no op twice.
fn check_session<'a>(session: &str, of: &'a Recorded, verdict: &mut Verdict) -> Ops<'a> {
    let mut ops: Ops<'a> = HashMap::new();
    let mut newest: HashMap<(&str, &[u8]), u64> = HashMap::new();
    let (mut ver, mut epoch, mut rev) = (None, 0, 0);
    for stored in &of.entries {
        let entry = &stored.entry;
        if ver.is_some_and(|v| entry.ver != v + 1) || (ver.is_none() && entry.ver != of.header.tail_from.max(1)) {
            verdict.reordered += 1;
            verdict.example(format!("{session}: the record has a hole before version {}", entry.ver));
        }
        if entry.epoch < epoch || stored.create_rev < rev {
            verdict.stale_writes += 1;
            verdict.example(format!("{session}: version {} was written by epoch {}", entry.ver, entry.epoch));
        }
        (ver, epoch, rev) = (Some(entry.ver), epoch.max(entry.epoch), rev.max(stored.create_rev));
        if entry.lane.is_empty() || !entry.op_end || entry.lane.starts_with(b"!") {
            continue;
        }
        let last = newest.entry((&entry.principal, &entry.lane)).or_default();
        if entry.seq < *last {
            verdict.reordered += 1;
            verdict.example(format!("{session}: op {} of {} after op {last}", entry.seq, entry.principal));
        }
        *last = (*last).max(entry.seq);
        ops.entry((entry.principal.clone(), hex(&entry.lane), entry.seq)).or_default().push(entry);
    }
    if of.header.ver != ver.unwrap_or(of.header.ver) || (ver.is_none() && of.header.ver > of.header.checkpoint_ver) {
        verdict.acked_lost += 1;
        verdict.example(format!("{session}: head {} but the tail ends at {ver:?}", of.header.ver));
    }
    for (name, entries) in &ops {
        if entries.len() > 1 {
            verdict.duplicated += entries.len() as u64 - 1;
            verdict.example(format!("{session}: op {} of {} is in the record {} times", name.2, name.0, entries.len()));
        }
    }
    ops
}

fn check_op(key: &OpKey, story: &OpStory, of: &Recorded, entries: &[&Entry], verdict: &mut Verdict) {
    if story.first_sent_us == 0 {
        return;
    }
    let name = || format!("{} op {} of {}", key.0, key.3, key.1);
    verdict.sent += 1;
    let lane = of.lanes.get(&(key.1.to_string(), key.2.to_string()));
    let outcome = lane.and_then(|l| l.outcomes.iter().find(|o| o.seq == key.3));
    let trimmed = lane.is_some_and(|l| l.last_decided >= key.3) && outcome.is_none() && of.header.tail_from > 1;
    let recorded = !entries.is_empty() || outcome.is_some_and(|o| o.code == 0) || trimmed;
    if story.attempts > 1 || entries.iter().any(|e| e.attempt > 1) {
        verdict.resent += 1;
    }
    if story.acked {
        verdict.acked += 1;
        let ver = entries.first().map(|e| e.ver).or(outcome.map(|o| o.ver));
        let told_wrong = ver.is_some_and(|v| v > 0 && story.ack_vers.iter().any(|a| *a > 0 && *a != v));
        if story.told {
            check_told(&name(), story, (recorded, told_wrong), verdict);
        } else if !recorded || told_wrong {
            verdict.acked_lost += 1;
            verdict.example(format!("{}: acknowledged at {:?}, recorded at {ver:?}", name(), story.ack_vers));
        }
    } else if let Some((code, applied)) = &story.refused {
        verdict.nacked += 1;
        if &**applied != "unknown" && (!entries.is_empty() || outcome.is_some_and(|o| o.code == 0)) {
            verdict.final_nack_but_recorded += 1;
            verdict.example(format!("{}: refused with {code}, yet in the record", name()));
        }
    } else {
        verdict.unsettled += 1;
        verdict.example(format!("{}: never settled ({} sends, recorded: {recorded})", name(), story.attempts));
    }
    if let Some(entry) = entries.first() {
        check_stamp(&name(), story, entry, verdict);
    }
}

/// The record went back behind this op. It must stay away: the user decides what to do about it.
fn check_told(name: &str, story: &OpStory, found: (bool, bool), verdict: &mut Verdict) {
    let (recorded, elsewhere) = found;
    verdict.told_to_check += 1;
    verdict.rolled_back += u64::from(!recorded);
    if story.sent_after || elsewhere {
        verdict.re_raised += 1;
        verdict.example(format!("{name}: was to be checked, yet sent or recorded again"));
    }
}

fn check_stamp(name: &str, story: &OpStory, entry: &Entry, verdict: &mut Verdict) {
    let Ok(stamp) = Stamp::decode(&entry.stamp[..]) else {
        verdict.stamps_changed += 1;
        verdict.example(format!("{name}: the recorded stamp cannot be read"));
        return;
    };
    verdict.stamps_checked += 1;
    verdict.stamp_error_us.push(stamp.arrived_at_us.saturating_sub(story.first_sent_us));
    let early = stamp.arrived_at_us + STAMP_EARLY_US < story.first_sent_us;
    let late = stamp.arrived_at_us > story.first_sent_us + STAMP_LATE_US;
    let sealed = story.receipt.as_ref().and_then(|r| {
        let bytes = B64URL.decode(r.as_bytes()).ok()?;
        StampReceipt::decode(bytes.get(..bytes.len().checked_sub(16)?)?).ok()
    });
    let other = sealed.is_some_and(|r| r.stamp != entry.stamp);
    // a client that sent again after a refusal without a receipt gets a fresh stamp, and rightly
    let fresh_allowed = story.attempts > 1 && story.receipt.is_none();
    if early || other || (late && !fresh_allowed) {
        verdict.stamps_changed += 1;
        verdict.example(format!("{name}: sent {}, stamped {}", story.first_sent_us, stamp.arrived_at_us));
    }
    let charged = serde_json::from_slice::<serde_json::Value>(&entry.payload).ok();
    let charged = charged.and_then(|v| v.get("charged_us").and_then(serde_json::Value::as_u64));
    if let (Some(charged), Some(think)) = (charged, story.think_us)
        && charged > think + CHARGE_SLACK_US
    {
        verdict.charged_outage += 1;
        verdict.example(format!("{name}: charged {charged} us for {think} us of thought"));
    }
}
