//! A record for tests: does what the authority does with an application, without fencing and lanes.

use holdfast_core::{
    proto::{Content, HeldOp, OpId, Stamp, gateway_msg::Origin, record::Entry},
    record::{App, OpView, Reject},
    time::{Mono, Now, Wall},
};

/// An application and the entries it made.
pub struct Bench {
    pub app: Box<dyn App + Send>,
    pub entries: Vec<Entry>,
    pub wall_us: u64,
}

impl Bench {
    pub fn new(kind: &str) -> Self {
        Self { app: fresh(kind), entries: Vec::new(), wall_us: 1_000_000_000 }
    }

    pub fn ver(&self) -> u64 {
        self.entries.last().map_or(0, |entry| entry.ver)
    }

    /// One op, decided and applied; the payloads of its events.
    pub fn op(&mut self, participant: &str, base: u64, data: &str) -> Result<Vec<String>, Reject> {
        self.stamped(participant, base, data.as_bytes(), &Stamp::default(), Origin::Live)
    }

    pub fn stamped(
        &mut self,
        who: &str,
        base: u64,
        data: &[u8],
        stamp: &Stamp,
        origin: Origin,
    ) -> Result<Vec<String>, Reject> {
        let held = HeldOp {
            session: "s".into(),
            op: Some(OpId { lane: b"lane0000".to_vec().into(), seq: self.ver() }),
            base_ver: base,
            content: Content::Json.into(),
            payload: data.to_vec().into(),
            principal: who.into(),
            participant: who.into(),
            ..HeldOp::default()
        };
        let now = Now { mono: Mono(0), wall: Wall(self.wall_us) };
        let view = OpView { held: &held, stamp, epoch: 1, next_ver: self.ver() + 1, origin: origin.into() };
        let drafts = self.app.decide(&view, now)?;
        Ok(drafts.into_iter().map(|draft| self.write(draft)).collect())
    }

    pub fn write(&mut self, draft: holdfast_core::record::Draft) -> String {
        let text = String::from_utf8(draft.payload.to_vec()).expect("JSON");
        let entry = Entry {
            ver: self.ver() + 1,
            payload: draft.payload,
            actor: draft.actor,
            flags: draft.flags,
            facts: draft.facts,
            at_us: self.wall_us,
            ..Entry::default()
        };
        self.app.apply(&entry);
        self.entries.push(entry);
        text
    }

    /// The snapshot's payload.
    pub fn snapshot(&self) -> String {
        String::from_utf8(self.app.snapshot().1.to_vec()).expect("JSON")
    }

    /// Replay of the record, from the start and from this checkpoint, gives this state.
    pub fn assert_replays(&self, kind: &str) {
        let mut replayed = fresh(kind);
        self.entries.iter().for_each(|entry| replayed.apply(entry));
        assert_eq!(replayed.checkpoint(), self.app.checkpoint());
        let mut restored = fresh(kind);
        restored.restore(&self.app.checkpoint()).expect("checkpoint");
        assert_eq!(restored.checkpoint(), self.app.checkpoint());
        assert_eq!(restored.snapshot(), self.app.snapshot());
    }
}

fn fresh(kind: &str) -> Box<dyn App + Send> {
    let session = holdfast_core::id::SessionId::parse("s").expect("id");
    super::new(kind, &session).expect("kind")
}
