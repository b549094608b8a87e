#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::{
    id::LinkId,
    proto::{
        self, Code, Pos, client_frame, gateway_msg::M as Up, owner_msg as own, owner_msg::M as Down, server_frame::F,
    },
};

const LANE: &[u8] = b"lane-of-a";

struct Bench {
    s: Session,
    now: Now,
}

impl Bench {
    fn new() -> Self {
        Self { s: Session::new(SessionId::parse("g_1").unwrap()), now: at(1_000_000) }
    }

    /// A client, bound, joined and answered.
    fn live() -> Self {
        let mut b = Self::new();
        b.attach(1, 1, 0);
        b.route(1, 7);
        b.up(7, 70);
        b.owner(70, joined(1, 0));
        b.owner(70, attached(1, 101, 0));
        b.owner(70, state(1, 0, 101));
        b
    }

    fn run(&mut self, f: impl FnOnce(&mut Session, Now, &mut Vec<Action>)) -> Vec<Action> {
        let mut out = Vec::new();
        f(&mut self.s, self.now, &mut out);
        out
    }

    fn attach(&mut self, conn: u64, conn_seq: u32, seen: u64) -> Vec<Action> {
        let client = Client {
            conn: ConnId(conn),
            att: 100 + u32::try_from(conn).unwrap(),
            principal: "alice".into(),
            participant: "white".into(),
            role: 1,
            lane: Lane::parse(LANE).unwrap(),
            conn_seq,
            n: 1,
            seen: Pos { epoch: u64::from(seen > 0), ver: seen },
            reconnect: false,
        };
        self.run(|s, now, out| s.handle_attach(now, client, out))
    }

    fn route(&mut self, epoch: u64, boot: u64) -> Vec<Action> {
        let route = Route {
            epoch,
            boot: Boot(boot),
            node: "n".into(),
            addr: "127.0.0.1:1".into(),
            kind: "game:60+0".into(),
            ended: false,
            revision: 5,
            unowned_from_ms: 0,
        };
        self.run(|s, now, out| s.handle_route(now, &route, out))
    }

    fn up(&mut self, boot: u64, link: u64) -> Vec<Action> {
        self.run(|s, now, out| s.handle_link_up(now, Boot(boot), LinkId(link), out))
    }

    fn owner(&mut self, link: u64, msg: Down) -> Vec<Action> {
        self.run(|s, now, out| s.handle_owner_msg(now, LinkId(link), msg, out))
    }

    fn op(&mut self, conn: u64, seq: u64, attempt: u32, payload: &'static [u8]) -> Vec<Action> {
        let op = client_frame::Op {
            session: "g_1".into(),
            op: Some(proto::OpId { lane: bytes::Bytes::new(), seq }),
            payload: payload.into(),
            attempt,
            ..Default::default()
        };
        let arrival = Arrival { at: self.now.wall, ..Default::default() };
        self.run(|s, now, out| s.handle_op(now, ConnId(conn), op, &arrival, true, out))
    }

    fn tick(&mut self, seconds: u64) -> Vec<Action> {
        self.now = at(self.now.mono.0 + seconds * 1_000_000);
        self.run(Session::handle_timeout)
    }
}

fn at(us: u64) -> Now {
    Now { mono: Mono(us), wall: Wall(us) }
}

fn joined(epoch: u64, ver: u64) -> Down {
    Down::Joined(own::Joined { session: "g_1".into(), head: Some(Pos { epoch, ver }), resume: 3, ..Default::default() })
}

fn attached(epoch: u64, att: u32, ver: u64) -> Down {
    Down::Attached(own::Attached {
        session: "g_1".into(),
        epoch,
        att,
        head: Some(Pos { epoch, ver }),
        ..Default::default()
    })
}

fn state(epoch: u64, ver: u64, to_att: u32) -> Down {
    Down::State(own::State { session: "g_1".into(), at: Some(Pos { epoch, ver }), to_att, ..Default::default() })
}

