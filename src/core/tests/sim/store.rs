//! The store: linearizable, conditional on the header's `mod_rev`; answers may be lost, and writes may land late.

use std::collections::BTreeMap;

use holdfast_core::{
    id::Lane,
    proto::record::{self, Checkpoint, Entry, Header},
    record::{Loaded, StoreError, WriteSet, Written},
};

use crate::{
    counts::Seen,
    event::Event,
    world::{World, trace},
};

/// How long an owner waits before it calls a write's outcome unknown, µs.
const TIMEOUT_US: u64 = 500_000;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Executed and answered.
    Answered,
    /// Executed; the answer is lost.
    Silent,
}

/// What an owner asks of the store.
#[derive(Clone, Debug)]
pub enum Request {
    /// Reads the whole record.
    Load,
    /// Writes, if nobody else has.
    Write(Box<WriteSet>, Fate),
}

/// What the store answers.
#[derive(Debug)]
pub enum Answer {
    /// To `Load`.
    Loaded(Result<Loaded, StoreError>),
    /// To `Write`.
    Written(Written),
}

/// One session's keys.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// `mod_rev` of the header, 0 = absent.
    pub rev: i64,
    /// The header.
    pub header: Option<Header>,
    /// The checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// The tail, by version.
    pub tail: BTreeMap<u64, Entry>,
    /// Outcomes by (principal, lane).
    pub lanes: BTreeMap<(String, Lane), record::Lane>,
}

impl Record {
    /// The newest version.
    pub fn ver(&self) -> u64 {
        self.header.as_ref().map_or(0, |h| h.ver)
    }

    /// The newest epoch that was claimed.
    pub fn epoch(&self) -> u64 {
        self.header.as_ref().map_or(0, |h| h.epoch)
    }

    fn loaded(&self) -> Loaded {
        Loaded {
            rev: self.rev,
            header: self.header.clone(),
            checkpoint: self.checkpoint.clone(),
            entries: self.tail.values().cloned().collect(),
            lanes: self.lanes.iter().map(|((p, l), v)| (p.clone(), *l, v.clone())).collect(),
        }
    }

    fn write(&mut self, rev: i64, set: WriteSet) {
        self.rev = rev;
        self.header = Some(set.header);
        self.tail.extend(set.entries.into_iter().map(|e| (e.ver, e)));
        for (principal, lane) in set.lanes_evicted {
            self.lanes.remove(&(principal, lane));
        }
        self.lanes.extend(set.lanes.into_iter().map(|(p, l, v)| ((p, l), v)));
        if let Some(checkpoint) = set.checkpoint {
            self.checkpoint = Some(checkpoint);
        }
        if let Some(below) = set.trim_below {
            self.tail = self.tail.split_off(&below);
        }
    }
}

/// All records.
#[derive(Debug)]
pub struct Store {
    /// Nothing is reachable.
    pub down: bool,
    rev: i64,
    /// By session.
    pub records: Vec<Record>,
}

impl Store {
    /// Empty records.
    pub fn new(sessions: usize) -> Self {
        Self { down: false, rev: 0, records: vec![Record::default(); sessions] }
    }
}

impl World {
    /// An owner asks the store to read.
    pub fn store_load(&mut self, owner: usize, session: usize, incarnation: u64) {
        let us = self.rng.range(100, 4_000);
        self.after(us, Event::StoreDo { owner, session, incarnation, request: Request::Load });
    }

    /// An owner asks the store to write. Chance decides whether it hears of it, and when.
    pub fn store_write(&mut self, owner: usize, session: usize, incarnation: u64, set: Box<WriteSet>) {
        let us = self.rng.range(100, 4_000);
        let unknown = Event::StoreAnswer { owner, session, incarnation, answer: Answer::Written(Written::Unknown) };
        if self.healed || !self.rng.per_mille(self.cfg.ambiguous_per_mille) {
            let request = Request::Write(set, Fate::Answered);
            self.after(us, Event::StoreDo { owner, session, incarnation, request });
            return;
        }
        self.after(TIMEOUT_US, unknown);
        let when = match self.rng.below(3) {
            0 => {
                self.counts.seen(Seen::WriteUnknownLost);
                return;
            }
            1 => us,
            _ => {
                self.counts.seen(Seen::WriteUnknownLate);
                TIMEOUT_US + self.rng.below(20_000)
            }
        };
        let request = Request::Write(set, Fate::Silent);
        self.after(when, Event::StoreDo { owner, session, incarnation, request });
    }

    /// The store executes a request.
    pub fn store_do(&mut self, owner: usize, session: usize, incarnation: u64, request: Request) {
        let back = self.rng.range(50, 3_000);
        let answer = match request {
            Request::Load if self.store.down => Answer::Loaded(Err(StoreError("down".to_owned()))),
            Request::Load => Answer::Loaded(Ok(self.store.records[session].loaded())),
            Request::Write(set, fate) => {
                let written = self.store_execute(session, *set);
                if fate == Fate::Silent {
                    if matches!(written, Written::Ok { .. }) {
                        self.counts.seen(Seen::WriteUnknownLanded);
                    }
                    return;
                }
                Answer::Written(written)
            }
        };
        self.after(back, Event::StoreAnswer { owner, session, incarnation, answer });
    }

    fn store_execute(&mut self, session: usize, set: WriteSet) -> Written {
        if self.store.down {
            return Written::Unavailable;
        }
        let record = &mut self.store.records[session];
        if record.rev != set.expect_rev {
            self.counts.seen(Seen::WriteConflict);
            return Written::Conflict;
        }
        if set.checkpoint.is_some() {
            self.counts.seen(Seen::Checkpoint);
        }
        trace!(
            self,
            "store s{session}: epoch {} ver {} ({} entries, {} lanes)",
            set.header.epoch,
            set.header.ver,
            set.entries.len(),
            set.lanes.len()
        );
        self.store.rev += 1;
        let rev = self.store.rev;
        self.oracle.written(session, record, &set);
        record.write(rev, set);
        Written::Ok { rev }
    }
}
