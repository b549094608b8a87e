use std::sync::{Arc, Mutex};

use holdfast_core::{directory::State as Cache, session::Route};

use super::*;
use crate::placement::watch::{Change, Watcher};

fn watcher(kv: Kv) -> (Watcher, Arc<Mutex<Vec<Change>>>) {
    let news: Arc<Mutex<Vec<Change>>> = Arc::default();
    let seen = news.clone();
    (Watcher::spawn(kv, Arc::new(move |c| seen.lock().expect("news").push(c))), news)
}

async fn put(kv: &Kv, session: &str, epoch: u64) {
    let p = Placement { epoch, owner: format!("o{epoch}"), boot: epoch, kind: "game".into(), ..Placement::default() };
    let write = || async { kv.txn(vec![], vec![Op::put(keys::session(&id(session)), p.encode_to_vec())]).await.ok() };
    until("a write", write).await;
}

async fn sees(watcher: &Watcher, session: &str, epoch: u64) -> Route {
    let seen = || async { watcher.lookup(&id(session)).filter(|r| r.epoch == epoch) };
    until("the watcher to see it", seen).await
}

async fn in_state(watcher: &Watcher, state: Cache) {
    until("a state", || async { (watcher.state().state == state).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cache_follows_resolves_and_joins_addresses() {
    let etcd = TestEtcd::start().await;
    let kv = etcd.kv();
    put(&kv, "a", 1).await;
    let (watcher, news) = watcher(etcd.kv());
    watcher.synced().await;
    assert_eq!(sees(&watcher, "a", 1).await.addr, "".into());
    let lease = node(&kv, "o1", 1, 10).await;
    until("the address", || async { (&*watcher.lookup(&id("a"))?.addr == "127.0.0.1:1").then_some(()) }).await;
    lease.close().await;
    let gone = Change::NodeGone("o1".into(), Boot(1));
    until("the node's end", || async { news.lock().expect("news").contains(&gone).then_some(()) }).await;
    put(&kv, "a", 2).await;
    assert_eq!(watcher.resolve(&id("a")).await.expect("read").expect("there").epoch, 2);
    assert_eq!(watcher.resolve(&id("b")).await, Ok(None));
    let hint = Route { epoch: 3, ..watcher.lookup(&id("a")).expect("a") };
    assert!(watcher.hint(&id("a"), hint.clone()));
    assert!(!watcher.hint(&id("a"), hint));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cache_survives_a_restart_of_etcd() {
    let mut etcd = TestEtcd::start().await;
    let (watcher, _) = watcher(etcd.kv());
    put(&etcd.kv(), "a", 1).await;
    sees(&watcher, "a", 1).await;
    etcd.kill();
    in_state(&watcher, Cache::Stale).await;
    assert_eq!(watcher.lookup(&id("a")).expect("kept").epoch, 1);
    etcd.restart().await;
    put(&etcd.kv(), "a", 2).await;
    sees(&watcher, "a", 2).await;
    in_state(&watcher, Cache::Synced).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cache_survives_a_stopped_etcd() {
    let etcd = TestEtcd::start().await;
    let (watcher, news) = watcher(etcd.kv());
    put(&etcd.kv(), "a", 1).await;
    sees(&watcher, "a", 1).await;
    etcd.signal("STOP");
    in_state(&watcher, Cache::Stale).await;
    assert!(watcher.resolve(&id("a")).await.is_err());
    assert_eq!(watcher.lookup(&id("a")).expect("kept").epoch, 1);
    etcd.signal("CONT");
    put(&etcd.kv(), "a", 2).await;
    sees(&watcher, "a", 2).await;
    in_state(&watcher, Cache::Synced).await;
    let states = news
        .lock()
        .expect("news")
        .iter()
        .filter(|c| matches!(c, Change::Synced | Change::Stale))
        .cloned()
        .collect::<Vec<_>>();
    assert_eq!(states, [Change::Synced, Change::Stale, Change::Synced]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cache_lists_anew_after_compaction() {
    let kv = Kv::memory();
    let (watcher, _) = watcher(kv.clone());
    put(&kv, "a", 1).await;
    put(&kv, "b", 1).await;
    put(&kv, "c", 1).await;
    sees(&watcher, "c", 1).await;
    let Kv::Memory(memory) = &kv else { unreachable!() };
    kv.freeze();
    in_state(&watcher, Cache::Stale).await;
    // what happens while nobody watches is compacted before anybody can
    let changes = async {
        kv.thaw();
        let ops = vec![Op::Delete { key: keys::session(&id("b")) }];
        kv.txn(vec![], ops).await.expect("deleted");
        put(&kv, "a", 2).await;
        memory.compact(i64::MAX);
    };
    changes.await;
    sees(&watcher, "a", 2).await;
    until("b to be gone", || async { watcher.lookup(&id("b")).is_none().then_some(()) }).await;
    in_state(&watcher, Cache::Synced).await;
}
