//! Exact effects of an authority over a one-line application and a store that the test plays.

use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::{
    id::{Boot, LinkId, SessionId},
    message::{encode, op_id},
    proto::{
        Content, HeldOp, Pos,
        gateway_msg::{self, M, Origin},
        owner_msg::{self, health::Store},
        record::{Entry, Header},
    },
    time::{Mono, Now, Wall},
};

const GW: LinkId = LinkId(1);
const LANE: &[u8] = b"lanelane";

/// Appends payloads; refuses `no`, takes `nop` without an event.
#[derive(Clone, Debug, Default, PartialEq)]
struct Log(Vec<u8>, Option<Wall>);

impl App for Log {
    fn decide(&mut self, op: &OpView<'_>, _now: Now) -> Result<Vec<Draft>, Reject> {
        match &op.held.payload[..] {
            b"no" => Err(Reject::app(7, "no")),
            b"nop" => Ok(vec![]),
            p => Ok(vec![Draft { payload: Bytes::copy_from_slice(p), content: Content::Bytes, ..Draft::default() }]),
        }
    }
    fn apply(&mut self, entry: &Entry) {
        self.0.extend_from_slice(&entry.payload);
    }
    fn snapshot(&self) -> (Content, Bytes) {
        (Content::Bytes, self.0.clone().into())
    }
    fn checkpoint(&self) -> Bytes {
        self.0.clone().into()
    }
    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        self.0 = state.to_vec();
        Ok(())
    }
    fn poll_timeout(&self) -> Option<Wall> {
        self.1
    }
    fn handle_timeout(&mut self, _now: Now) -> Vec<Draft> {
        self.1 = None;
        vec![Draft { payload: Bytes::from_static(b"!"), ..Draft::default() }]
    }
}

struct Bed {
    a: Authority<Log>,
    now: Now,
    record: Loaded,
    rev: i64,
}

fn at(ms: u64) -> Now {
    Now { mono: Mono(ms * 1000), wall: Wall(1_000_000_000 + ms * 1000) }
}

fn new(epoch: u64) -> Bed {
    let config = AuthorityConfig { node: "o1".into(), boot: Boot(9), addr: "h:1".into(), ..Default::default() };
    let session = SessionId::parse("s").expect("id");
    Bed {
        a: Authority::new(session, "game", epoch, Arc::new(config), Log::default()),
        now: at(1),
        record: Loaded::default(),
        rev: 0,
    }
}

fn op(seq: u64, payload: &'static [u8]) -> M {
    op_of(1, seq, payload, 1)
}

fn op_of(epoch: u64, seq: u64, payload: &'static [u8], attempt: u32) -> M {
    let held = HeldOp {
        session: "s".into(),
        op: Some(op_id(LANE, seq)),
        payload: Bytes::from_static(payload),
        digest: Bytes::from_static(payload),
        principal: "p".into(),
        client_attempt: 1,
        ..Default::default()
    };
    let origin = if attempt == 1 { Origin::Live } else { Origin::Resend };
    M::Op(gateway_msg::OpEnvelope { epoch, held: encode(&held), attempt, origin: origin.into(), ..Default::default() })
}

fn join(epoch: u64, have: (u64, u64)) -> M {
    let have = Some(Pos { epoch: have.0, ver: have.1 });
    M::Join(gateway_msg::Join { session: "s".into(), epoch, have, ..Default::default() })
}

impl Bed {
    fn run(&mut self, f: impl FnOnce(&mut Authority<Log>, Now, &mut Vec<Effect>)) -> Vec<Effect> {
        let mut out = Vec::new();
        f(&mut self.a, self.now, &mut out);
        out
    }
    fn say(&mut self, msg: M) -> Vec<Effect> {
        self.run(|a, now, out| a.handle_link_msg(now, GW, msg, out))
    }
    fn written(&mut self, w: Written) -> Vec<Effect> {
        self.run(|a, now, out| a.handle_written(now, w, out))
    }
    fn load(&mut self) -> Vec<Effect> {
        let loaded = self.record.clone();
        self.run(|a, now, out| a.handle_loaded(now, Ok(loaded), out))
    }
    /// Applies the one write among `effects` to the record.
    fn land(&mut self, effects: &[Effect]) {
        let set = write(effects);
        assert_eq!(set.expect_rev, self.record.rev);
        self.rev += 1;
        self.record.rev = self.rev;
        self.record.header = Some(set.header.clone());
        self.record.entries.extend(set.entries.clone());
        if let Some(below) = set.trim_below {
            self.record.entries.retain(|e| e.ver >= below);
        }
        for (p, l, v) in set.lanes.clone() {
            self.record.lanes.retain(|x| (&x.0, x.1) != (&p, l));
            self.record.lanes.push((p, l, v));
        }
        self.record.checkpoint = set.checkpoint.clone().or(self.record.checkpoint.take());
    }
    fn ok(&mut self, effects: &[Effect]) -> Vec<Effect> {
        self.land(effects);
        let rev = self.rev;
        self.written(Written::Ok { rev })
    }
    fn active(epoch: u64) -> Self {
        let mut bed = new(epoch);
        assert_eq!(bed.run(|a, now, out| a.start(now, out)), [Effect::Load]);
        let claim = bed.load();
        assert_eq!(bed.ok(&claim), []);
        bed
    }
    fn joined(epoch: u64) -> Self {
        let mut bed = Self::active(epoch);
        assert_eq!(brief(&bed.say(join(epoch, (0, 0)))), [format!("joined {epoch}/0 2"), format!("state {epoch}/0 ")]);
        bed
    }
    fn commit(&mut self, msg: M) -> Vec<String> {
        let w = self.say(msg);
        brief(&self.ok(&w))
    }
}

