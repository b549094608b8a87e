use holdfast_core::proto::NodeInfo;
use tonic::Code;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_created_once_located_and_ended() {
    let etcd = TestEtcd::start().await;
    let kv = etcd.kv();
    let _node = node(&kv, "o1", 1, 2).await;
    let service = placement(kv.clone(), "p1").await;
    let client = client(&[&service]);
    let made = client.create(&id("a"), "game:180+2").await.expect("created");
    assert_eq!((made.kind.as_str(), made.addr.as_str()), ("game:180+2", "127.0.0.1:1"));
    assert_eq!(client.create(&id("a"), "game").await.expect("again").placement, made.placement);
    assert_eq!(client.create(&id("a"), "meeting").await.expect_err("another kind").code(), Code::AlreadyExists);
    assert_eq!(client.create(&id("b"), "Game!").await.expect_err("a bad kind").code(), Code::InvalidArgument);
    assert_eq!(client.locate(&id("b")).await.expect_err("not there").code(), Code::NotFound);
    let parked = client.create(&id("m"), "meeting").await.expect("parked").placement.expect("placement");
    assert_eq!((parked.epoch, parked.owner.as_str()), (1, ""));
    let ended = client.end(&id("a")).await.expect("ended").placement.expect("placement");
    assert_eq!((ended.state(), ended.epoch, ended.owner.as_str()), (State::Ended, 1, "o1"));
    assert_eq!(client.locate(&id("a")).await.expect("located").placement, Some(ended));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_member_takes_over_when_the_leader_dies() {
    let etcd = TestEtcd::start().await;
    let kv = etcd.kv();
    let _node = node(&kv, "o1", 1, 100).await;
    let first = placement(etcd.kv(), "p1").await;
    client(&[&first]).create(&id("a"), "game").await.expect("created");
    let second = placement(etcd.kv(), "p2").await;
    let both = client(&[&second, &first]);
    both.create(&id("b"), "game").await.expect("a follower names the leader");
    first.task.abort();
    // The connections of the first may still answer for a moment; its claim to lead ends with its lease.
    let leads = || async {
        let leader = kv.get(keys::LEADER.as_bytes()).await.ok()?.0?;
        (holdfast_core::proto::Leader::decode(leader.value).ok()?.addr == second.addr).then_some(())
    };
    until("the second to lead", leads).await;
    until("its answers", || async { both.create(&id("c"), "game").await.ok() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_nodes_lease_is_revoked_on_suspicion() {
    let etcd = TestEtcd::start().await;
    let kv = etcd.kv();
    let _other = node(&kv, "o2", 2, 100).await;
    let service = placement(kv.clone(), "p1").await;
    let client = client(&[&service]);
    // a process that died a moment ago: nobody listens, the lease has a minute to go
    let lease = kv.grant(Duration::from_secs(60)).await.expect("grant");
    let dead = NodeInfo { boot: 1, lease, ..info(100) };
    let put = Op::Put { key: keys::node("o1"), value: dead.encode_to_vec().into(), lease };
    kv.txn(vec![], vec![put]).await.expect("registered");
    seed(&kv, 5, "o1", 1).await;
    assert!(!client.suspect("o1", Boot(9), "gw-1", false).await.expect("another life"));
    assert!(!client.suspect("o1", Boot(1), "gw-2", true).await.expect("a live link"));
    assert!(!client.suspect("o1", Boot(1), "gw-1", false).await.expect("not while gw-2 is linked"));
    let acted = || async { client.suspect("o1", Boot(1), "gw-1", false).await.expect("suspect").then_some(()) };
    until("the link's word to grow old", acted).await;
    until("re-homing", || async { placements(&kv).await.iter().all(|(_, p)| p.owner == "o2").then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_node_hands_over_and_a_record_ahead_is_followed() {
    let etcd = TestEtcd::start().await;
    let kv = etcd.kv();
    let _drained = node(&kv, "o1", 1, 100).await;
    seed(&kv, 3, "o1", 1).await;
    let _other = node(&kv, "o2", 2, 100).await;
    let service = placement(kv.clone(), "p1").await;
    let client = client(&[&service]);
    let mut progress = client.drain_node("o1", 10).await.expect("drains");
    assert_eq!(progress.message().await.expect("progress").expect("a job").total, 3);
    for i in 0..3 {
        client.handed(&id(&format!("g_{i}")), 7, "o1", Boot(1)).await.expect("handed");
        client.handed(&id(&format!("g_{i}")), 7, "o1", Boot(1)).await.expect("again");
    }
    let moved = stored(&kv, "g_1").await;
    assert_eq!((moved.owner.as_str(), moved.epoch, moved.unowned_from_ms), ("o2", 2, 0));
    let mut last = None;
    while let Some(job) = progress.message().await.expect("progress") {
        last = Some(job.done);
    }
    assert_eq!(last, Some(3));
    let healed =
        client.report_epoch(&id("g_1"), 41, "o2", Boot(2)).await.expect("healed").placement.expect("placement");
    assert_eq!((healed.epoch, healed.owner.as_str()), (42, "o2"));
    let again = client.report_epoch(&id("g_1"), 41, "o2", Boot(2)).await.expect("nothing to heal");
    assert_eq!(again.placement.expect("placement").epoch, 42);
}
