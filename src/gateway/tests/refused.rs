//! What is refused, and in which words.

use std::{sync::atomic::Ordering, time::Duration};

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_tungstenite::tungstenite::Message;

use super::harness::{Bench, Heard, bench, config, gated, token};
use crate::gateway::admission::Settings;

async fn http(bench: &Bench, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(bench.addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}Connection: close, Upgrade\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn http_that_is_not_ours() {
    let bench = bench(config());
    let ws = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let none = http(&bench, "/v1/ws", ws).await;
    assert!(none.starts_with("HTTP/1.1 400") && none.contains("holdfast.v1.json or holdfast.v1.proto"), "{none}");
    let unknown = http(&bench, "/v1/ws", &format!("{ws}Sec-WebSocket-Protocol: chat, holdfast.v9.json\r\n")).await;
    assert!(unknown.starts_with("HTTP/1.1 400") && unknown.contains("subprotocol"), "{unknown}");
    assert!(http(&bench, "/v2/ws", ws).await.starts_with("HTTP/1.1 404"));
    assert!(http(&bench, "/v1/ws", "").await.starts_with("HTTP/1.1 426"));
}

#[tokio::test]
async fn before_hello() {
    let mut config = config();
    config.limits.hello_timeout = Duration::from_millis(200);
    let bench = bench(config);
    assert_eq!(bench.peer().await.closed().await.0, 4105);
    for (frame, code) in [
        (json!({"t": "op", "session": "g", "op": 1}), 4000),
        (bench.hello(&json!({"lane": "IWFiY2RlZmdo"})), 4000),
        (bench.hello(&json!({"lane": "AQ"})), 4000),
        (bench.hello(&json!({"token": "nonsense"})), 4001),
        (bench.hello(&json!({"token": ""})), 4001),
        (bench.hello(&json!({"token": token(&bench, -1, &json!({}))})), 4201),
    ] {
        let mut peer = bench.peer().await;
        peer.say(&frame).await;
        let (got, reason) = peer.closed().await;
        assert_eq!(got, code, "{frame} {reason}");
        assert!(!reason.is_empty());
    }
    assert_eq!(bench.connect("holdfast.v1.json", Some("https://evil.example")).await.closed().await.0, 4007);
    let mut peer = bench.connect("holdfast.v1.json", Some("https://ok.example")).await;
    peer.say(&bench.hello(&json!({"token": token(&bench, 60, &json!({"origin": ["https://other.example"]}))}))).await;
    assert_eq!(peer.closed().await.0, 4007);
    assert!(bench.port.heard.lock().unwrap().is_empty(), "nothing of this reaches the sessions");
}

#[tokio::test]
async fn mistakes_of_an_open_connection() {
    let bench = bench(config());
    let mut peer = bench.open().await;
    peer.say(&json!({"t": "nope"})).await;
    peer.say(&json!({"t": "nope"})).await;
    assert_eq!(peer.hear().await["code"], "BAD_FRAME");
    for _ in 0..9 {
        peer.text("{".into()).await;
        assert_eq!(peer.hear().await["code"], "BAD_FRAME");
    }
    peer.socket.send(Message::binary(vec![1])).await.unwrap();
    assert_eq!(peer.closed().await.0, 4000);
    assert_eq!(bench.handle.stats().bad_frames.load(Ordering::Relaxed), 10);
    for (text, code) in [
        (bench.hello(&json!({})).to_string(), 4000),
        (json!({"t": "op", "session": "g", "op": "IWRlYWRsaW5l:1"}).to_string(), 4000),
        (json!({"t": "op", "session": "g", "op": 1, "data": "x".repeat(70_000)}).to_string(), 4004),
        ("x".repeat(1_100_000), 1009),
        (json!({"t": "auth", "token": token(&bench, 60, &json!({"sub": "bob"}))}).to_string(), 4002),
        (json!({"t": "auth", "token": "x"}).to_string(), 4001),
    ] {
        let mut peer = bench.open().await;
        // the server may close before all of a large message is written
        let _ = peer.socket.send(Message::text(text.clone())).await;
        assert_eq!(peer.closed().await.0, code, "{}", &text[..text.len().min(80)]);
    }
}

#[tokio::test]
async fn a_payload_above_its_limit_is_a_nack() {
    let bench = bench(config());
    let mut peer = bench.open().await;
    peer.say(&json!({"t": "op", "session": "g", "op": 9, "attempt": 2, "data": "x".repeat(17_000)})).await;
    let nack = peer.hear().await;
    assert_eq!(
        (&nack["code"], &nack["applied"], &nack["op"], &nack["attempt"]),
        (&json!("TOO_LARGE"), &json!("no"), &json!(9), &json!(2))
    );
    assert!(bench.port.heard.lock().unwrap().iter().all(|h| !matches!(h, Heard::Op(..))));
}

#[tokio::test]
async fn attaches_that_are_not_granted() {
    let mut config = config();
    config.limits.sessions_max = 2;
    let bench = bench(config);
    let mut peer = bench.peer().await;
    let sessions = json!({"sessions": {"a*": {"role": "spectator"}, "b*": {}}});
    peer.say(&bench.hello(&json!({"token": token(&bench, 600, &sessions)}))).await;
    peer.hear().await;
    let attach = |session: &str, more: &Value| {
        let mut frame = json!({"t": "attach", "session": session, "n": 5});
        frame.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        frame
    };
    let other = token(&bench, 600, &json!({"sub": "bob"}));
    for (frame, code) in [
        (attach("c", &json!({})), "FORBIDDEN"),
        (attach("a1", &json!({"role": "participant"})), "FORBIDDEN"),
        (attach("b1", &json!({"token": "x"})), "UNAUTHENTICATED"),
        (attach("b1", &json!({"token": other})), "FORBIDDEN"),
        (attach("b 1", &json!({})), "BAD_FRAME"),
        (attach("b1", &json!({"lane": "AQ"})), "BAD_FRAME"),
    ] {
        peer.say(&frame).await;
        let detached = peer.hear().await;
        assert_eq!(
            (&detached["t"], &detached["code"], &detached["n"]),
            (&json!("detached"), &json!(code), &json!(5)),
            "{frame}"
        );
    }
    for session in ["a1", "b1"] {
        peer.say(&attach(session, &json!({}))).await;
        assert_eq!(peer.hear().await["t"], "attached");
    }
    peer.say(&attach("b2", &json!({}))).await;
    let full = peer.hear().await;
    assert_eq!((&full["code"], &full["retry_after_ms"]), (&json!("OVERLOADED"), &json!(1000)));
    peer.say(&json!({"t": "detach", "session": "a1"})).await;
    peer.say(&attach("b2", &json!({}))).await;
    assert_eq!(peer.hear().await["t"], "attached");
}

#[tokio::test]
async fn time_ends_what_does_not_answer() {
    let mut config = config();
    (config.limits.ping_ms, config.limits.dead_ms) = (50, 300);
    config.limits.token_grace = Duration::from_millis(100);
    let bench = bench(config);
    let mut silent = bench.open().await;
    let (code, reason) = silent.closed().await;
    assert_eq!(code, 4103, "{reason}");
    bench.port.wait(|h| (*h == Heard::Unregister(2)).then_some(())).await;
    let mut peer = bench.peer().await;
    peer.say(&bench.hello(&json!({"token": token(&bench, 2, &json!({}))}))).await;
    let mut pings = 0;
    let end = loop {
        match peer.socket.next().await.unwrap().unwrap() {
            Message::Text(t) if t.contains("\"ping\"") => {
                pings += 1;
                peer.say(&json!({"t": "pong", "n": pings})).await;
            }
            Message::Close(frame) => break frame.unwrap(),
            _ => {}
        }
    };
    assert_eq!(u16::from(end.code), 4201);
    assert!(pings > 3);
}

#[tokio::test]
async fn too_many_connections_are_reset() {
    let bench = gated(config(), Settings { connections_max: 1, ..Settings::default() });
    let _open = bench.open().await;
    let mut second = TcpStream::connect(bench.addr).await.unwrap();
    let mut buf = [0; 1];
    assert!(!matches!(second.read(&mut buf).await, Ok(n) if n > 0));
    assert_eq!(bench.handle.stats().refused_connections.load(Ordering::Relaxed), 1);
}
