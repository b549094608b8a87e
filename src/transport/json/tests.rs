use bytes::Bytes;
use holdfast_core::proto::{Code, Content, OpId, Pos, Rejected, client_frame as c, server_frame as s};

use super::*;
use crate::transport::Decoded;

fn all(text: &str) -> Vec<Decoded> {
    let mut out = Vec::new();
    decode(text, 65_536, |d| out.push(d));
    out
}

fn one(text: &str) -> c::F {
    match all(text).as_slice() {
        [Decoded::Frame(f)] => f.clone(),
        other => panic!("{text}: {other:?}"),
    }
}

fn text(f: s::F) -> String {
    String::from_utf8(encode(&f)).unwrap()
}

#[test]
fn the_examples_of_the_design_are_understood() {
    let hello = r#"{"t":"hello","token":"eyJ","lane":"jxI0VniavN4","conn_seq":3,"client":"holdfast-js/0.1","features":["receipts"],"attempt":2,"ticket":"AQ","resume":"AQ","new":[1]}"#;
    let c::F::Hello(h) = one(hello) else { panic!() };
    assert_eq!((h.lane.len(), h.conn_seq, h.attempt, &h.features[..]), (8, 3, 2, &["receipts".to_owned()][..]));
    let c::F::Attach(a) =
        one(r#"{"t":"attach","session":"g_8Kd2","n":1,"seen":{"epoch":7,"ver":41},"role":"spectator"}"#)
    else {
        panic!()
    };
    assert_eq!((a.n, a.last_seen, a.role), (1, Some(Pos { epoch: 7, ver: 41 }), 2));
    let op = r#"{"t":"op","session":"g_8Kd2","op":12,"settled":12,"base":41,"kind":0,"attempt":2,"receipt":"AQ","data":{"move": "e2e4"}}"#;
    let c::F::Op(op) = one(op) else { panic!() };
    assert_eq!(
        (op.op.clone(), op.attempt, op.content()),
        (Some(OpId { seq: 12, ..OpId::default() }), 2, Content::Json)
    );
    assert_eq!(op.payload, Bytes::from_static(br#"{"move": "e2e4"}"#));
    assert_eq!(one(r#"{"t":"ping","n":4}"#), c::F::Ping(c::Ping { n: 4 }));
    assert_eq!(one(r#"{"t":"bye"}"#), c::F::Bye(c::Bye::default()));
}

#[test]
fn payloads_pass_byte_for_byte() {
    for data in ["null", "1.50e+3", r#""\u00e9\n""#, "[1,  2]", r#"{"b":1,"a":1,"b":2}"#, "12345678901234567890123"] {
        let c::F::Op(op) = one(&format!(r#"{{"t":"op","session":"s","op":1,"data":{data}}}"#)) else { panic!() };
        assert_eq!(op.payload, data.as_bytes(), "{data}");
        let event = s::Event { session: "s".into(), content: op.content, payload: op.payload, ..s::Event::default() };
        assert!(text(s::F::Event(event)).ends_with(&format!(r#""data":{data}}}"#)));
    }
    let c::F::Op(op) = one(r#"{"t":"op","session":"s","op":1,"b64":"_wA="}"#) else { panic!() };
    assert_eq!((&op.payload[..], op.content(), op.attempt), (&[0xff, 0][..], Content::Bytes, 1));
}

#[test]
fn ops_of_other_lanes_are_strings() {
    let c::F::Op(op) = one(r#"{"t":"op","session":"s","op":"AAECAwQFBgc:7"}"#) else { panic!() };
    assert_eq!(op.op, Some(OpId { lane: vec![0, 1, 2, 3, 4, 5, 6, 7].into(), seq: 7 }));
    let ack = s::Ack { session: "s".into(), op: op.op, at: Some(Pos { epoch: 8, ver: 42 }), dup: true, held_us: 5 };
    assert_eq!(
        text(s::F::Ack(ack)),
        r#"{"t":"ack","session":"s","op":"AAECAwQFBgc:7","epoch":8,"ver":42,"dup":true,"held_us":5}"#
    );
}

#[test]
fn a_line_break_inside_data_is_one_bad_frame_and_no_frame_is_smuggled() {
    let smuggled =
        "{\"t\":\"op\",\"session\":\"s\",\"op\":1,\"data\":[1,\n{\"t\":\"bye\"}\n]}\n{\"t\":\"ping\",\"n\":1}";
    let out = all(smuggled);
    assert!(matches!(&out[..], [Decoded::Bad(d), Decoded::Frame(c::F::Ping(_))] if d.contains("CR or LF")), "{out:?}");
    assert!(matches!(&all("{\"t\":\"op\",\"session\":\"s\",\"op\":1,\"data\":[1,\r2]}")[..], [Decoded::Bad(_)]));
    // an owner's payload cannot break out either
    let event = s::Event {
        session: "s".into(),
        content: Content::Json.into(),
        payload: Bytes::from_static(b"1}\n{\"t\":\"x\"}"),
        ..s::Event::default()
    };
    let out = text(s::F::Event(event));
    assert!(out.contains("b64") && !out.contains('\n'), "{out}");
}

#[test]
fn mistakes_are_named_and_reading_goes_on_behind_the_next_line_break() {
    let out = all("{\"t\":\"ping\"\n{\"t\":\"nope\"}\n\n{\"t\":\"pong\",\"n\":2}\r\n");
    assert!(
        matches!(&out[..], [Decoded::Bad(_), Decoded::Unknown(t), Decoded::Frame(c::F::Pong(_))] if t == "nope"),
        "{out:?}"
    );
    for bad in [
        "[]",
        "7",
        r#"{"n":1}"#,
        r#"{"t":"op","session":"s"}"#,
        r#"{"t":"op","session":"s","op":0}"#,
        r#"{"t":"op","session":"s","op":-1}"#,
        r#"{"t":"op","session":"s","op":"x"}"#,
        r#"{"t":"op","op":1}"#,
        r#"{"t":"attach","session":"s","role":"king"}"#,
        r#"{"t":"hello","lane":"*"}"#,
        r#"{"t":"op","session":"s","op":1,"data":1,"b64":"AA"}"#,
        r#"{"t":"ping","n":"1"}"#,
    ] {
        assert!(matches!(&all(bad)[..], [Decoded::Bad(_)]), "{bad}: {:?}", all(bad));
    }
    let mut out = Vec::new();
    decode(r#"{"t":"ping","n":1}"#, 10, |d| out.push(d));
    assert_eq!(out, [Decoded::TooLarge(18)]);
}

/// Seeded noise: whatever comes out, no payload can leave its line or its frame.
#[test]
fn mutated_input_never_panics_and_never_smuggles() {
    use rand::{Rng as _, SeedableRng as _};
    let seed = 0x4ed6e;
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
    let parts: Vec<char> = "{}[]:,\"\\tnopdata123.e-\n\r\t u0041{\"t\":\"op\"}".chars().collect();
    for round in 0..20_000 {
        let mut text: Vec<char> = r#"{"t":"op","session":"s","op":1,"data":{"a":[1,"x\\n"]}}"#.chars().collect();
        for _ in 0..rng.random_range(1..6) {
            let at = rng.random_range(0..text.len());
            let part = parts[rng.random_range(0..parts.len())];
            if rng.random() { text[at] = part } else { text.insert(at, part) }
        }
        let text: String = text.into_iter().collect();
        decode(&text, 65_536, |d| {
            if let Decoded::Frame(c::F::Op(op)) = d {
                let inline = op.content() == Content::Json && check_inline(&op.payload).is_ok();
                assert!(inline || op.content() != Content::Json, "seed {seed} round {round}: {text:?}");
                let event =
                    s::Event { session: op.session, content: op.content, payload: op.payload, ..s::Event::default() };
                let out = encode(&s::F::Event(event));
                assert!(!out.contains(&b'\n') && serde_json::from_slice::<serde::de::IgnoredAny>(&out).is_ok());
            }
        });
    }
}

#[test]
fn server_frames_have_the_names_of_the_design() {
    let attached = s::Attached {
        session: "g".into(),
        n: 1,
        head: Some(Pos { epoch: 8, ver: 43 }),
        resume: 1,
        lane_seq: 11,
        role: 1,
        stamped: true,
        hold_ttl_ms: 13_000,
        rejected: vec![Rejected { seq: 10, code: Code::Rejected.into(), app_code: 3 }],
        ..s::Attached::default()
    };
    assert_eq!(
        text(s::F::Attached(attached)),
        r#"{"t":"attached","session":"g","n":1,"epoch":8,"ver":43,"resume":"events","lane_seq":11,"rejected":[{"op":10,"code":"REJECTED","app_code":3}],"role":"participant","stamped":true,"hold_ttl_ms":13000}"#
    );
    let skip =
        s::Event { session: "g".into(), at: Some(Pos { epoch: 8, ver: 43 }), skip_to: 45, ..s::Event::default() };
    assert_eq!(text(s::F::Event(skip)), r#"{"t":"event","session":"g","epoch":8,"ver":43,"to":45}"#);
    let nack = s::Nack {
        session: "g".into(),
        op: Some(OpId { seq: 12, ..OpId::default() }),
        attempt: 1,
        code: Code::Gap.into(),
        applied: 1,
        expected_seq: 11,
        ..s::Nack::default()
    };
    assert_eq!(
        text(s::F::Nack(nack)),
        r#"{"t":"nack","session":"g","op":12,"attempt":1,"code":"GAP","applied":"no","retry_after_ms":0,"expected":11,"app_code":0,"detail":""}"#
    );
    let status = s::Status { session: "g".into(), state: 3, epoch: 8, ver: 43 };
    assert_eq!(text(s::F::Status(status)), r#"{"t":"status","session":"g","state":"store_down","epoch":8,"ver":43}"#);
    let snapshot = s::Snapshot {
        session: "g".into(),
        at: Some(Pos { epoch: 8, ver: 43 }),
        content: 1,
        payload: Bytes::from_static(b"{}"),
        reason: 2,
        ..s::Snapshot::default()
    };
    assert_eq!(
        text(s::F::Snapshot(snapshot)),
        r#"{"t":"snapshot","session":"g","epoch":8,"ver":43,"lane_seq":0,"rejected":[],"why":"behind","data":{}}"#
    );
    let detached = s::Detached { session: "g".into(), n: 1, code: 403, retry_after_ms: 0 };
    assert_eq!(
        text(s::F::Detached(detached)),
        r#"{"t":"detached","session":"g","n":1,"code":"FORBIDDEN","retry_after_ms":0}"#
    );
}
