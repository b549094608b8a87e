//! Bad input before a connection is anybody's: subprotocols, hellos, tokens, lanes.

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{bystander::Bystander, client::Client, process::DEADLINE, tokens};

/// The head and body of the answer to an upgrade request.
async fn upgrade(addr: &str, protocol: &str) -> String {
    let mut socket = TcpStream::connect(addr).await.unwrap();
    let request = format!(
        "GET /v1/ws HTTP/1.1\r\nHost: {addr}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{protocol}\r\n"
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    timeout(DEADLINE, socket.read_to_end(&mut answer)).await.expect("not closed").unwrap();
    String::from_utf8(answer).unwrap()
}

/// The close after one hello of these fields.
async fn hello_closes(addr: &str, hello: Value) -> (u16, String) {
    let mut client = Client::connect(addr).await;
    client.say(&hello).await;
    client.closed().await
}

fn hello(token: &str) -> Value {
    json!({"t": "hello", "token": token, "lane": "AAAAAAAAAAA"})
}

#[tokio::test(flavor = "multi_thread")]
async fn no_or_an_unknown_subprotocol_is_http_400() {
    let (cluster, bystander) = Bystander::new().await;
    for protocol in ["", "Sec-WebSocket-Protocol: chat\r\n", "Sec-WebSocket-Protocol: holdfast.v2.json\r\n"] {
        let answer = upgrade(&cluster.gateways[0].addr, protocol).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(answer.contains("holdfast.v1.json"), "says what is spoken: {answer}");
    }
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_hello_is_4000_and_a_late_one_4105() {
    let (cluster, bystander) = Bystander::new().await;
    let addr = &cluster.gateways[0].addr;
    for first in
        [json!({"t": "op", "session": "s", "op": 1, "data": 1}), json!({"t": "attach", "session": "s", "n": 1})]
    {
        assert_eq!(hello_closes(addr, first).await.0, 4000);
    }
    let mut silent = Client::connect(addr).await;
    assert_eq!(silent.closed().await.0, 4105);
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_hello_is_4000() {
    let (cluster, bystander) = Bystander::new().await;
    let mut client = cluster.client(0, "ann", "ann").await;
    client.say(&hello(&tokens::token("ann", "ann"))).await;
    assert_eq!(client.closed().await.0, 4000);
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_do_not_hold_are_4001() {
    let (cluster, bystander) = Bystander::new().await;
    let addr = &cluster.gateways[0].addr;
    let audience = tokens::with_claims(&json!({"sub": "a", "aud": "elsewhere", "exp": tokens::unix(3_600)}));
    let nobody = tokens::with_claims(&json!({"aud": "holdfast", "exp": tokens::unix(3_600)}));
    let forever = tokens::with_claims(&json!({"sub": "a", "aud": "holdfast"}));
    let cut = tokens::token("a", "a");
    let bad = [
        ("missing", String::new()),
        ("malformed", "not.a.token".into()),
        ("cut", cut[..cut.len() - 4].to_owned()),
        ("wrong key", tokens::wrong_key("a")),
        ("wrong audience", audience),
        ("alg none", tokens::alg_none("a")),
        ("no sub", nobody),
        ("no exp", forever),
        ("too long", "x".repeat(20_000)),
    ];
    for (what, token) in bad {
        let (code, reason) = hello_closes(addr, hello(&token)).await;
        assert_eq!(code, 4001, "{what}: {reason}");
        assert!(!reason.is_empty() && (token.is_empty() || !reason.contains(&token)), "{what}: {reason}");
    }
    let none = json!({"t": "hello", "lane": "AAAAAAAAAAA"});
    assert_eq!(hello_closes(addr, none).await.0, 4001);
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_token_is_4201_so_that_it_is_refreshed() {
    let (cluster, bystander) = Bystander::new().await;
    let old = tokens::with_claims(&json!({"sub": "a", "aud": "holdfast", "exp": tokens::unix(-3_600)}));
    let (code, reason) = hello_closes(&cluster.gateways[0].addr, hello(&old)).await;
    assert_eq!(code, 4201, "{reason}");
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reserved_or_odd_lane_is_4000() {
    let (cluster, bystander) = Bystander::new().await;
    let addr = &cluster.gateways[0].addr;
    // "!deadline", too short, too long, no base64url
    for lane in ["IWRlYWRsaW5l", "AAAA", "AAAAAAAAAAAAAAAAAAAAAAAA", ""] {
        let hello = json!({"t": "hello", "token": tokens::token("a", "a"), "lane": lane});
        assert_eq!(hello_closes(addr, hello).await.0, 4000, "{lane}");
    }
    let mut client = cluster.client(0, "ann", "ann").await;
    client.say(&json!({"t": "op", "session": "s", "op": "IWRlYWRsaW5l:1", "data": {"hand": true}})).await;
    assert_eq!(client.closed().await.0, 4000);
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_somebody_else_is_4002() {
    let (cluster, bystander) = Bystander::new().await;
    let mut client = cluster.client(0, "ann", "ann").await;
    client.say(&json!({"t": "auth", "token": tokens::token("bob", "bob")})).await;
    assert_eq!(client.closed().await.0, 4002);
    bystander.finish().await;
}
