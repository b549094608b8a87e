//! The command line's client against the listener.

use serde_json::json;

use super::harness::{bench, config, token};
use crate::cli::client::Seat;

#[tokio::test]
async fn the_small_client_attaches_plays_and_says_goodbye() {
    let bench = bench(config());
    let url = format!("ws://{}/v1/ws", bench.addr);
    let mut seat = Seat::new(&url, &token(&bench, 60, &json!({})), "g_1");
    let mut client = seat.connect((0, 0)).await.unwrap();
    assert_eq!(client.attached["session"], "g_1");
    client.op(1, 1, &json!({"move": "e2e4"})).await.unwrap();
    let echo = client.next().await.unwrap();
    assert_eq!((&echo["t"], &echo["op"], &echo["data"]["move"]), (&json!("event"), &json!(1), &json!("e2e4")));
    assert_eq!(client.ver, 1);
    client.bye().await;
}

#[tokio::test]
async fn a_refusal_says_why() {
    let bench = bench(config());
    let url = format!("ws://{}/v1/ws", bench.addr);
    let e = Seat::new(&url, "nonsense", "g_1").connect((0, 0)).await.unwrap_err();
    assert!(format!("{e:#}").contains("4001"), "{e:#}");
    let e = Seat::new("http://127.0.0.1:1/", "t", "g_1").connect((0, 0)).await.unwrap_err();
    assert!(format!("{e:#}").contains("ws://"), "{e:#}");
}
