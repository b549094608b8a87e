use super::*;
use crate::placement::lease::node_lease;

#[test]
fn the_shortest_lease_of_a_nodes_kinds_counts() {
    let of = |kinds: &[&str]| node_lease(&kinds.iter().map(|k| (*k).to_owned()).collect::<Vec<_>>());
    let s = Duration::from_secs;
    assert_eq!(of(&["document", "game:180+2"]), (s(3), s(1)));
    assert_eq!(of(&["document", "meeting"]), (s(10), s(3)));
    assert_eq!(of(&["document"]), (s(15), s(5)));
}

async fn registered(kv: &Kv, name: &str) -> Option<NodeInfo> {
    let item = kv.get(&keys::node(name)).await.expect("get").0?;
    Some(NodeInfo::decode(item.value).expect("info"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lease_means_a_new_life() {
    let etcd = TestEtcd::start().await;
    let kv = etcd.kv();
    let lease = node(&kv, "o1", 7, 10).await;
    let first = registered(&kv, "o1").await.expect("registered");
    assert_eq!((first.boot, first.lease), (7, lease.now().lease));
    lease.update(|i| i.draining = true);
    until("an update", || async { registered(&kv, "o1").await.filter(|i| i.draining) }).await;
    kv.revoke(first.lease).await.expect("revoked");
    let mut state = lease.state();
    let new = *state.wait_for(|s| s.held && s.boot != Boot(7)).await.expect("a new life");
    let second = registered(&kv, "o1").await.expect("registered");
    assert_eq!((second.boot, second.lease, second.draining), (new.boot.0, new.lease, true));
    lease.close().await;
    assert_eq!(registered(&kv, "o1").await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_its_ttl_a_node_knows_by_its_own_clock() {
    let kv = Kv::memory();
    let lease = node(&kv, "o1", 7, 10).await;
    kv.freeze();
    let mut state = lease.state();
    state.wait_for(|s| !s.held).await.expect("lapsed");
    kv.thaw();
    let back = *state.wait_for(|s| s.held).await.expect("held again");
    assert_eq!(back.boot, Boot(7), "the directory kept the lease: the same life");
}
