//! Gateways and owners that are told to stop: nobody is forgotten, nothing is lost.

use std::time::Instant;

use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::{
    client::Client,
    cluster::{Cluster, plan},
    process::{DEADLINE, LOOK_EVERY, holdfast},
};

/// What `holdfast drain` says of gateway `i`, as JSON.
fn drain(cluster: &Cluster, i: usize, args: &[&str]) -> Value {
    let (status, said) = holdfast(&[&["drain", "--json", "--admin", &cluster.gateways[i].admin], args].concat());
    assert!(status.success(), "{said}");
    serde_json::from_str(&said).unwrap()
}

/// Waits until gateway `i` takes no new connections.
async fn until_closed(cluster: &Cluster, i: usize) {
    let by = Instant::now() + DEADLINE;
    while TcpStream::connect(&cluster.gateways[i].addr).await.is_ok() {
        assert!(Instant::now() < by, "it still accepts");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The close's code and what its reason says.
async fn sent_away(client: &mut Client) -> Value {
    let (code, reason) = client.closed().await;
    assert_eq!(code, 1012, "{reason}");
    let reason: Value = serde_json::from_str(&reason).unwrap();
    assert!(reason["ms"].is_u64() && reason["r"] == "drain", "{reason}");
    reason
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_drained_under_play_tells_each_in_turn_and_takes_moves_until_the_end() {
    let mut cluster = plan().gateways(2).start().await;
    cluster.create("game", "g1");
    let (mut ann, mut bob) = (cluster.client(0, "ann", "white").await, cluster.client(0, "bob", "black").await);
    let mut idle = cluster.client(0, "eve", "eve").await;
    // Black comes first and is on the move: only that can make it the last to go.
    bob.attach("g1").await;
    ann.attach("g1").await;
    assert_eq!(ann.settle("g1", &json!({"move": "e2e4"})).await, 1);
    bob.expect("event", |e| e["ver"] == 1).await;
    assert_eq!(drain(&cluster, 0, &["--status"])["state"], "serving");
    let asked = drain(&cluster, 0, &["--rate", "2"]);
    assert!(asked["state"] != "ended", "{asked}");
    let (_, ready) = holdfast(&["status", "--admin", &cluster.gateways[0].admin]);
    assert!(ready.contains("draining"), "not ready at once: {ready}");

    let first = ann.expect("goaway", |_| true).await;
    assert_eq!((&first["code"], &first["window_ms"]), (&json!(1012), &json!(4000)));
    let eve = idle.expect("goaway", |_| true).await;
    let last = bob.expect("goaway", |_| true).await;
    let delay = |f: &Value| f["delay_ms"].as_u64().unwrap();
    assert!(delay(&first).max(delay(&eve)) <= 1_000 && delay(&last) <= 1_000, "{first} {eve} {last}");
    // After its goaway a move still goes through, on the connection it has.
    assert_eq!(bob.settle("g1", &json!({"move": "e7e5"})).await, 2);
    let told = drain(&cluster, 0, &["--status"]);
    assert_eq!(told["told"], 3, "{told}");

    // Ann goes as she was told, and plays on elsewhere; Bob and Eve stay and are sent away.
    let to = cluster.gateways[1].addr.clone();
    let mut ann = ann.reconnect(&to).await;
    ann.attach("g1").await;
    assert_eq!(ann.settle("g1", &json!({"move": "g1f3"})).await, 3);
    assert_eq!(sent_away(&mut bob).await["ms"], 0);
    sent_away(&mut idle).await;
    assert!(cluster.gateways[0].process.wait().success(), "a clean stop");
    let said = cluster.gateways[0].process.output();
    assert!(said.contains("told: 3, gone: 3, forced: 2"), "{said}");
    let mut bob = bob.reconnect(&to).await;
    bob.attach("g1").await;
    assert_eq!(bob.settle("g1", &json!({"move": "b8c6"})).await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_forgets_nobody() {
    let mut cluster = plan().start().await;
    let addr = cluster.gateways[0].addr.clone();
    let mut silent = Client::connect(&addr).await;
    let mut idle = cluster.client(0, "eve", "eve").await;
    let half = TcpStream::connect(&addr).await.unwrap();
    cluster.gateways[0].process.signal("TERM");
    until_closed(&cluster, 0).await;
    // Accepted before the drain, upgraded during it.
    let mut late = Client::upgrade(&addr, half).await;
    sent_away(&mut silent).await;
    sent_away(&mut late).await;
    idle.expect("goaway", |_| true).await;
    sent_away(&mut idle).await;
    assert!(cluster.gateways[0].process.wait().success(), "a clean stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_op_of_a_client_that_left_settles_before_the_gateway_ends() {
    let mut cluster = plan().gateways(2).start().await;
    cluster.create("document", "d1");
    let mut ann = cluster.client(0, "ann", "ann").await;
    ann.attach("d1").await;
    ann.settle("d1", &json!({"ins": [0, "a"]})).await;
    cluster.owners[0].process.signal("STOP");
    ann.op("d1", &json!({"ins": [0, "b"]})).await;
    cluster.gateways[0].process.signal("TERM");
    ann.expect("goaway", |_| true).await;
    drop(ann);
    let by = Instant::now() + DEADLINE;
    while drain(&cluster, 0, &["--status"])["state"] != "settling" {
        assert!(Instant::now() < by, "{}", drain(&cluster, 0, &["--status"]));
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let left = drain(&cluster, 0, &["--status"]);
    assert_eq!((&left["held"], &left["gone"]), (&json!(1), &json!(1)), "{left}");
    assert!(cluster.gateways[0].process.ended().is_none(), "it waits for the op");
    cluster.owners[0].process.signal("CONT");
    assert!(cluster.gateways[0].process.wait().success(), "a clean stop");
    assert!(!cluster.gateways[0].process.output().contains("did not settle"));
    let mut late = cluster.client(1, "late", "late").await;
    late.attach("d1").await;
    assert_eq!(late.expect("snapshot", |_| true).await["data"]["text"], "ba");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_hurries_and_a_third_ends() {
    let mut cluster = plan().start().await;
    cluster.create("document", "d1");
    let mut ann = cluster.client(0, "ann", "ann").await;
    ann.attach("d1").await;
    drain(&cluster, 0, &["--rate", "1", "--deadline", "3600"]);
    ann.expect("goaway", |_| true).await;
    cluster.owners[0].process.signal("STOP");
    ann.op("d1", &json!({"ins": [0, "b"]})).await;
    let by = Instant::now() + DEADLINE;
    while drain(&cluster, 0, &["--status"])["held"] != 1 {
        assert!(Instant::now() < by, "the op is not held");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    // The drain was asked for by an operator: the first signal asks again, the second hurries.
    let gateway = &mut cluster.gateways[0].process;
    gateway.signal("TERM");
    until_said(gateway, "Gracefully").await;
    gateway.signal("TERM");
    sent_away(&mut ann).await;
    until_said(gateway, "Hurried").await;
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    assert!(gateway.output().contains("stopping at once"), "{}", gateway.output());
    cluster.owners[0].process.signal("CONT");
}

async fn until_said(process: &super::process::Process, what: &str) {
    let by = Instant::now() + DEADLINE;
    while !process.output().contains(what) {
        assert!(Instant::now() < by, "{what} is not said:\n{}", process.output());
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_told_to_stop_hands_its_sessions_over() {
    let mut cluster = plan().owners(2).start().await;
    cluster.create("game", "g1");
    let mut ann = cluster.client(0, "ann", "white").await;
    ann.attach("g1").await;
    ann.settle("g1", &json!({"draw": "offer"})).await;
    let owner = cluster.owner_of("g1");
    cluster.owners[owner].process.signal("TERM");
    assert_eq!(ann.settle("g1", &json!({"move": "e2e4"})).await, 2);
    let ann = ann.rest();
    assert!(cluster.owners[owner].process.wait().success(), "a clean stop");
    let mut ann = ann.back().await;
    assert_eq!(ann.settle("g1", &json!({"resign": true})).await, 3);
    assert!(ann.seen.0 >= 2);
}
