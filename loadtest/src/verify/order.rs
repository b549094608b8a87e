//! What one client heard of one session, in order: versions without a hole, epochs that never fall.

use std::collections::HashMap;
use std::sync::Arc;

use super::Verdict;
use crate::journal::{Line, What};

#[derive(Default)]
struct Seen {
    epoch: u64,
    ver: u64,
    /// A hole was heard; the client must ask for what it missed.
    hole: Option<u64>,
    asked: bool,
}

/// Walks the journals; lines of one client are in its own order.
pub fn check(lines: &[Line], verdict: &mut Verdict) {
    let mut seen: HashMap<(Arc<str>, Arc<str>), Seen> = HashMap::new();
    for line in lines.iter().filter(|l| !l.session.is_empty()) {
        let at = seen.entry((line.client.clone(), line.session.clone())).or_default();
        match line.what {
            What::Stale => {
                verdict.stale_epoch_delivered += 1;
                verdict
                    .example(format!("{}: {} heard {} of epoch {}", line.session, line.client, line.code, line.epoch));
            }
            What::Echo | What::Event => event(at, line, verdict),
            What::Reaction | What::Ack if line.epoch < at.epoch => {
                verdict.stale_epoch_delivered += 1;
                verdict.example(format!("{}: epoch {} after {}", line.session, line.epoch, at.epoch));
            }
            What::Snapshot => *at = Seen { epoch: line.epoch, ver: line.ver, ..Seen::default() },
            What::Resync => at.asked = true,
            What::Attached => (at.hole, at.epoch) = (None, at.epoch.max(line.epoch)),
            What::Status => at.epoch = at.epoch.max(line.epoch),
            _ => {}
        }
    }
    for ((client, session), at) in &seen {
        if let (Some(ver), false) = (at.hole, at.asked) {
            verdict.reordered += 1;
            verdict.example(format!("{session}: {client} heard {ver} after {} and did not ask", at.ver));
        }
    }
}

fn event(at: &mut Seen, line: &Line, verdict: &mut Verdict) {
    if line.epoch < at.epoch {
        verdict.stale_epoch_delivered += 1;
        verdict.example(format!("{}: version {} of epoch {} after {}", line.session, line.ver, line.epoch, at.epoch));
        return;
    }
    at.epoch = line.epoch;
    if line.ver <= at.ver {
        at.ver = at.ver.max(line.to);
    } else if line.ver == at.ver + 1 {
        (at.ver, at.hole, at.asked) = (line.ver.max(line.to), None, false);
    } else {
        if at.hole.is_some() && !at.asked {
            verdict.reordered += 1;
            verdict.example(format!("{}: {} heard {} after {}", line.session, line.client, line.ver, at.ver));
        }
        at.hole.get_or_insert(line.ver);
    }
}
