//! Bad frames on an open connection.

use serde_json::{Value, json};

use super::{
    bystander::{Bystander, fresh},
    client::Client,
};

/// Bad frames in a minute that end a connection (design 4.4).
const MISTAKES_MAX: usize = 10;

/// Sends `text` and gets one `error{BAD_FRAME}`; the connection goes on.
async fn is_bad(client: &mut Client, text: &str) -> Value {
    client.text(text.into()).await;
    let error = client.expect("error", |_| true).await;
    assert_eq!(error["code"], "BAD_FRAME", "{error}");
    assert!(error["detail"].as_str().is_some_and(|d| !d.is_empty()), "{error}");
    alive(client).await;
    error
}

async fn alive(client: &mut Client) {
    let n: u32 = rand::random();
    client.say(&json!({"t": "ping", "n": n})).await;
    client.expect("pong", |pong| pong["n"] == n).await;
}

/// One frame of a client, masked with zeros: `first` = FIN and opcode.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    match payload.len() {
        n @ 0..126 => out.push(0x80 | u8::try_from(n).unwrap()),
        n => {
            out.push(0x80 | 126);
            out.extend(u16::try_from(n).unwrap().to_be_bytes());
        }
    }
    out.extend([0; 4]);
    out.extend(payload);
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_json_or_of_the_wrong_shape_is_bad_frame() {
    let (cluster, bystander) = Bystander::new().await;
    let texts = [
        "hello?",
        "{",
        "[1,2,3]",
        "null",
        r#"{"session":"s"}"#,
        r#"{"t":7}"#,
        r#"{"t":"op","session":5,"op":1,"data":1}"#,
        r#"{"t":"op","session":"s","op":-1,"data":1}"#,
        r#"{"t":"attach","session":"s","n":"one"}"#,
    ];
    for chunk in texts.chunks(3) {
        let mut client = cluster.client(0, "ann", "ann").await;
        for text in chunk {
            is_bad(&mut client, text).await;
        }
    }
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tenth_bad_frame_closes_4000() {
    let (cluster, bystander) = Bystander::new().await;
    let mut client = cluster.client(0, "ann", "ann").await;
    for _ in 1..MISTAKES_MAX {
        is_bad(&mut client, "x").await;
    }
    client.text("x".into()).await;
    assert_eq!(client.closed().await.0, 4000);
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_frame_is_told_once_and_ignored() {
    let (cluster, bystander) = Bystander::new().await;
    let mut client = cluster.client(0, "ann", "ann").await;
    is_bad(&mut client, r#"{"t":"teleport","to":"moon"}"#).await;
    for _ in 0..2 * MISTAKES_MAX {
        client.text(r#"{"t":"teleport"}"#.into()).await;
    }
    client.say(&json!({"t": "ping", "n": 1})).await;
    // no further error before the answer
    assert_eq!(client.hear_any().await["t"], "pong");
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn line_breaks_in_data_inject_nothing() {
    let (cluster, bystander) = Bystander::new().await;
    let session = fresh("smuggle");
    cluster.create("document", &session);
    let (mut ann, mut bob) = (cluster.client(0, "ann", "ann").await, cluster.client(0, "bob", "bob").await);
    ann.attach(&session).await;
    bob.attach(&session).await;
    // a raw LF ends a frame: both halves are bad, nothing is forwarded
    let half = format!(r#"{{"t":"op","session":"{session}","op":1,"data":{{"ins":[0,"a"#);
    ann.text(format!("{half}\n\"]}}}}")).await;
    ann.expect("error", |e| e["code"] == "BAD_FRAME").await;
    ann.expect("error", |e| e["code"] == "BAD_FRAME").await;
    // raw CR between tokens is white space to JSON, but not here
    is_bad(&mut ann, &format!("{{\"t\":\"op\",\"session\":\"{session}\",\"op\":1,\"data\":{{\"ins\":\r[0,\"b\"]}}}}"))
        .await;
    // written as an escape it is a character like any other, and arrives as it was sent
    let smuggled = "c\n{\"t\":\"bye\"}\r\nd";
    assert_eq!(ann.settle(&session, &json!({"ins": [0, smuggled]})).await, 1);
    let event = bob.expect("event", |_| true).await;
    assert_eq!(event["data"]["ins"][1], smuggled);
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_over_its_limit_is_4004_and_a_message_over_1_mib_is_1009() {
    let (cluster, bystander) = Bystander::new().await;
    let mut client = cluster.client(0, "ann", "ann").await;
    client.text(format!(r#"{{"t":"ping","n":1,"pad":"{}"}}"#, "x".repeat(70_000))).await;
    assert_eq!(client.closed().await.0, 4004);
    let mut client = cluster.client(0, "ann", "ann").await;
    client.text("x".repeat((1 << 20) + 1)).await;
    assert_eq!(client.closed().await.0, 1009);
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_of_64_mib_is_refused_by_its_header() {
    let (cluster, bystander) = Bystander::new().await;
    let mut client = cluster.client(0, "ann", "ann").await;
    let mut header = vec![0x81, 0x80 | 127];
    header.extend((64_u64 << 20).to_be_bytes());
    header.extend([0; 4]);
    // only the header: whoever waits for the rest never answers
    client.bytes(&header).await.unwrap();
    assert_eq!(client.closed().await.0, 1009);
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_fragments_are_one_message() {
    let (cluster, bystander) = Bystander::new().await;
    let mut client = cluster.client(0, "ann", "ann").await;
    let text = format!(r#"{{"t":"ping","n":77,"pad":"{}"}}"#, "x".repeat(9_970));
    let (first, rest) = text.as_bytes().split_at(1);
    let mut bytes = frame(0x01, first);
    for byte in rest {
        bytes.extend(frame(0x00, &[*byte]));
    }
    bytes.extend(frame(0x80, b""));
    client.bytes(&bytes).await.unwrap();
    client.expect("pong", |pong| pong["n"] == 77).await;
    // fragments do not get round the limit of a message
    let mut bytes = frame(0x01, b"x");
    for _ in 0..40 {
        bytes.extend(frame(0x00, &[b'x'; 32_768]));
    }
    // the server may have closed before all of it was written
    let _ = client.bytes(&bytes).await;
    assert_eq!(client.closed().await.0, 1009);
    bystander.finish().await;
}
