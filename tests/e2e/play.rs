//! What it is for: moves, hands and edits that reach the others.

use serde_json::{Value, json};

use super::cluster::plan;

#[tokio::test(flavor = "multi_thread")]
async fn a_move_is_played_and_echoed_on_every_gateway() {
    let cluster = plan().gateways(2).start().await;
    cluster.create("game", "g1");
    let (mut white, mut black) = (cluster.client(0, "ann", "white").await, cluster.client(1, "bob", "black").await);
    let attached = white.attach("g1").await;
    assert_eq!((&attached["role"], &attached["epoch"]), (&json!("participant"), &json!(1)));
    black.attach("g1").await;
    let moves = ["e2e4", "e7e5", "g1f3", "b8c6", "f1b5", "a7a6", "e1g1"];
    for (i, uci) in moves.iter().enumerate() {
        let (mover, other) = if i % 2 == 0 { (&mut white, &mut black) } else { (&mut black, &mut white) };
        let seq = mover.op("g1", &json!({"move": uci})).await;
        let echo = mover.expect("event", |e| e["op"] == seq).await;
        assert_eq!((&echo["data"]["move"], &echo["ver"]), (&json!(uci), &json!(i + 1)));
        let seen = other.expect("event", |e| e["ver"] == i + 1).await;
        assert_eq!(seen["data"], echo["data"]);
        assert_eq!(seen.get("op"), None, "another's op has no id here: {seen}");
    }
    let mut late = cluster.client(0, "eve", "").await;
    late.attach("g1").await;
    let snapshot = late.expect("snapshot", |_| true).await;
    assert_eq!(snapshot["data"]["moves"], json!(moves));
    assert_eq!(snapshot["why"], "first");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_comes_back_gets_what_it_missed() {
    let cluster = plan().gateways(2).start().await;
    cluster.create("meeting", "m1");
    let (mut ann, mut bob) = (cluster.client(0, "ann", "ann").await, cluster.client(0, "bob", "bob").await);
    ann.attach("m1").await;
    bob.attach("m1").await;
    ann.settle("m1", &json!({"hand": true})).await;
    bob.expect("event", |e| e["ver"] == 1).await;
    let seen = bob.seen;
    ann.settle("m1", &json!({"hand": false})).await;
    ann.settle("m1", &json!({"hand": true})).await;
    bob.seen = seen;
    let addr = cluster.gateways[1].addr.clone();
    let mut bob = bob.reconnect(&addr).await;
    bob.attach("m1").await;
    while bob.seen.1 < 3 {
        bob.hear_of("m1", &["event", "snapshot"]).await;
    }
    bob.settle("m1", &json!({"hand": true})).await;
    let event = ann.expect("event", |e| e["by"] == "bob").await;
    assert_eq!(event["ver"], 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_made_at_once_end_in_one_text() {
    let cluster = plan().gateways(2).start().await;
    cluster.create("document", "d1");
    let mut clients = [cluster.client(0, "ann", "ann").await, cluster.client(1, "bob", "bob").await];
    for client in &mut clients {
        client.attach("d1").await;
    }
    for word in ["né", "🦀", "x"] {
        // both write before they hear of each other
        for client in &mut clients {
            client.op("d1", &json!({"ins": [0, word]})).await;
        }
        for client in &mut clients {
            let seq = client.seq;
            client.settled("d1", seq, &Value::Null).await;
        }
    }
    let mut texts = Vec::new();
    for (i, who) in ["eve", "joe"].into_iter().enumerate() {
        let mut late = cluster.client(i, who, who).await;
        late.attach("d1").await;
        texts.push(late.expect("snapshot", |s| s["ver"] == 6).await["data"]["text"].clone());
    }
    assert_eq!(texts[0], texts[1]);
    assert_eq!(texts[0].as_str().map(|t| t.chars().count()), Some(8));
}

#[tokio::test(flavor = "multi_thread")]
async fn reactions_reach_the_others_and_leave_no_trace() {
    let cluster = plan().start().await;
    cluster.create("meeting", "m2");
    let (mut ann, mut bob) = (cluster.client(0, "ann", "ann").await, cluster.client(0, "bob", "bob").await);
    let epoch = ann.attach("m2").await["epoch"].clone();
    bob.attach("m2").await;
    // a reaction may be lost: it is sent until one arrives
    let heard = async { bob.expect("reaction", |r| r["class"] == "applause").await };
    let sending = async {
        loop {
            ann.say(&json!({"t": "reaction", "session": "m2", "epoch": epoch, "class": "applause", "data": 1})).await;
            tokio::time::sleep(super::process::LOOK_EVERY * 4).await;
        }
    };
    let reaction: Value = tokio::select! { heard = heard => heard, () = sending => unreachable!() };
    assert_eq!(reaction["session"], "m2");
    assert_eq!(bob.settle("m2", &json!({"hand": true})).await, 1, "reactions make no versions");
}
