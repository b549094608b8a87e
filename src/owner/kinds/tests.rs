//! The kinds through their one interface, as the authority uses it.

use holdfast_core::{
    proto::{Code, Stamp, gateway_msg::Origin},
    record::{App as _, Reject, STAMP_DELIVERY},
    time::{Mono, Now, Wall},
};
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};

use super::{code, testing::Bench};

fn app_code(result: Result<Vec<String>, Reject>) -> u32 {
    let reject = result.expect_err("a refusal");
    assert_eq!(reject.code, Code::Rejected);
    assert!(!reject.detail.is_empty());
    reject.app_code
}

fn stamp(sent_ver: u64, sent_at_us: u64, arrived_at_us: u64, srtt_us: u32) -> Stamp {
    Stamp { arrived_at_us, sent_at_us, sent_ver, srtt_us, clock_id: 7, ..Stamp::default() }
}

#[test]
fn kinds_and_parameters() {
    let session = holdfast_core::id::SessionId::parse("s").expect("id");
    for kind in ["game", "game:180+2", "meeting", "document"] {
        assert!(super::new(kind, &session).is_some(), "{kind}");
    }
    for kind in ["", "chess", "game:", "game:0+0", "game:x+1", "meeting:1", "document:", "Game", "game:180+2:3"] {
        assert!(super::new(kind, &session).is_none(), "{kind}");
    }
}

