//! The admission point over real sockets: slots, tickets and who gets in with them (design 9.3).

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::harness::{Bench, Peer, config, gated};
use crate::gateway::admission::Settings;

/// One client at once, then one each quarter of a second.
fn narrow() -> Bench {
    let admit_burst = Duration::from_millis(250);
    gated(config(), Settings { admit_per_s: 4, admit_burst, ..Settings::default() })
}

/// The answer to a hello, or the close code and the reason as JSON.
async fn enter(bench: &Bench, query: &str) -> Result<Value, (u16, Value)> {
    let mut peer = bench.ask(query).await;
    peer.try_say(&bench.hello(&json!({}))).await;
    match peer.hear_or_close().await {
        Ok(welcome) => Ok(welcome),
        Err((code, reason)) => {
            assert!(reason.len() <= 123, "{reason}");
            Err((code, serde_json::from_str(&reason).unwrap()))
        }
    }
}

#[tokio::test]
async fn a_refused_client_is_let_in_at_its_slot() {
    let bench = narrow();
    let welcome = enter(&bench, "").await.unwrap();
    assert!(!welcome["resume"].as_str().unwrap().is_empty());
    let (mut answer, mut ticket) = (enter(&bench, "").await, String::new());
    // With a burst of one the guard (1.05 of the rate) moves a slot a few times by 50 to 100 ms; with R in the hundreds never.
    for _ in 0..8 {
        let Err((code, told)) = answer else { break };
        assert_eq!((code, &told["r"]), (1013, &json!("slot")));
        told["k"].as_str().unwrap().clone_into(&mut ticket);
        // As long as it was told, which is what is tested.
        tokio::time::sleep(Duration::from_millis(told["ms"].as_u64().unwrap())).await;
        answer = enter(&bench, &format!("k={ticket}")).await;
    }
    assert_eq!(answer.unwrap()["t"], "welcome");
    let again = enter(&bench, &format!("k={ticket}")).await;
    assert!(again.is_err(), "a ticket is good once: {again:?}");
}

#[tokio::test]
async fn asking_again_moves_no_slot() {
    let bench = narrow();
    enter(&bench, "").await.unwrap();
    // Others are before it, so that its slot is further ahead than asking again takes.
    for _ in 0..12 {
        enter(&bench, "").await.unwrap_err();
    }
    let (_, first) = enter(&bench, "").await.unwrap_err();
    let query = format!("k={}", first["k"].as_str().unwrap());
    let (_, second) = enter(&bench, &query).await.unwrap_err();
    let slot = |told: &Value| URL_SAFE_NO_PAD.decode(told["k"].as_str().unwrap()).unwrap()[10..16].to_vec();
    assert_eq!(slot(&first), slot(&second), "{first} {second}");
}

#[tokio::test]
async fn a_forged_ticket_is_worth_nothing() {
    let bench = narrow();
    enter(&bench, "").await.unwrap();
    let (_, told) = enter(&bench, "").await.unwrap_err();
    let mut ticket = URL_SAFE_NO_PAD.decode(told["k"].as_str().unwrap()).unwrap();
    for slot in &mut ticket[10..16] {
        *slot = 0;
    }
    let (code, _) = enter(&bench, &format!("k={}", URL_SAFE_NO_PAD.encode(&ticket))).await.unwrap_err();
    assert_eq!(code, 1013);
    let (code, _) = enter(&bench, "k=%%%&r=nonsense").await.unwrap_err();
    assert_eq!(code, 1013);
}

#[tokio::test]
async fn limits_change_while_it_runs() {
    let bench = narrow();
    let mut inside: Vec<Peer> = vec![bench.open().await];
    assert!(enter(&bench, "").await.is_err());
    bench.gate.set(bench.clock.now(), Settings { admit_per_s: 1000, ..Settings::default() });
    // What was promised at the old pace stays promised; then the new pace holds.
    tokio::time::sleep(Duration::from_millis(600)).await;
    for _ in 0..5 {
        inside.push(bench.open().await);
    }
    assert_eq!(bench.handle.connections().len(), 6, "nobody was dropped by it");
}
