//! What works: both forms, stamps, round trips, slow clients, shutdown, TLS.

use std::{sync::Arc, time::Duration};

use futures_util::{SinkExt as _, StreamExt as _};
use holdfast_core::proto::{
    ClientFrame, Pos, ServerFrame, client_frame as c,
    server_frame::{Event, F, Snapshot},
};
use prost::Message as _;
use serde_json::json;
use tokio_tungstenite::tungstenite::{Message, protocol::CloseFrame};

use super::harness::{Heard, bench, config, token};
use crate::transport::tls::Tls;

#[tokio::test]
async fn hello_attach_and_op_in_one_flight() {
    let bench = bench(config());
    let mut peer = bench.peer().await;
    let seat = token(&bench, 600, &json!({"sessions": {"g_*": {"seat": "white"}}}));
    let flight = [
        bench.hello(&json!({"features": ["status", "x"], "attempt": 1})).to_string(),
        json!({"t": "attach", "session": "g_1", "n": 7, "seen": {"epoch": 1, "ver": 4}, "token": seat}).to_string(),
        r#"{"t":"op","session":"g_1","op":5,"base":4,"data":{"move": "e2e4"}}"#.to_owned(),
        r#"{"t":"op","session":"g_1","op":"jxI0VniavN4:6","data":1}"#.to_owned(),
    ];
    let before = bench.clock.now().wall;
    peer.text(flight.join("\n")).await;
    let welcome = peer.hear().await;
    assert_eq!(
        (&welcome["gateway"], &welcome["ping_ms"], &welcome["features"]),
        (&json!("gw-1"), &json!(2500), &json!(["status"]))
    );
    assert_eq!((&welcome["limits"]["frame_bytes"], &welcome["reconnect"]["spread_ms"]), (&json!(65_536), &json!(4000)));
    assert!(
        welcome["conn"].as_str().unwrap().starts_with("c-")
            && welcome["resume"].is_string()
            && welcome["token_exp_us"].is_u64()
    );
    assert_eq!(peer.hear().await["t"], "attached");
    let event = peer.hear().await;
    assert_eq!((&event["ver"], &event["op"], &event["data"]), (&json!(5), &json!(5), &json!({"move": "e2e4"})));
    assert_eq!(peer.hear().await["op"], 6, "the hello's lane, named, is the own lane");
    let client = bench
        .port
        .wait(|h| match h {
            Heard::Attach(_, c) => Some(c.clone()),
            _ => None,
        })
        .await;
    assert_eq!(
        (&*client.principal, &*client.participant, client.role, client.n, client.conn_seq, client.reconnect),
        ("ann", "white", 1, 7, 3, true)
    );
    assert_eq!(client.seen, Pos { epoch: 1, ver: 4 });
    let (op, arrival) = bench
        .port
        .wait(|h| match h {
            Heard::Op(_, op, a) => Some((op.clone(), *a)),
            _ => None,
        })
        .await;
    assert_eq!(&op.payload[..], br#"{"move": "e2e4"}"#);
    let sent_at = bench
        .port
        .wait(|h| match h {
            Heard::Delivered(_, 5, at) => Some(*at),
            _ => None,
        })
        .await;
    assert!(before <= arrival.at && arrival.at <= sent_at && sent_at <= bench.clock.now().wall);
    assert_eq!((arrival.clock_id, arrival.rtt_source), (bench.clock.clock_id(), 0));
}

#[tokio::test]
async fn the_binary_form_says_the_same() {
    let bench = bench(config());
    let mut peer = bench.connect("holdfast.v0, holdfast.v1.proto", None).await;
    let frames = [
        c::F::Hello(c::Hello {
            token: token(&bench, 600, &json!({})),
            lane: b"12345678".to_vec().into(),
            ..c::Hello::default()
        }),
        c::F::Attach(c::Attach {
            session: "g".into(),
            n: 1,
            lane: b"abcdefgh".to_vec().into(),
            ..c::Attach::default()
        }),
        c::F::Op(c::Op {
            session: "g".into(),
            op: Some(holdfast_core::proto::OpId { lane: b"abcdefgh".to_vec().into(), seq: 1 }),
            ..c::Op::default()
        }),
    ];
    let flight: Vec<u8> =
        frames.into_iter().flat_map(|f| ClientFrame { f: Some(f) }.encode_length_delimited_to_vec()).collect();
    peer.socket.send(Message::binary(flight)).await.unwrap();
    let mut heard = Vec::new();
    while heard.len() < 3 {
        if let Message::Binary(bytes) = peer.socket.next().await.unwrap().unwrap() {
            heard.extend(ServerFrame::decode_length_delimited(&bytes[..]).unwrap().f);
        }
    }
    assert!(matches!((&heard[0], &heard[1]), (F::Welcome(_), F::Attached(_))), "{heard:?}");
    // the attach's own lane: empty for the session, named for the client
    assert!(matches!(&heard[2], F::Event(e) if e.op.as_ref().unwrap().lane == "abcdefgh"), "{heard:?}");
    let op = bench
        .port
        .wait(|h| match h {
            Heard::Op(_, op, _) => Some(op.clone()),
            _ => None,
        })
        .await;
    assert!(op.op.unwrap().lane.is_empty());
}

#[tokio::test]
async fn pongs_make_round_trips() {
    let bench = bench(config());
    let mut peer = bench.open().await;
    peer.say(&json!({"t": "attach", "session": "g", "n": 1})).await;
    for op in 1..=4 {
        peer.say(&json!({"t": "op", "session": "g", "op": op})).await;
        while peer.hear().await["t"] != "event" {}
        // tungstenite answers the ping that came with the event when it reads on
        let _ = tokio::time::timeout(Duration::from_millis(20), peer.socket.next()).await;
    }
    let arrival = bench
        .port
        .wait(|h| match h {
            Heard::Op(_, op, a) if op.op.as_ref()?.seq == 4 => Some(*a),
            _ => None,
        })
        .await;
    assert!(
        arrival.rtt_samples > 0
            && arrival.srtt_us > 0
            && arrival.rtt_bound_us <= arrival.srtt_us
            && arrival.rtt_source == 1,
        "{arrival:?}"
    );
}

#[tokio::test]
async fn frames_reach_the_sessions_and_pings_are_answered() {
    let bench = bench(config());
    let mut peer = bench.open().await;
    peer.say(&json!({"t": "attach", "session": "m", "n": 1, "role": "spectator"})).await;
    assert_eq!(peer.hear().await["role"], "spectator");
    peer.say(&json!({"t": "reaction", "session": "m", "epoch": 3, "class": "applause", "data": 1})).await;
    peer.say(&json!({"t": "resync", "session": "m", "snapshot": true})).await;
    peer.say(&json!({"t": "detach", "session": "m"})).await;
    peer.say(&json!({"t": "ping", "n": 4})).await;
    let pong = peer.hear().await;
    assert!(pong["n"] == 4 && pong["now_us"].is_u64());
    peer.say(&json!({"t": "bye"})).await;
    assert_eq!(peer.closed().await.0, 1000);
    bench.port.wait(|h| (*h == Heard::Unregister(1)).then_some(())).await;
    let heard = bench.port.heard.lock().unwrap().clone();
    assert!(matches!(&heard[2..5], [Heard::Reaction(..), Heard::Resync(..), Heard::Detach(_, 1)]), "{heard:?}");
}

#[tokio::test]
async fn a_client_that_does_not_read_gets_one_snapshot_then_the_door() {
    let mut config = config();
    config.limits.slow_timeout = Duration::from_millis(300);
    let bench = bench(config);
    let mut peer = bench.open().await;
    peer.say(&json!({"t": "attach", "session": "g", "n": 1})).await;
    peer.hear().await;
    let event = |ver| {
        F::Event(Event {
            session: "g".into(),
            at: Some(Pos { epoch: 1, ver }),
            content: 2,
            payload: vec![0; 12_000].into(),
            ..Event::default()
        })
    };
    for ver in 1..2000 {
        bench.port.deliver(event(ver), false);
        tokio::task::yield_now().await;
    }
    // reading on: the backlog is gone, the session is asked for a snapshot once there is room
    let mut last = 0;
    while bench.port.heard.lock().unwrap().iter().all(|h| *h != Heard::Slow("g".into())) {
        last = peer.hear().await["ver"].as_u64().unwrap();
    }
    bench.port.deliver(
        F::Snapshot(Snapshot { session: "g".into(), at: Some(Pos { epoch: 1, ver: 2000 }), ..Snapshot::default() }),
        false,
    );
    loop {
        let frame = peer.hear().await;
        if frame["t"] == "snapshot" {
            break;
        }
        assert_eq!(frame["ver"].as_u64().unwrap(), last + 1, "no hole before the snapshot");
        last += 1;
    }
    // not reading at all: closed
    for ver in 2001..4000 {
        bench.port.deliver(event(ver), false);
        tokio::task::yield_now().await;
    }
    bench.port.wait(|h| (*h == Heard::Unregister(4)).then_some(())).await;
    assert_eq!(peer.closed().await.0, 4102);
}

#[tokio::test]
async fn a_close_of_the_client_is_answered_with_its_code() {
    let bench = bench(config());
    for (code, reason) in [(1000, 1), (1001, 2)] {
        let mut peer = bench.open().await;
        let frame = CloseFrame { code: code.into(), reason: "".into() };
        peer.socket.close(Some(frame)).await.unwrap();
        assert_eq!(peer.closed().await.0, code);
        bench.port.wait(|h| (*h == Heard::Unregister(reason)).then_some(())).await;
    }
}

#[tokio::test]
async fn shutdown_closes_everybody_with_a_wait() {
    let bench = bench(config());
    let mut peer = bench.open().await;
    let view = &bench.handle.connections()[0];
    assert_eq!((view.principal.as_deref(), view.peer.known), (Some("ann"), true));
    assert_eq!(view.peer.addr, peer.socket.get_ref().local_addr().unwrap());
    bench.stop.send(true).unwrap();
    let (code, reason) = peer.closed().await;
    assert!(code == 1012 && reason.starts_with(r#"{"r":"drain","ms":"#), "{code} {reason}");
    drop(peer);
    bench.task.await.unwrap();
    assert!(bench.handle.connections().is_empty());
    assert_eq!(bench.handle.stats().open.load(std::sync::atomic::Ordering::Relaxed), 0);
    assert!(tokio::net::TcpStream::connect(bench.addr).await.is_err());
}

#[tokio::test]
async fn tls_serves_the_same_and_changes_its_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("c.pem"), dir.path().join("k.pem"));
    let write = || {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        std::fs::write(&cert, made.cert.pem()).unwrap();
        made.cert.der().clone()
    };
    let first = write();
    let mut config = config();
    config.tls = Some(Tls::load(&cert, &key).unwrap());
    let bench = bench(config);
    let connect = async |trusted: &rustls::pki_types::CertificateDer<'static>| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(trusted.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = tokio::net::TcpStream::connect(bench.addr).await.unwrap();
        tokio_rustls::TlsConnector::from(Arc::new(tls)).connect("localhost".try_into().unwrap(), stream).await
    };
    use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
    let mut request = "ws://localhost/v1/ws".into_client_request().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", "holdfast.v1.json".parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::client_async(request, connect(&first).await.unwrap()).await.unwrap();
    socket.send(Message::text(bench.hello(&json!({})).to_string())).await.unwrap();
    let ping = socket.next().await.unwrap().unwrap();
    assert!(matches!(&ping, Message::Ping(nonce) if nonce.len() == 8), "{ping:?}");
    assert!(matches!(socket.next().await.unwrap().unwrap(), Message::Text(t) if t.contains("welcome")));
    let second = write();
    let mut changed = false;
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        changed = connect(&second).await.is_ok();
        if changed {
            break;
        }
    }
    assert!(changed);
    socket.send(Message::text(r#"{"t":"ping","n":1}"#)).await.unwrap();
    assert!(matches!(socket.next().await.unwrap().unwrap(), Message::Text(_)), "the old connection lives on");
}