#[test]
fn a_game_goes_from_the_first_move_to_mate() {
    let mut game = Bench::new("game:180+2");
    assert_eq!(app_code(game.op("black", 0, r#"{"move":"e7e5"}"#)), code::NOT_YOUR_TURN);
    assert_eq!(app_code(game.op("", 0, r#"{"move":"e2e4"}"#)), code::NOT_YOUR_SEAT);
    assert_eq!(app_code(game.op("white", 0, r#"{"move":"e2e5"}"#)), code::ILLEGAL_MOVE);
    let moved = game.op("white", 0, r#"{"move":"f2f3"}"#).expect("legal");
    let expected = r#"{"move":"f2f3","san":"f3","fen":"rnbqkbnr/pppppppp/8/8/8/5P2/PPPPP1PP/RNBQKBNR b KQkq - 0 1","clock_us":{"white":182000000,"black":180000000},"charged_us":0,"credited_us":0}"#;
    assert_eq!(moved, [expected]);
    assert_eq!(game.entries[0].flags & STAMP_DELIVERY, STAMP_DELIVERY);
    game.op("black", 0, r#"{"move":"e7e5"}"#).expect("legal");
    game.op("white", 0, r#"{"move":"g2g4"}"#).expect("legal");
    game.assert_replays("game:180+2");
    let mate = game.op("black", 0, r#"{"move":"d8h4"}"#).expect("legal");
    assert!(mate[0].contains(r#""san":"Qh4#""#), "{mate:?}");
    assert_eq!(mate[1], r#"{"end":"mate","winner":"black"}"#);
    assert_eq!(app_code(game.op("white", 0, r#"{"resign":true}"#)), code::GAME_OVER);
    assert!(game.snapshot().contains(r#""result":{"end":"mate","winner":"black"}"#));
    assert_eq!(game.app.deadline(), None);
    game.assert_replays("game:180+2");
}

#[test]
fn draws_are_offered_declined_and_agreed() {
    let mut game = Bench::new("game");
    assert_eq!(app_code(game.op("white", 0, r#"{"draw":"accept"}"#)), code::DRAW);
    let offered = game.op("white", 0, r#"{"draw":"offer"}"#).expect("offer");
    assert_eq!(offered, [r#"{"draw":"offer","by":"white"}"#]);
    assert_eq!(app_code(game.op("white", 0, r#"{"draw":"offer"}"#)), code::DRAW);
    game.op("white", 0, r#"{"move":"e2e4"}"#).expect("an own move keeps the offer");
    game.op("black", 0, r#"{"move":"e7e5"}"#).expect("a move declines");
    assert_eq!(app_code(game.op("black", 0, r#"{"draw":"accept"}"#)), code::DRAW);
    game.op("black", 0, r#"{"draw":"offer"}"#).expect("offer");
    game.assert_replays("game");
    let agreed = game.op("white", 0, r#"{"draw":"accept"}"#).expect("accept");
    assert_eq!(agreed, [r#"{"end":"agreement","winner":null}"#]);
    game.assert_replays("game");
}

#[test]
fn time_runs_from_delivery_to_arrival_and_lag_is_credited() {
    let mut game = Bench::new("game:60+0");
    let play = |game: &mut Bench, who: &str, uci: &str, stamp: Stamp| {
        let data = format!(r#"{{"move":"{uci}"}}"#);
        game.stamped(who, 0, data.as_bytes(), &stamp, Origin::Live).expect("legal").join("")
    };
    play(&mut game, "white", "e2e4", stamp(0, 0, 5_000_000, 80_000));
    // delivered at 10 s, answered at 13 s over a line of 80 ms
    let answer = play(&mut game, "black", "e7e5", stamp(1, 10_000_000, 13_000_000, 80_000));
    assert!(answer.contains(r#""black":57080000},"charged_us":2920000,"credited_us":80000"#), "{answer}");
    let facts = &game.entries[1].facts;
    assert!(facts.contains(r#""charged_us":2920000,"credited_us":80000,"lag_us":80000"#), "{facts}");
    // not delivered on this gateway: no estimate, charged 0
    let answer = play(&mut game, "white", "g1f3", stamp(0, 0, 99_000_000, 80_000));
    assert!(answer.contains(r#""white":60000000,"black":57080000},"charged_us":0,"credited_us":0"#), "{answer}");
    game.assert_replays("game:60+0");
    // far too late: the answer is a flag, not a move
    let answer = play(&mut game, "black", "b8c6", stamp(3, 100_000_000, 160_000_000, 0));
    assert_eq!(answer, r#"{"end":"flag","winner":"white"}"#);
    assert!(game.snapshot().contains(r#""black":0"#));
    game.assert_replays("game:60+0");
}

#[test]
fn flags_need_evidence_or_the_backstop() {
    let mut game = Bench::new("game:60+0");
    game.op("white", 0, r#"{"move":"e2e4"}"#).expect("legal");
    let deadline = game.app.deadline().expect("black's time runs");
    assert_eq!((deadline.participant.as_str(), deadline.after_ver), ("black", 1));
    assert_eq!(deadline.budget_us, 61_170_000);
    assert_eq!(deadline.at_us, game.wall_us + 71_170_000);
    let claim =
        |game: &mut Bench, arrived| game.stamped("black", 0, b"", &stamp(1, 1_000_000, arrived, 0), Origin::Deadline);
    assert_eq!(app_code(claim(&mut game, 62_169_999)), code::NO_FLAG);
    let now = |us| Now { mono: Mono(0), wall: Wall(us) };
    assert_eq!(game.app.handle_timeout(now(deadline.at_us - 1)), []);
    assert_eq!(game.app.handle_timeout(now(deadline.at_us)).len(), 1);
    // a takeover starts the owner's own wait anew
    game.app.handle_claimed(&holdfast_core::proto::record::Header::default(), now(deadline.at_us));
    assert_eq!(game.app.handle_timeout(now(deadline.at_us)), []);
    assert_eq!(claim(&mut game, 62_170_000).expect("stands"), [r#"{"end":"flag","winner":"white"}"#]);
    assert_eq!(game.app.poll_timeout(), None);
}

#[test]
fn hands_stay_in_order_and_repeats_change_nothing() {
    let mut meeting = Bench::new("meeting");
    for (who, up) in [("ann", true), ("bob", true), ("ann", true), ("cy", true), ("bob", false), ("bob", false)] {
        let events = meeting.op(who, 0, &format!(r#"{{"hand":{up}}}"#)).expect("hand");
        assert_eq!(events, [format!(r#"{{"hand":{up},"by":"{who}"}}"#)]);
    }
    assert_eq!(meeting.snapshot(), r#"{"hands":["ann","cy"]}"#);
    assert_eq!(app_code(meeting.op(&"x".repeat(129), 0, r#"{"hand":true}"#)), code::TOO_MUCH);
    assert!(meeting.app.reactions());
    meeting.assert_replays("meeting");
}

#[test]
fn a_document_answers_each_mistake() {
    let mut document = Bench::new("document");
    document.op("a", 0, r#"{"ins":[0,"héllo"]}"#).expect("insert");
    assert_eq!(document.op("b", 1, r#"{"del":[1,2]}"#).expect("delete"), [r#"{"del":[1,2]}"#]);
    assert_eq!(document.snapshot(), r#"{"ver":2,"text":"hlo"}"#);
    assert_eq!(app_code(document.op("a", 2, r#"{"ins":[4,"x"]}"#)), code::OUT_OF_RANGE);
    assert_eq!(app_code(document.op("a", 2, r#"{"del":[3,1]}"#)), code::OUT_OF_RANGE);
    assert_eq!(app_code(document.op("a", 2, r#"{"del":[0,18446744073709551615]}"#)), code::OUT_OF_RANGE);
    assert_eq!(app_code(document.op("a", 2, r#"{"del":[0,0]}"#)), code::BAD_PAYLOAD);
    assert_eq!(app_code(document.op("a", 2, r#"{"ins":[0,""]}"#)), code::BAD_PAYLOAD);
    assert_eq!(app_code(document.op("a", 2, r#"{"ins":[0,"\u0000"]}"#)), code::BAD_PAYLOAD);
    assert_eq!(app_code(document.op("a", 2, r#"{"ins":[0,"x"],"del":[0,1]}"#)), code::BAD_PAYLOAD);
    assert_eq!(document.op("a", 3, r#"{"ins":[0,"x"]}"#).expect_err("future").code, Code::BaseConflict);
    let big = format!(r#"{{"ins":[0,"{}"]}}"#, "x".repeat(64 * 1024));
    assert_eq!(app_code(document.op("a", 2, &big)), code::TOO_MUCH);
    for _ in 0..super::document::TAIL_EDITS {
        let ver = document.ver();
        document.op("a", ver, r#"{"ins":[0,"x"]}"#).expect("insert");
    }
    assert_eq!(document.op("a", 1, r#"{"ins":[0,"x"]}"#).expect_err("old").code, Code::BaseConflict);
    document.op("a", 2, r#"{"ins":[0,"x"]}"#).expect("the oldest base of the tail");
    document.assert_replays("document");
}

#[test]
fn a_deletion_leaves_what_others_inserted() {
    let mut document = Bench::new("document");
    document.op("a", 0, r#"{"ins":[0,"abcdef"]}"#).expect("insert");
    document.op("b", 1, r#"{"ins":[3,"XY"]}"#).expect("insert");
    let events = document.op("a", 1, r#"{"del":[1,4]}"#).expect("delete");
    assert_eq!(events, [r#"{"del":[5,2]}"#, r#"{"del":[1,2]}"#]);
    assert_eq!(document.snapshot(), r#"{"ver":4,"text":"aXYf"}"#);
    assert_eq!(document.op("c", 1, r#"{"del":[2,2]}"#).expect("all gone"), [r#"{"del":[1,0]}"#]);
    document.assert_replays("document");
}

/// A client that only knows the events arrives at the owner's text, whatever bases the ops had.
#[test]
fn replay_of_a_documents_events_is_its_snapshot() {
    for seed in 0..50 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut document = Bench::new("document");
        let mut lengths = vec![0_u64];
        let mut text: Vec<char> = Vec::new();
        for _ in 0..200 {
            let base = document.ver() - rng.random_range(0..=document.ver().min(30));
            let length = lengths[usize::try_from(base).expect("ver")];
            let op = if length == 0 || rng.random_bool(0.6) {
                let word = ["x", "né", "🦀ok", "\\\"\\n"][rng.random_range(0..4)];
                format!(r#"{{"ins":[{},"{word}"]}}"#, rng.random_range(0..=length))
            } else {
                let at = rng.random_range(0..length);
                format!(r#"{{"del":[{at},{}]}}"#, rng.random_range(1..=(length - at).min(5)))
            };
            for event in document.op("p", base, &op).unwrap_or_else(|e| panic!("seed {seed}: {op} at {base}: {e:?}")) {
                replay(&mut text, &event);
                lengths.push(text.len() as u64);
            }
        }
        let expected: serde_json::Value = serde_json::from_str(&document.snapshot()).expect("JSON");
        assert_eq!(expected["text"], text.iter().collect::<String>(), "seed {seed}");
        document.assert_replays("document");
    }
}

fn replay(text: &mut Vec<char>, event: &str) {
    let event: serde_json::Value = serde_json::from_str(event).expect("JSON");
    let number = |v: &serde_json::Value| usize::try_from(v.as_u64().expect("number")).expect("usize");
    if let Some(ins) = event.get("ins") {
        let at = number(&ins[0]);
        text.splice(at..at, ins[1].as_str().expect("text").chars());
    } else {
        let at = number(&event["del"][0]);
        text.drain(at..at + number(&event["del"][1]));
    }
}

#[test]
fn no_bytes_make_a_kind_panic() {
    let seeds = [
        r#"{"move":"e2e4"}"#,
        r#"{"resign":true}"#,
        r#"{"draw":"offer"}"#,
        r#"{"hand":true}"#,
        r#"{"ins":[0,"x"]}"#,
        r#"{"del":[0,1]}"#,
        r#"{"ins":[18446744073709551615,"x"]}"#,
        r#"{"del":[9007199254740991,9007199254740991]}"#,
        "[]",
        "null",
        "1e999",
        r#"{"move":"a7a8q","move":"x"}"#,
        r#"{"move":null}"#,
        r#"{"hand":"true"}"#,
    ];
    let mut rng = SmallRng::seed_from_u64(1);
    for kind in ["game", "meeting", "document"] {
        let mut bench = Bench::new(kind);
        for round in 0..3_000_u64 {
            let mut bytes = seeds[rng.random_range(0..seeds.len())].as_bytes().to_vec();
            for _ in 0..rng.random_range(0..4) {
                let at = rng.random_range(0..=bytes.len());
                let to = rng.random_range(at..=bytes.len().min(at + 3));
                bytes.splice(at..to, (0..rng.random_range(0..4)).map(|_| rng.random::<u8>()).collect::<Vec<_>>());
            }
            let who = ["white", "black", "", "p"][rng.random_range(0..4)];
            let origin = if rng.random_bool(0.1) { Origin::Deadline } else { Origin::Live };
            let stamp = stamp(rng.random_range(0..3), rng.random(), rng.random(), rng.random());
            if let Err(reject) = bench.stamped(who, rng.random_range(0..=round), &bytes, &stamp, origin) {
                assert!(!reject.detail.is_empty() && reject.detail.len() < 1_024, "{reject:?}");
            }
            let _ = bench.app.restore(&bytes);
            let checkpoint = bench.app.checkpoint();
            bench.app.restore(&checkpoint).expect("own checkpoint");
            if bench.app.restore(b"{").is_ok() {
                panic!("half a state was taken");
            }
        }
    }
}