fn event(epoch: u64, ver: u64, seq: u64) -> Down {
    let op = (seq > 0).then(|| proto::OpId { lane: LANE.into(), seq });
    Down::Event(own::Event { at: Some(Pos { epoch, ver }), op, flags: 1, actor: "white".into(), ..Default::default() })
}

fn frames(out: &[Action]) -> Vec<F> {
    out.iter().filter_map(|a| if let Action::Deliver { frame, .. } = a { Some(frame.clone()) } else { None }).collect()
}

fn sent(out: &[Action]) -> Vec<Up> {
    out.iter().filter_map(|a| if let Action::Send { msg, .. } = a { Some(msg.clone()) } else { None }).collect()
}

fn nack_code(out: &[Action]) -> Code {
    match frames(out).as_slice() {
        [F::Nack(n)] => n.code(),
        other => panic!("one nack expected: {other:?}"),
    }
}

#[test]
fn an_op_is_held_forwarded_and_settled_by_its_echo() {
    let mut b = Bench::live();
    let out = b.op(1, 1, 1, b"e2e4");
    assert!(matches!(sent(&out).as_slice(), [Up::Op(e)] if e.attempt == 1 && e.epoch == 1 && e.att == 101), "{out:?}");
    assert_eq!(b.s.held().count(), 1);
    let out = b.owner(70, event(1, 1, 1));
    assert_eq!(b.s.held().count(), 0);
    let Some(F::Event(e)) = frames(&out).pop() else { panic!("{out:?}") };
    assert_eq!((e.at, e.op), (Some(Pos { epoch: 1, ver: 1 }), Some(proto::OpId { lane: bytes::Bytes::new(), seq: 1 })));
}

#[test]
fn a_lost_owner_gets_join_attach_the_same_bytes_and_replay_done_in_this_order() {
    let mut b = Bench::live();
    b.op(1, 1, 1, b"e2e4");
    let before = b.s.held().next().unwrap().held.clone();
    b.run(|s, now, out| s.handle_link_down(now, LinkId(70), out));
    b.op(1, 2, 1, b"d2d4");
    let out = b.route(3, 8);
    assert!(
        out.contains(&Action::Unbound { boot: Boot(7) }) && out.contains(&Action::Bound { boot: Boot(8) }),
        "{out:?}"
    );
    let out = sent(&b.up(8, 80));
    let [Up::Join(_), Up::Attach(_), Up::Presence(_), Up::Op(first), Up::Op(second), Up::ReplayDone(done)] =
        out.as_slice()
    else {
        panic!("{out:?}")
    };
    assert_eq!((first.attempt, second.attempt, done.ops, first.epoch), (2, 1, 2, 3));
    assert_eq!(first.held, before);
    assert!(frames(&b.owner(70, event(1, 1, 1))).is_empty(), "the old owner is not heard any more");
    let out = frames(&b.owner(80, joined(3, 0)));
    assert!(matches!(out.as_slice(), [F::Status(s)] if s.epoch == 3), "{out:?}");
    b.owner(80, event(3, 1, 1));
    assert_eq!(b.s.held().count(), 1);
}

#[test]
fn a_second_copy_with_the_same_digest_only_moves_the_answer() {
    let mut b = Bench::live();
    b.op(1, 1, 1, b"e2e4");
    assert!(sent(&b.op(1, 1, 2, b"e2e4")).is_empty());
    assert_eq!(nack_code(&b.op(1, 1, 1, b"other")), Code::OpIdReused);
    assert_eq!(nack_code(&b.op(1, 1, 3, b"other")), Code::TooManyInflight, "a resend hears no final word from us");
}