fn write(effects: &[Effect]) -> &WriteSet {
    effects.iter().find_map(|e| if let Effect::Write(w) = e { Some(&**w) } else { None }).expect("a write")
}

fn brief(effects: &[Effect]) -> Vec<String> {
    use owner_msg::M;
    let pos = |p: &Option<Pos>| p.as_ref().map_or(String::new(), |p| format!("{}/{}", p.epoch, p.ver));
    let text = |b: &Bytes| String::from_utf8_lossy(b).into_owned();
    let one = |e: &Effect| match e {
        Effect::Write(w) => format!("write {}/{} if {}", w.header.epoch, w.header.ver, w.expect_rev),
        Effect::Send { msg, .. } => match msg {
            M::Event(m) => format!("event {} {} {}", pos(&m.at), text(&m.payload), m.op.as_ref().map_or(0, |o| o.seq)),
            M::Committed(m) => {
                format!("committed {} at {}/{} dup {}", m.op.as_ref().map_or(0, |o| o.seq), m.epoch, m.ver, m.dup)
            }
            M::Nack(m) => {
                let (seq, code, applied) = (m.op.as_ref().map_or(0, |o| o.seq), m.code(), m.applied());
                format!("nack {seq} {code:?} {applied:?} {}", m.expected_seq)
            }
            M::Joined(m) => format!("joined {} {}", pos(&m.head), m.resume),
            M::State(m) => format!("state {} {}", pos(&m.at), text(&m.payload)),
            M::NotOwner(m) => format!("not owner {} hint {}", m.your_epoch, m.hint.as_ref().map_or(0, |h| h.epoch)),
            M::Health(m) => format!("health {:?}", m.store()),
            M::Attached(m) => {
                format!("attached {} {:?}", m.lane_seq, m.rejected.iter().map(|r| r.seq).collect::<Vec<_>>())
            }
            other => format!("{other:?}"),
        },
        other => format!("{other:?}"),
    };
    effects.iter().map(one).collect()
}

#[test]
fn nothing_is_said_before_the_claim_and_everything_in_order_after_it() {
    let mut bed = new(3);
    assert_eq!(bed.run(|a, now, out| a.start(now, out)), [Effect::Load]);
    assert_eq!(bed.say(join(3, (2, 0))), []);
    assert_eq!(bed.say(op_of(3, 1, b"a", 1)), []);
    let claim = bed.load();
    let header =
        Header { epoch: 3, kind: "game".into(), tail_from: 1, claimed_at_us: bed.now.wall.0, ..Header::default() };
    assert_eq!(claim, [Effect::Write(Box::new(WriteSet { header, ..WriteSet::default() }))]);
    let out = bed.ok(&claim);
    assert_eq!(brief(&out), ["joined 3/0 3", "write 3/1 if 1"]);
    assert_eq!(write(&out).lanes[0].2.last_decided, 1);
    assert_eq!(brief(&bed.ok(&out)), ["event 3/1 a 1"]);
}

#[test]
fn ops_behind_a_write_are_committed_together() {
    let mut bed = Bed::joined(1);
    let first = bed.say(op(1, b"a"));
    assert_eq!(bed.say(op(2, b"b")), []);
    assert_eq!(bed.say(op(3, b"no")), []);
    assert_eq!(bed.say(op(4, b"nop")), []);
    assert_eq!(bed.say(op(4, b"nop")), []);
    let second = bed.ok(&first);
    assert_eq!(brief(&second), ["event 1/1 a 1", "write 1/2 if 2"]);
    let said = brief(&bed.ok(&second));
    assert_eq!(
        said,
        ["event 1/2 b 2", "nack 3 Rejected No 0", "committed 4 at 1/2 dup false", "committed 4 at 1/2 dup true"]
    );
    let attach =
        gateway_msg::Attach { epoch: 1, principal: "p".into(), lane: Bytes::from_static(LANE), ..Default::default() };
    assert_eq!(brief(&bed.say(M::Attach(attach))), ["attached 4 [3]"]);
}

