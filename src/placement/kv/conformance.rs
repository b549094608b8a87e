//! One test for both stores.

use super::*;

async fn events(watch: &mut Watch, n: usize) -> Vec<KvEvent> {
    let mut all = Vec::new();
    while all.len() < n {
        all.extend(watch.next().await.expect("watch").events);
    }
    all
}

/// Everything the directory and the store rely on; `p` is a prefix of its own.
pub(crate) async fn conforms(kv: &Kv, p: &str) {
    let key = |s: &str| format!("{p}{s}").into_bytes();
    transactions(kv, &key).await;
    ranges(kv, &key).await;
    leases(kv, &key).await;
}

async fn transactions(kv: &Kv, key: &(dyn Fn(&str) -> Vec<u8> + Sync)) {
    let (none, start) = kv.get(&key("a")).await.expect("get");
    assert_eq!(none, None);
    let create = vec![Compare::CreateRev(key("a"), 0), Compare::ModRev(key("b"), 0)];
    let ops = vec![Op::put(key("a"), "1"), Op::put(key("b"), "2")];
    let reply = kv.txn(create.clone(), ops.clone()).await.expect("txn");
    assert_eq!(reply, TxnReply { succeeded: true, revision: start + 1 });
    let again = kv.txn(create, ops).await.expect("txn");
    assert_eq!(again, TxnReply { succeeded: false, revision: start + 1 });
    let (a, rev) = kv.get(&key("a")).await.expect("get");
    let rev1 = start + 1;
    let want = Item { key: key("a"), value: "1".into(), create_rev: rev1, mod_rev: rev1, lease: 0 };
    assert_eq!((a, rev), (Some(want), rev1));
    let change = kv.txn(vec![Compare::ModRev(key("a"), rev1)], vec![Op::put(key("a"), "3")]).await.expect("txn");
    assert!(change.succeeded);
    let a = kv.get(&key("a")).await.expect("get").0.expect("a");
    assert_eq!((a.create_rev, a.mod_rev), (rev1, rev1 + 1));
    kv.txn(vec![], vec![Op::Delete { key: key("b") }]).await.expect("txn");
    let nothing = kv.txn(vec![], vec![Op::Delete { key: key("b") }]).await.expect("txn");
    assert_eq!(nothing.revision, rev1 + 2, "a transaction that changes nothing makes no revision");
    let mut watch = kv.watch(&key("a"), &key("c"), rev1).await.expect("watch");
    let seen = events(&mut watch, 4).await;
    assert!(matches!(&seen[0], KvEvent::Put(i) if i.value == "1"));
    assert!(matches!(&seen[2], KvEvent::Put(i) if i.value == "3" && i.mod_rev == rev1 + 1));
    assert_eq!(seen[3], KvEvent::Delete { key: key("b"), mod_rev: rev1 + 2 });
}

async fn ranges(kv: &Kv, key: &(dyn Fn(&str) -> Vec<u8> + Sync)) {
    let puts = (0..5).map(|i| Op::put(key(&format!("r{i}")), "x")).collect();
    let rev = kv.txn(vec![], puts).await.expect("txn").revision;
    kv.txn(vec![], vec![Op::Delete { key: key("r4") }, Op::put(key("r0"), "y")]).await.expect("txn");
    let page = kv.range(&key("r"), &key("s"), 3, rev).await.expect("range");
    assert_eq!((page.items.len(), page.more, page.items[0].value.clone()), (3, true, "x".into()));
    let rest = kv.range(&key("r3"), &key("s"), 3, rev).await.expect("range");
    assert_eq!((rest.items.len(), rest.more), (2, false));
    assert_eq!(kv.range(&key("r"), &key("s"), 0, 0).await.expect("range").items.len(), 4);
    kv.txn(vec![], vec![Op::DeleteRange { from: key("r"), to: key("s") }]).await.expect("txn");
    assert_eq!(kv.range(&key("r"), &key("s"), 0, 0).await.expect("range").items.len(), 0);
}