#[test]
fn after_a_retryable_nack_the_lane_goes_back() {
    let mut b = Bench::live();
    b.op(1, 1, 1, b"a");
    let nack = own::Nack {
        epoch: 1,
        op: Some(proto::OpId { lane: LANE.into(), seq: 1 }),
        code: Code::StoreUnavailable.into(),
        ..Default::default()
    };
    assert_eq!(nack_code(&b.owner(70, Down::Nack(nack))), Code::StoreUnavailable);
    let out = b.op(1, 2, 1, b"b");
    assert!(matches!(frames(&out).as_slice(), [F::Nack(n)] if n.code() == Code::Gap && n.expected_seq == 1));
    assert_eq!(sent(&b.op(1, 1, 2, b"a")).len(), 1);
    assert_eq!(sent(&b.op(1, 2, 2, b"b")).len(), 1);
}

#[test]
fn a_held_op_expires_with_an_unknown_outcome_and_the_late_echo_still_wins() {
    let mut b = Bench::live();
    b.op(1, 1, 1, b"a");
    let out = b.tick(13);
    assert!(matches!(frames(&out).as_slice(), [F::Nack(n)] if n.code() == Code::HoldExpired), "{out:?}");
    assert!(matches!(frames(&b.owner(70, event(1, 1, 1))).as_slice(), [F::Event(_)]));
    assert_eq!(sent(&b.op(1, 2, 1, b"b")).len(), 1, "the lane is not stuck at the expired one");
}

#[test]
fn an_attach_without_an_owner_is_answered_in_a_second_and_ends_at_the_hold_ttl() {
    let mut b = Bench::new();
    assert_eq!(b.attach(1, 1, 0), vec![Action::Resolve]);
    assert!(matches!(frames(&b.tick(1)).as_slice(), [F::Status(_)]));
    let out = b.tick(30);
    assert!(matches!(frames(&out).as_slice(), [F::Detached(d)] if d.code() == Code::NoOwner), "{out:?}");
    assert!(b.s.is_idle());
    b.attach(1, 1, 0);
    let out = b.run(Session::handle_absent);
    assert!(matches!(frames(&out).as_slice(), [F::Detached(d)] if d.code() == Code::NoSession));
}

#[test]
fn the_higher_conn_seq_stays_whichever_comes_first() {
    let mut b = Bench::live();
    assert!(b.attach(2, 2, 0).contains(&Action::Kick { conn: ConnId(1), close: 4006 }));
    assert!(b.attach(3, 1, 0).contains(&Action::Kick { conn: ConnId(3), close: 4006 }));
}

#[test]
fn one_who_comes_back_is_served_from_the_ring_with_the_current_epoch() {
    let mut b = Bench::live();
    b.owner(70, event(1, 1, 0));
    b.owner(70, event(1, 2, 0));
    b.route(2, 7);
    b.owner(70, joined(2, 2));
    b.attach(2, 2, 1);
    let out = frames(&b.owner(70, attached(2, 102, 2)));
    let [F::Attached(a), F::Event(e)] = out.as_slice() else { panic!("{out:?}") };
    assert_eq!((a.resume, e.at), (1, Some(Pos { epoch: 2, ver: 2 })));
}

#[test]
fn the_first_delivery_of_a_stamped_event_is_the_one_that_counts() {
    let mut b = Bench::live();
    b.owner(70, event(1, 1, 0));
    let tell = |b: &mut Bench, us| b.run(|s, now, out| s.handle_delivered(now, ConnId(1), 1, Wall(us), out));
    assert_eq!(sent(&tell(&mut b, 900)).len(), 1);
    assert!(tell(&mut b, 950).is_empty());
    b.op(1, 1, 1, b"a");
    let held = <proto::HeldOp as prost::Message>::decode(b.s.held().next().unwrap().held.clone()).unwrap();
    let stamp = <proto::Stamp as prost::Message>::decode(held.stamp).unwrap();
    assert_eq!((stamp.sent_at_us, stamp.sent_ver, stamp.arrived_at_us), (900, 1, 1_000_000));
}