#[test]
fn lanes_are_dense_and_remember() {
    let mut bed = Bed::joined(1);
    assert_eq!(brief(&bed.say(op(2, b"b"))), ["nack 2 Gap No 1"]);
    assert_eq!(bed.commit(op(1, b"no")), ["nack 1 Rejected No 0"]);
    assert_eq!(bed.commit(op(2, b"b")), ["event 1/1 b 2"]);
    assert_eq!(brief(&bed.say(op(1, b"no"))), ["nack 1 Rejected No 0"]);
    assert_eq!(brief(&bed.say(op(2, b"b"))), ["committed 2 at 1/1 dup true"]);
    assert_eq!(brief(&bed.say(op(2, b"x"))), ["nack 2 OpIdReused No 0"]);
}

#[test]
fn an_unknown_write_that_landed_is_published_and_its_op_is_a_dup() {
    let mut bed = Bed::joined(1);
    let w = bed.say(op(1, b"a"));
    bed.land(&w);
    assert_eq!(bed.written(Written::Unknown), [Effect::Load]);
    assert_eq!(bed.say(op(2, b"b")), []);
    assert_eq!(brief(&bed.load()), ["event 1/1 a 1", "committed 1 at 1/1 dup true", "write 1/2 if 2"]);
}

#[test]
fn an_unknown_write_that_did_not_land_is_fenced_and_made_again() {
    let mut bed = Bed::joined(1);
    bed.say(op(1, b"a"));
    bed.written(Written::Unknown);
    let fence = bed.load();
    assert_eq!(brief(&fence), ["write 1/0 if 1"]);
    let again = bed.ok(&fence);
    assert_eq!(brief(&again), ["write 1/1 if 2"]);
    assert_eq!(brief(&bed.ok(&again)), ["event 1/1 a 1"]);
    assert_eq!(bed.a.app().0, b"a");
}

#[test]
fn a_sick_store_is_told_within_a_second_and_ops_are_refused_until_it_is_well() {
    let mut bed = Bed::joined(1);
    let w = bed.say(op(1, b"a"));
    assert_eq!(bed.say(op(2, b"b")), []);
    assert_eq!(bed.a.poll_timeout(), Some(at(801).mono));
    bed.now = at(801);
    let late = bed.run(|a, now, out| a.handle_timeout(now, out));
    assert_eq!(brief(&late), ["health Down", "nack 2 StoreUnavailable No 0"]);
    assert_eq!(brief(&bed.say(op_of(1, 2, b"b", 2))), ["nack 2 StoreUnavailable Unknown 0"]);
    assert_eq!(bed.written(Written::Unknown), [Effect::Load]);
    let failed = bed.run(|a, now, out| a.handle_loaded(now, Err(StoreError("down".into())), out));
    assert_eq!(brief(&failed), ["nack 1 StoreUnavailable Unknown 0"]);
    let retry = bed.a.poll_timeout().expect("a retry");
    bed.now = Now { mono: retry, wall: bed.now.wall };
    assert_eq!(bed.run(|a, now, out| a.handle_timeout(now, out)), [Effect::Load]);
    bed.land(&w);
    let probe = bed.load();
    assert_eq!(brief(&probe), ["write 1/1 if 2"]);
    assert_eq!(brief(&bed.ok(&probe)), ["health Ok", "event 1/1 a 1"]);
}

#[test]
fn an_unavailable_store_refuses_with_applied_no() {
    let mut bed = Bed::joined(1);
    bed.say(op(1, b"a"));
    assert_eq!(brief(&bed.written(Written::Unavailable)), ["health Down", "nack 1 StoreUnavailable No 0"]);
}

#[test]
fn a_higher_epoch_in_the_record_deposes() {
    let mut bed = Bed::joined(1);
    bed.say(op(1, b"a"));
    bed.say(op(2, b"b"));
    assert_eq!(bed.written(Written::Conflict), [Effect::Load]);
    bed.record.header.as_mut().expect("header").epoch = 2;
    let out = bed.load();
    assert_eq!(brief(&out[..1]), ["not owner 1 hint 0"]);
    assert_eq!(out[1..], [Effect::Deposed { by_epoch: 2 }]);
    assert_eq!(bed.a.writes_fenced(), 1);
    assert_eq!(brief(&bed.say(op(3, b"c"))), ["not owner 1 hint 0"]);

    let mut late = new(1);
    late.run(|a, now, out| a.start(now, out));
    late.record = bed.record;
    assert_eq!(late.load(), [Effect::Deposed { by_epoch: 2 }, Effect::Behind { record_epoch: 2 }]);
}

