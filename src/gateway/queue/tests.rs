use holdfast_core::{
    proto::{OpId, Pos, server_frame as s},
    time::Wall,
};

use super::*;

const BUDGET: Budget = Budget {
    bytes_max: 4000,
    reaction_bytes_max: 1000,
    reaction_ttl: Duration::from_secs(1),
    slow_timeout: Duration::from_secs(5),
    sessions_max: 2,
};

fn queue() -> Queue {
    let mut q = Queue::new(Form::Json, BUDGET);
    for name in ["a", "b"] {
        assert!(q.enter(&SessionId::parse(name).unwrap(), 1, None));
    }
    q
}

fn at(ver: u64) -> Option<Pos> {
    Some(Pos { epoch: 1, ver })
}

fn event(session: &str, ver: u64, op: Option<u64>, bytes: usize) -> Outgoing {
    let op = op.map(|seq| OpId { seq, ..OpId::default() });
    F::Event(s::Event {
        session: session.into(),
        at: at(ver),
        op,
        content: 2,
        payload: vec![0; bytes].into(),
        ..s::Event::default()
    })
    .into()
}

fn reaction(actor: &str, epoch: u64, bytes: usize) -> Outgoing {
    let payload = vec![0; bytes].into();
    F::Reaction(s::Reaction {
        session: "a".into(),
        epoch,
        class: "cursor".into(),
        actor: actor.into(),
        content: 2,
        payload,
        ..s::Reaction::default()
    })
    .into()
}

fn snapshot(session: &str, ver: u64, bytes: usize) -> Outgoing {
    F::Snapshot(s::Snapshot {
        session: session.into(),
        at: at(ver),
        content: 2,
        payload: vec![0; bytes].into(),
        ..s::Snapshot::default()
    })
    .into()
}

fn now(us: u64) -> Now {
    Now { mono: Mono(us), wall: Wall(us) }
}

fn drain(q: &mut Queue, us: u64) -> Vec<String> {
    std::iter::from_fn(|| q.pop(now(us))).map(|f| name(f.0.frame())).collect()
}

fn name(f: &F) -> String {
    match f {
        F::Event(e) => format!("{}{}", e.session, e.at.unwrap().ver),
        F::Ack(a) => format!("ack {}@{}", a.op.as_ref().unwrap().seq, a.at.unwrap().ver),
        F::Snapshot(s) => format!("snapshot {}{}", s.session, s.at.unwrap().ver),
        F::Reaction(r) => format!("reaction {}", r.actor),
        other => format!("{other:?}"),
    }
}

#[test]
fn frames_come_out_in_order_and_nothing_is_kept() {
    let mut q = queue();
    for ver in 1..=6 {
        q.push(Mono(0), event("a", ver, None, 10));
    }
    assert_eq!(drain(&mut q, 0), ["a1", "a2", "a3", "a4", "a5", "a6"]);
    assert_eq!((q.bytes(), q.items.capacity()), (0, 0));
}

#[test]
fn reactions_go_first_and_the_newest_of_a_sender_wins() {
    let mut q = queue();
    for actor in ["p1", "p2", "p1", "p3", "p1"] {
        q.push(Mono(0), reaction(actor, 1, 110));
    }
    assert_eq!(drain(&mut q, 0), ["reaction p2", "reaction p3", "reaction p1"]);
    q.push(Mono(0), reaction("p1", 1, 150));
    for ver in 1..=5 {
        q.push(Mono(0), event("a", ver, None, 500));
    }
    assert!(q.reaction_bytes == 0 && q.over_since.is_some());
    assert_eq!(drain(&mut q, 0)[0], "a1");
}

#[test]
fn a_backlog_becomes_acks_and_one_snapshot() {
    let mut q = queue();
    q.push(Mono(0), event("b", 1, None, 10));
    for ver in 1..=5 {
        q.push(Mono(0), event("a", ver, (ver == 2).then_some(7), 500));
    }
    q.push(Mono(0), event("a", 6, Some(8), 500));
    // dropped as a whole; later events of the session are not queued behind the hole
    assert_eq!(q.take_slow(), [SessionId::parse("a").unwrap()]);
    assert!(q.take_slow().is_empty() && q.slow_at().is_none());
    q.push(Mono(0), event("b", 2, None, 10));
    q.push(Mono(0), event("a", 7, None, 10));
    q.push(Mono(0), snapshot("a", 7, 10));
    q.push(Mono(0), event("a", 8, None, 10));
    assert_eq!(drain(&mut q, 0), ["b1", "ack 7@2", "ack 8@6", "b2", "snapshot a7", "a8"]);
    assert_eq!(q.backlogs_dropped, 1);
}