#[test]
fn the_retry_of_a_refused_op_keeps_its_first_stamp_and_another_payload_does_not() {
    let mut b = Bench::live();
    b.route(2, 0); // parked
    assert_eq!(nack_code(&b.op(1, 1, 1, b"a")), Code::NoOwner);
    let arrived = |b: &Bench| {
        let held = <proto::HeldOp as prost::Message>::decode(b.s.held().next().unwrap().held.clone()).unwrap();
        <proto::Stamp as prost::Message>::decode(held.stamp).unwrap().arrived_at_us
    };
    b.tick(7);
    b.route(3, 8);
    b.op(1, 1, 2, b"a");
    assert_eq!(arrived(&b), 1_000_000);
    b.tick(13);
    b.op(1, 1, 3, b"other");
    assert_eq!(arrived(&b), 21_000_000);
}

#[test]
fn a_sick_store_refuses_meetings_at_once_and_games_after_five_seconds() {
    let mut b = Bench::live();
    let sick = |s: own::health::Store| Down::Health(own::Health { store: s.into(), ..Default::default() });
    b.owner(70, sick(own::health::Store::Down));
    assert!(sent(&b.op(1, 1, 1, b"a")).is_empty());
    assert_eq!(nack_code(&b.tick(5)), Code::StoreUnavailable);
    b.op(1, 1, 2, b"a");
    let out = b.owner(70, sick(own::health::Store::Ok));
    assert!(matches!(sent(&out).as_slice(), [Up::Op(e)] if e.attempt == 1), "{out:?}");
}

fn not_owner(your_epoch: u64) -> Down {
    Down::NotOwner(own::NotOwner { session: "g_1".into(), your_epoch, hint: None })
}

#[test]
fn refusals_of_an_earlier_join_do_not_close_a_session_for_ever() {
    let mut b = Bench::live();
    b.route(2, 7);
    b.owner(70, not_owner(2));
    assert!(matches!(sent(&b.tick(2)).as_slice(), [Up::Join(_), ..]));
    b.owner(70, not_owner(2));
    let again = sent(&b.owner(70, joined(2, 0)));
    assert!(matches!(again.as_slice(), [Up::Join(_), Up::Attach(_), ..]), "{again:?}");
    b.owner(70, joined(2, 0));
    assert!(matches!(sent(&b.op(1, 1, 1, b"a")).as_slice(), [Up::Op(_)]));
}

#[test]
fn ops_of_one_who_left_wait_for_a_sick_store() {
    let mut b = Bench::live();
    let sick = |s: own::health::Store| Down::Health(own::Health { store: s.into(), ..Default::default() });
    b.owner(70, sick(own::health::Store::Down));
    b.op(1, 1, 1, b"a");
    b.run(|s, now, out| s.handle_detach(now, ConnId(1), 2, out));
    b.tick(6);
    assert_eq!(b.s.held().count(), 1);
    assert!(matches!(sent(&b.owner(70, sick(own::health::Store::Ok))).as_slice(), [Up::Op(_)]));
}

#[test]
fn a_new_join_forgets_what_an_earlier_authority_said_of_the_store() {
    let mut b = Bench::live();
    b.owner(70, Down::Health(own::Health { store: own::health::Store::Down.into(), ..Default::default() }));
    b.route(2, 7);
    b.owner(70, joined(2, 0));
    assert!(matches!(sent(&b.op(1, 1, 1, b"a")).as_slice(), [Up::Op(_)]));
}

#[test]
fn a_catch_up_cut_short_by_a_new_epoch_is_asked_for_again() {
    let mut b = Bench::live();
    b.owner(70, event(1, 1, 0));
    b.owner(70, event(1, 2, 0));
    b.run(|s, now, out| {
        s.handle_resync(now, ConnId(1), client_frame::Resync { snapshot: true, ..Default::default() }, out)
    });
    let Down::Event(first) = event(1, 1, 0) else { panic!() };
    b.owner(70, Down::Event(own::Event { to_att: 101, ..first }));
    b.route(2, 7);
    let out = sent(&b.owner(70, joined(2, 2)));
    assert!(out.iter().any(|m| matches!(m, Up::Pull(p) if p.att == 101)), "{out:?}");
}
