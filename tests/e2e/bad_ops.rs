//! Attaches and ops that must not get through, and what each is told.

use serde_json::{Value, json};

use super::{
    bystander::{Bystander, fresh},
    client::Client,
    cluster::Cluster,
    tokens,
};

/// The refusal of an attach.
async fn refusal(client: &mut Client, session: &str) -> Value {
    client.say(&json!({"t": "attach", "session": session, "n": 9})).await;
    let answer = client.hear_of(session, &["attached", "detached"]).await;
    assert_eq!((&answer["t"], &answer["n"]), (&json!("detached"), &json!(9)), "{answer}");
    answer["code"].clone()
}

/// The nack of an op.
async fn nack(client: &mut Client, session: &str, seq: u64, data: &Value) -> Value {
    client.op_as(session, seq, 1, data).await;
    client.expect("nack", |n| n["op"] == seq).await
}

async fn game(cluster: &Cluster) -> (String, Client, Client) {
    let session = fresh("game");
    cluster.create("game:60+1", &session);
    let (mut white, mut black) = (cluster.client(0, "ann", "white").await, cluster.client(0, "bob", "black").await);
    white.attach(&session).await;
    black.attach(&session).await;
    (session, white, black)
}

#[tokio::test(flavor = "multi_thread")]
async fn attaches_that_are_not_granted() {
    let (cluster, bystander) = Bystander::new().await;
    let (theirs, mine) = (fresh("theirs"), fresh("mine"));
    cluster.create("meeting", &theirs);
    let claims = json!({"sub": "ann", "aud": "holdfast", "exp": tokens::unix(3_600), "sessions": {(mine.as_str()): {"role": "participant", "seat": "a"}}});
    let mut client = Client::open(&cluster.gateways[0].addr, &tokens::with_claims(&claims)).await;
    for odd in ["", "a b", "a/b", "é", "a\nb", &"x".repeat(129)] {
        assert_eq!(refusal(&mut client, odd).await, "BAD_FRAME", "{odd:?}");
    }
    // whether theirs exists or not, the answer is the same
    assert_eq!(refusal(&mut client, &theirs).await, "FORBIDDEN");
    assert_eq!(refusal(&mut client, &fresh("nowhere")).await, "FORBIDDEN");
    assert_eq!(refusal(&mut client, &mine).await, "NO_SESSION");
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_op_before_attach_may_come_again_after_it() {
    let (cluster, bystander) = Bystander::new().await;
    let session = fresh("early");
    cluster.create("meeting", &session);
    let mut client = cluster.client(0, "ann", "ann").await;
    let early = nack(&mut client, &session, 1, &json!({"hand": true})).await;
    assert_eq!((&early["code"], &early["applied"]), (&json!("TRY_AFTER_ATTACH"), &json!("no")));
    client.attach(&session).await;
    client.op_as(&session, 1, 2, &json!({"hand": true})).await;
    assert_eq!(client.settled(&session, 1, &json!({"hand": true})).await, 1);
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gaps_and_reused_ids_are_told_apart() {
    let (cluster, bystander) = Bystander::new().await;
    let session = fresh("lanes");
    cluster.create("meeting", &session);
    let mut client = cluster.client(0, "ann", "ann").await;
    client.attach(&session).await;
    let up = json!({"hand": true});
    assert_eq!(client.settle(&session, &up).await, 1);
    let gap = nack(&mut client, &session, 3, &up).await;
    assert_eq!((&gap["code"], &gap["expected"], &gap["applied"]), (&json!("GAP"), &json!(2), &json!("no")), "{gap}");
    // the same again is the same op: its version, once
    client.seen.1 = 0;
    client.op_as(&session, 1, 2, &up).await;
    let ack = client.expect("ack", |a| a["op"] == 1).await;
    assert_eq!((&ack["ver"], &ack["dup"]), (&json!(1), &json!(true)));
    let reused = nack(&mut client, &session, 1, &json!({"hand": false})).await;
    assert_eq!((&reused["code"], &reused["applied"]), (&json!("OP_ID_REUSED"), &json!("no")), "{reused}");
    client.seq = 1;
    client.settled = 1;
    assert_eq!(client.settle(&session, &up).await, 2);
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seats_turns_and_rules_are_the_owners_word() {
    let (cluster, bystander) = Bystander::new().await;
    let (session, mut white, mut black) = game(cluster).await;
    let mut guest = cluster.client(0, "eve", "").await;
    guest.attach(&session).await;
    let first = json!({"move": "e2e4"});
    let cases =
        [(&mut guest, first.clone(), 2), (&mut black, first.clone(), 4), (&mut white, json!({"move": "e2e5"}), 3)];
    for (client, data, app_code) in cases {
        let refused = nack(client, &session, 1, &data).await;
        let got = (&refused["code"], &refused["app_code"], &refused["applied"]);
        assert_eq!(got, (&json!("REJECTED"), &json!(app_code), &json!("no")), "{refused}");
        assert!(refused["detail"].as_str().is_some_and(|d| !d.is_empty()));
    }
    for (i, odd) in
        [json!({"move": 7}), json!({"move": "e2e4", "resign": true}), json!("e2e4"), json!({})].iter().enumerate()
    {
        let refused = nack(&mut white, &session, 2 + i as u64, odd).await;
        assert_eq!((&refused["code"], &refused["app_code"]), (&json!("REJECTED"), &json!(1)), "{refused}");
    }
    white.seq = 5;
    assert_eq!(white.settle(&session, &first).await, 1, "no refusal made a version");
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_over_its_limit_is_413() {
    let (cluster, bystander) = Bystander::new().await;
    let session = fresh("large");
    cluster.create("document", &session);
    let mut client = cluster.client(0, "ann", "ann").await;
    client.attach(&session).await;
    let refused = nack(&mut client, &session, 1, &json!({"ins": [0, "x".repeat(17_000)]})).await;
    assert_eq!((&refused["code"], &refused["applied"]), (&json!("TOO_LARGE"), &json!("no")), "{refused}");
    bystander.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_ops_is_slowed_and_nothing_is_lost() {
    let (cluster, bystander) = Bystander::new().await;
    let session = fresh("flood");
    cluster.create("meeting", &session);
    let mut client = cluster.client(0, "ann", "ann").await;
    client.attach(&session).await;
    let data = |seq: u64| json!({"hand": seq.is_multiple_of(2)});
    for seq in 1..=200 {
        client.op_as(&session, seq, 1, &data(seq)).await;
    }
    // the first refusal is for the rate; whatever comes behind it is out of order
    let refused = client.expect("nack", |n| n["code"] != "GAP").await;
    assert!(["OVERLOADED", "TOO_MANY_INFLIGHT"].contains(&refused["code"].as_str().unwrap()), "{refused}");
    assert_eq!(refused["applied"], "no", "{refused}");
    bystander.finish().await;
    // it may go on from there
    let next = refused["op"].as_u64().unwrap();
    for seq in next..next + 3 {
        client.op_as(&session, seq, 2, &data(seq)).await;
        assert_eq!(client.settled(&session, seq, &data(seq)).await, seq);
    }
}