#[test]
fn a_new_epoch_of_the_same_node_is_claimed_and_joined_anew() {
    let mut bed = Bed::joined(1);
    assert_eq!(bed.commit(op(1, b"a")), ["event 1/1 a 1"]);
    let out = bed.run(|a, now, out| a.handle_assigned(now, 4, out));
    assert_eq!(brief(&out), ["not owner 1 hint 4", "Load"]);
    let claim = bed.load();
    assert_eq!(brief(&claim), ["write 4/1 if 2"]);
    assert_eq!(bed.say(join(4, (1, 1))), []);
    assert_eq!(brief(&bed.ok(&claim)), ["joined 4/1 3"]);
    assert_eq!(brief(&bed.say(op(1, b"a"))), ["not owner 1 hint 4"]);
    assert_eq!(brief(&bed.say(join(4, (5, 1)))), ["not owner 4 hint 0"]);
    let pull = gateway_msg::Pull { epoch: 4, att: 8, have: Some(Pos { epoch: 1, ver: 0 }), ..Default::default() };
    assert_eq!(brief(&bed.say(M::Pull(pull))), ["event 4/1 a 1"]);
}

#[test]
fn a_drain_finishes_the_write_under_way_and_refuses_the_rest() {
    let mut bed = Bed::joined(1);
    let w = bed.say(op(1, b"a"));
    bed.say(op(2, b"b"));
    assert_eq!(brief(&bed.run(|a, now, out| a.handle_drain(now, out))), ["nack 2 OwnerDraining No 0"]);
    assert_eq!(brief(&bed.ok(&w)), ["event 1/1 a 1", "Handed { ver: 1 }"]);
    assert_eq!(brief(&bed.say(op(3, b"c"))), ["nack 3 OwnerDraining No 0"]);
    assert_eq!(brief(&bed.say(join(1, (1, 1)))), ["not owner 1 hint 0"]);
}

#[test]
fn past_its_lease_it_answers_no_read_and_relays_no_reaction() {
    let mut bed = Bed::joined(1);
    let reaction = || {
        M::Reaction(gateway_msg::Reaction { session: "s".into(), epoch: 1, class: "x".into(), ..Default::default() })
    };
    assert_eq!(bed.say(reaction()).len(), 1);
    bed.run(|a, now, out| a.handle_lease(now, false, out));
    assert_eq!(bed.say(reaction()), []);
    assert_eq!(bed.a.take_reactions_refused(), 1);
    assert_eq!(brief(&bed.say(join(1, (0, 0)))), ["not owner 1 hint 0"]);
    assert_eq!(bed.commit(op(1, b"a")), ["event 1/1 a 1"]);
    assert_eq!(bed.a.health(), Store::Ok);
}

#[test]
fn a_checkpoint_and_a_trimmed_tail_load_to_the_same_state() {
    let mut bed = Bed::joined(1);
    bed.a.config = Arc::new(AuthorityConfig { checkpoint_events: 4, tail_events: 6, ..Default::default() });
    for seq in 1..=21 {
        bed.commit(op(seq, b"x"));
    }
    assert_eq!(bed.record.checkpoint.as_ref().map(|c| c.ver), Some(20));
    assert_eq!(bed.record.entries.first().map(|e| e.ver), Some(15));
    let mut next = new(2);
    next.run(|a, now, out| a.start(now, out));
    (next.record, next.rev) = (bed.record, bed.rev);
    let claim = next.load();
    next.ok(&claim);
    assert_eq!((next.a.app(), next.a.ver(), next.a.epoch()), (bed.a.app(), 21, 2));
    assert_eq!(brief(&next.say(op_of(2, 21, b"x", 2))), ["committed 21 at 2/21 dup true"]);
}

#[test]
fn the_owners_own_events_wait_for_what_gateways_hold() {
    let mut bed = new(1);
    bed.a.app.1 = Some(at(500).wall);
    bed.run(|a, now, out| a.start(now, out));
    bed.now = at(600);
    let claim = bed.load();
    assert_eq!(bed.ok(&claim), []);
    assert_eq!(bed.a.poll_timeout(), Some(at(10_600).mono));
    bed.now = at(10_600);
    let w = bed.run(|a, now, out| a.handle_timeout(now, out));
    assert_eq!(brief(&w), ["write 1/1 if 1"]);
    assert_eq!((write(&w).entries[0].op_end, write(&w).lanes.len()), (true, 0));
}