async fn leases(kv: &Kv, key: &(dyn Fn(&str) -> Vec<u8> + Sync)) {
    let lease = kv.grant(Duration::from_secs(1)).await.expect("grant");
    let put = |k: &str| Op::Put { key: key(k), value: "v".into(), lease };
    let rev = kv.txn(vec![], vec![put("l1")]).await.expect("txn").revision;
    assert_eq!(kv.get(&key("l1")).await.expect("get").0.expect("l1").lease, lease);
    assert!(kv.keep_alive(lease).await.expect("alive") > Duration::ZERO);
    let mut watch = kv.watch(&key("l"), &key("m"), rev + 1).await.expect("watch");
    assert!(matches!(&events(&mut watch, 1).await[0], KvEvent::Delete { key: k, .. } if *k == key("l1")));
    assert_eq!(kv.keep_alive(lease).await, Ok(Duration::ZERO));
    assert_eq!(kv.txn(vec![], vec![put("l2")]).await, Err(KvError::LeaseGone));
    let lease = kv.grant(Duration::from_secs(60)).await.expect("grant");
    kv.txn(vec![], vec![Op::Put { key: key("l3"), value: "v".into(), lease }]).await.expect("txn");
    kv.revoke(lease).await.expect("revoke");
    kv.revoke(lease).await.expect("twice is fine");
    assert_eq!(kv.get(&key("l3")).await.expect("get").0, None);
}

#[tokio::test]
async fn memory_conforms() {
    conforms(&Kv::memory(), "/t/").await;
}

#[tokio::test]
async fn etcd_conforms() {
    let etcd = crate::placement::testing::TestEtcd::start().await;
    conforms(&etcd.kv(), "/t/").await;
}

#[tokio::test]
async fn etcd_says_compacted_and_refused() {
    let mut etcd = crate::placement::testing::TestEtcd::start().await;
    let kv = etcd.kv();
    for _ in 0..3 {
        kv.txn(vec![], vec![Op::put("k", "v")]).await.expect("txn");
    }
    let mut client = etcd_client::Client::connect([etcd.endpoint()], None).await.expect("client");
    client.compact(4, None).await.expect("compacted");
    let mut old = kv.watch(b"a", b"z", 2).await.expect("watch");
    let refused = loop {
        match old.next().await {
            Ok(batch) => assert_eq!(batch.events, []),
            Err(e) => break e,
        }
    };
    assert_eq!(refused, KvError::Compacted(4));
    assert_eq!(kv.range(b"a", b"z", 0, 2).await, Err(KvError::Compacted(0)));
    etcd.kill();
    // the broken connection first, whose fate is unknown; then nobody listens
    let _broken = kv.txn(vec![], vec![Op::put("k", "w")]).await;
    let refused = kv.txn(vec![], vec![Op::put("k", "w")]).await;
    assert!(matches!(refused, Err(KvError::Unavailable(_))), "{refused:?}");
}

#[tokio::test]
async fn memory_compacts_and_freezes() {
    let kv = Kv::memory();
    for _ in 0..3 {
        kv.txn(vec![], vec![Op::put("k", "v")]).await.expect("txn");
    }
    let Kv::Memory(m) = &kv else { unreachable!() };
    m.compact(4);
    let mut old = kv.watch(b"a", b"z", 2).await.expect("watch");
    assert_eq!(old.next().await, Err(KvError::Compacted(4)));
    assert_eq!(kv.range(b"a", b"z", 0, 2).await, Err(KvError::Compacted(4)));
    let mut live = kv.watch(b"a", b"z", 5).await.expect("watch");
    kv.freeze();
    assert!(matches!(kv.get(b"k").await, Err(KvError::Unknown(_))));
    assert!(matches!(live.next().await, Err(KvError::Unknown(_))));
    kv.thaw();
    assert!(kv.get(b"k").await.is_ok());
}
