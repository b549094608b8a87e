//! Clients that are too slow, either way.

use std::time::Duration;

use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, interval},
};

use super::{
    bystander::{Bystander, fresh},
    client::{Client, Heard},
    process::{DEADLINE, LOOK_EVERY},
    tokens,
};

/// Characters of an edit: some 15 KB an event, below the payload limit.
const CHARS: usize = 15_000;
/// Receive buffer of the client that does not read, so that the server's own queue is what fills.
const SMALL_BUFFER: u32 = 4_096;

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_is_closed_and_nobody_else() {
    let (cluster, bystander) = Bystander::new().await;
    let session = fresh("deaf");
    cluster.create("document", &session);
    let mut deaf = Client::open_small(&cluster.gateways[0].addr, &tokens::token("ann", "ann"), SMALL_BUFFER).await;
    deaf.attach(&session).await;
    let mut writer = cluster.client(0, "bob", "bob").await;
    writer.attach(&session).await;
    // others write, it reads nothing, and only says that it is there, until the server has hung up
    let by = Instant::now() + 2 * DEADLINE;
    let writing = async {
        loop {
            writer.settle(&session, &json!({"ins": [0, "x".repeat(CHARS)]})).await;
            writer.settle(&session, &json!({"del": [0, CHARS]})).await;
        }
    };
    let frame = [b"\x81\x8e\0\0\0\0".as_slice(), br#"{"t":"pong"}  "#].concat();
    let deafness = async {
        while deaf.bytes(&frame).await.is_ok() {
            assert!(Instant::now() < by, "it is still connected");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::select! { () = writing => {}, () = deafness => {} }
    // the writer was not slowed to death, nor anybody else
    let mut late = cluster.client(0, "eve", "eve").await;
    late.attach(&session).await;
    late.expect("snapshot", |_| true).await;
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_byte_a_second_does_not_hold_a_connection() {
    let (cluster, bystander) = Bystander::new().await;
    let addr = &cluster.gateways[0].addr;
    // the request
    let mut socket = TcpStream::connect(addr).await.unwrap();
    let mut pace = interval(Duration::from_secs(1));
    let by = Instant::now() + DEADLINE;
    let mut scratch = [0; 256];
    for byte in b"GET /v1/ws HTTP/1.1\r\nHost: gateway.example.org\r\n".iter().cycle() {
        tokio::select! {
            read = socket.read(&mut scratch) => if matches!(read, Ok(0) | Err(_)) { break },
            _ = pace.tick() => if socket.write_all(&[*byte]).await.is_err() { break },
        }
        assert!(Instant::now() < by, "the handshake goes on for ever");
    }
    // the hello
    let mut slow = Client::connect(addr).await;
    let code = loop {
        tokio::select! {
            heard = slow.hear() => if let Heard::Closed(code, _) = heard { break code },
            _ = pace.tick() => {
                // a frame that never ends: the length says 100 bytes
                let _ = slow.bytes(&[0x81]).await;
            }
        }
        assert!(Instant::now() < by + DEADLINE, "a hello may take for ever");
    };
    // 1002: the first bytes make no valid header, if the server looks that early
    assert!([4105, 1002].contains(&code), "{code}");
    bystander.finish().await;
}