#[test]
fn the_largest_backlog_gives_way_not_the_newest_speaker() {
    let mut q = queue();
    for ver in 1..=4 {
        q.push(Mono(0), event("a", ver, None, 500));
    }
    for ver in 1..=2 {
        q.push(Mono(0), event("b", ver, None, 500));
    }
    assert_eq!(drain(&mut q, 0), ["b1", "b2"]);
}

#[test]
fn a_snapshot_larger_than_the_queue_passes_when_there_is_room_else_it_is_asked_again() {
    let mut q = queue();
    q.push(Mono(0), snapshot("a", 1, 9000));
    q.push(Mono(0), snapshot("b", 1, 9000));
    assert!(q.take_slow().is_empty(), "the queue is still full");
    assert_eq!(drain(&mut q, 0), ["snapshot a1"]);
    assert_eq!(q.take_slow(), [SessionId::parse("b").unwrap()]);
}

#[test]
fn a_client_that_takes_nothing_is_slow_after_the_timeout() {
    let mut q = queue();
    for ver in 1..=4 {
        q.push(Mono(9), event("a", ver, None, 500));
        q.push(Mono(9), event("b", ver, None, 500));
    }
    for seq in 0..30 {
        q.push(
            Mono(9),
            F::Ack(s::Ack {
                session: "a".into(),
                op: Some(OpId { seq, ..OpId::default() }),
                at: at(1),
                dup: false,
                held_us: 0,
            })
            .into(),
        );
    }
    assert!(q.take_slow().is_empty());
    assert_eq!(q.slow_at(), Some(Mono(5_000_009)));
    for seq in 0..60 {
        q.push(
            Mono(10),
            F::Ack(s::Ack {
                session: "a".into(),
                op: Some(OpId { seq, ..OpId::default() }),
                at: at(1),
                dup: false,
                held_us: 0,
            })
            .into(),
        );
    }
    assert_eq!(q.slow_at(), Some(Mono(9)), "what is never dropped is bounded by twice the budget");
}

#[test]
fn reactions_are_checked_again_when_they_are_written() {
    let mut q = queue();
    q.push(Mono(0), reaction("late", 1, 1));
    q.push(Mono(900_000), reaction("stale", 1, 1));
    q.push(Mono(900_000), F::Status(s::Status { session: "a".into(), state: 1, epoch: 2, ver: 1 }).into());
    q.push(Mono(900_000), reaction("good", 2, 1));
    let out = drain(&mut q, 1_100_000);
    assert!(out.len() == 2 && out[0].starts_with("Status") && out[1] == "reaction good", "{out:?}");
    assert_eq!(q.reactions_dropped, 2);
}

#[test]
fn sessions_are_bounded_and_leave_with_detached() {
    let mut q = queue();
    let c = SessionId::parse("c").unwrap();
    assert!(!q.enter(&c, 1, None));
    let detached = |n| F::Detached(s::Detached { session: "a".into(), code: 404, retry_after_ms: 0, n });
    q.enter(&SessionId::parse("a").unwrap(), 2, None);
    q.push(Mono(0), detached(1).into());
    assert!(!q.enter(&c, 1, None), "the older attach's refusal does not end the newer");
    q.push(Mono(0), detached(2).into());
    assert!(q.enter(&c, 1, None));
}

#[test]
fn ops_of_a_lane_that_is_not_the_hellos_are_named() {
    let mut q = queue();
    q.enter(&SessionId::parse("a").unwrap(), 1, Some(Lane::parse(b"12345678").unwrap()));
    q.push(Mono(0), event("a", 1, Some(3), 1));
    let (out, _) = q.pop(now(0)).unwrap();
    assert!(matches!(out.frame(), F::Event(e) if e.op.as_ref().unwrap().lane == "12345678"));
}
