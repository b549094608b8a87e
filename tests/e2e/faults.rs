//! What may break: owners, links, both etcds, the leader of placement. Nothing acknowledged may be lost, nothing may enter twice.

use serde_json::{Value, json};

use super::{
    client::Client,
    cluster::{Cluster, plan},
};

/// Raises and lowers a hand: ops whose number can be told from the version.
async fn hands(client: &mut Client, session: &str, times: u64) -> u64 {
    let mut ver = 0;
    for _ in 0..times {
        ver = client.settle(session, &json!({"hand": client.seq.is_multiple_of(2)})).await;
    }
    ver
}

/// The moves of a game as a newcomer is told them.
async fn moves(cluster: &Cluster, session: &str) -> Value {
    let mut late = cluster.client(0, "late", "").await;
    late.attach(session).await;
    late.expect("snapshot", |_| true).await["data"]["moves"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owners_death_loses_nothing_and_play_goes_on() {
    let mut cluster = plan().owners(2).start().await;
    cluster.create("game", "g1");
    let mut seats = [cluster.client(0, "ann", "white").await, cluster.client(0, "bob", "black").await];
    for seat in &mut seats {
        seat.attach("g1").await;
    }
    for (i, uci) in ["e2e4", "e7e5"].iter().enumerate() {
        seats[i].settle("g1", &json!({"move": uci})).await;
    }
    let owner = cluster.owner_of("g1");
    cluster.owners[owner].process.kill();
    for (i, uci) in ["g1f3", "b8c6"].iter().enumerate() {
        let ver = seats[i].settle("g1", &json!({"move": uci})).await;
        assert_eq!(ver, 3 + i as u64);
        assert!(seats[i].seen.0 >= 2, "a new epoch");
    }
    assert_ne!(cluster.owner_of("g1"), owner);
    assert_eq!(moves(&cluster, "g1").await, json!(["e2e4", "e7e5", "g1f3", "b8c6"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_owner_is_fenced() {
    let cluster = plan().owners(2).start().await;
    cluster.create("meeting", "m1");
    let mut ann = cluster.client(0, "ann", "ann").await;
    ann.attach("m1").await;
    assert_eq!(hands(&mut ann, "m1", 3).await, 3);
    let zombie = cluster.owner_of("m1");
    cluster.owners[zombie].process.signal("STOP");
    // held by the gateway until somebody else owns the session
    assert_eq!(hands(&mut ann, "m1", 1).await, 4);
    let epoch = ann.seen.0;
    assert!(epoch >= 2);
    assert_ne!(cluster.owner_of("m1"), zombie);
    cluster.owners[zombie].process.signal("CONT");
    // it wakes and may still have op 4 in its buffers; the client fails on any frame of an old epoch
    assert_eq!(hands(&mut ann, "m1", 20).await, 24);
    assert!(ann.seen.0 >= epoch);
    let mut late = cluster.client(0, "late", "late").await;
    late.attach("m1").await;
    let snapshot = late.expect("snapshot", |_| true).await;
    assert_eq!((&snapshot["ver"], &snapshot["data"]), (&json!(24), &json!({"hands": []})));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_link_is_dialled_again_and_nothing_enters_twice() {
    let cluster = plan().behind_proxies().start().await;
    cluster.create("document", "d1");
    let mut ann = cluster.client(0, "ann", "ann").await;
    ann.attach("d1").await;
    for i in 1..=10_u64 {
        let seq = ann.op("d1", &json!({"ins": [0, "x"]})).await;
        if i % 3 == 0 {
            cluster.proxies.iter().for_each(super::proxy::Proxy::reset);
        }
        assert_eq!(ann.settled("d1", seq, &json!({"ins": [0, "x"]})).await, i);
    }
    assert_eq!(ann.seen.0, 1, "a link's loss moves no session");
    let mut late = cluster.client(0, "late", "late").await;
    late.attach("d1").await;
    assert_eq!(late.expect("snapshot", |_| true).await["data"]["text"], "x".repeat(10));
}

#[tokio::test(flavor = "multi_thread")]
async fn ops_flow_without_a_directory_and_it_comes_back() {
    let mut cluster = plan().start().await;
    cluster.create("meeting", "m1");
    let mut ann = cluster.client(0, "ann", "ann").await;
    ann.attach("m1").await;
    cluster.directory.kill();
    assert_eq!(hands(&mut ann, "m1", 5).await, 5);
    let epoch = ann.seen.0;
    cluster.directory.resume();
    cluster.create("meeting", "m2");
    let mut bob = cluster.client(0, "bob", "bob").await;
    bob.attach("m2").await;
    assert_eq!(hands(&mut bob, "m2", 1).await, 1);
    assert_eq!(hands(&mut ann, "m1", 5).await, 10);
    assert!(ann.seen.0 >= epoch);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_acknowledged_without_a_store() {
    let mut cluster = plan().start().await;
    cluster.create("meeting", "m1");
    let mut ann = cluster.client(0, "ann", "ann").await;
    ann.attach("m1").await;
    assert_eq!(hands(&mut ann, "m1", 2).await, 2);
    cluster.store.kill();
    let data = json!({"hand": true});
    let seq = ann.op("m1", &data).await;
    let refused = ann.hear_of("m1", &["nack", "ack", "event"]).await;
    assert_eq!((&refused["t"], &refused["code"]), (&json!("nack"), &json!("STORE_UNAVAILABLE")), "{refused}");
    cluster.store.resume();
    ann.op_as("m1", seq, 2, &data).await;
    assert_eq!(ann.settled("m1", seq, &data).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_was_compacted_away_lists_again() {
    let mut cluster = plan().start().await;
    cluster.create("meeting", "m1");
    let mut ann = cluster.client(0, "ann", "ann").await;
    ann.attach("m1").await;
    // the gateway sleeps while history moves on and is forgotten, and its watch breaks
    cluster.gateways[0].process.signal("STOP");
    for i in 0..5 {
        cluster.create("meeting", &format!("new-{i}"));
    }
    cluster.directory.compact();
    cluster.directory.kill();
    cluster.directory.resume();
    cluster.gateways[0].process.signal("CONT");
    let mut bob = cluster.client(0, "bob", "bob").await;
    for i in 0..5 {
        let session = format!("new-{i}");
        bob.seen = (0, 0);
        bob.attach(&session).await;
    }
    cluster.create("meeting", "after");
    bob.seen = (0, 0);
    bob.attach("after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn placement_outlives_each_of_its_leaders() {
    let mut cluster = plan().owners(2).placements(2).start().await;
    cluster.create("game", "g1");
    let mut ann = cluster.client(0, "ann", "white").await;
    ann.attach("g1").await;
    let ann = ann.rest();
    for i in 0..2 {
        // one of the two leads
        cluster.placements[i].process.kill();
        cluster.create("meeting", &format!("after-{i}"));
        cluster.placements[i].restart();
    }
    cluster.placements[0].process.kill();
    let owner = cluster.owner_of("g1");
    cluster.owners[owner].process.kill();
    let mut ann = ann.back().await;
    assert_eq!(ann.settle("g1", &json!({"move": "e2e4"})).await, 1);
    assert!(ann.seen.0 >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_op_under_way_survives_its_gateway_and_its_owner() {
    let mut cluster = plan().owners(2).gateways(2).start().await;
    cluster.create("document", "d1");
    let mut ann = cluster.client(0, "ann", "ann").await;
    ann.attach("d1").await;
    let edit = json!({"ins": [0, "x"]});
    let mut ver = 0;
    for _ in 0..5 {
        ver = ann.settle("d1", &edit).await;
    }
    // it may have reached the record or not: whoever sent it cannot know
    let seq = ann.op("d1", &edit).await;
    let owner = cluster.owner_of("d1");
    cluster.owners[owner].process.kill();
    cluster.gateways[0].process.kill();
    let addr = cluster.gateways[1].addr.clone();
    let mut ann = ann.reconnect(&addr).await;
    let attached = ann.attach("d1").await;
    assert!(attached["lane_seq"].as_u64() >= Some(5), "{attached}");
    ann.op_as("d1", seq, 2, &edit).await;
    assert_eq!(ann.settled("d1", seq, &edit).await, ver + 1);
    let mut late = Client::open(&addr, &super::tokens::token("late", "late")).await;
    late.attach("d1").await;
    assert_eq!(late.expect("snapshot", |_| true).await["data"]["text"], "xxxxxx");
}
