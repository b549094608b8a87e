//! Placement against a real etcd. Every test waits for conditions, none for a time.

mod directory;
mod lease;
mod rehoming;
mod service;

use std::{future::Future, time::Duration};

use holdfast_core::{
    id::{Boot, SessionId},
    proto::{NodeInfo, Placement, placement::State},
};
use prost::Message as _;
use tokio::{net::TcpListener, task::JoinHandle};

use super::{
    PlacementConfig,
    client::PlacementClient,
    keys,
    kv::{Item, Kv, Op},
    lease::NodeLease,
    run_on,
    testing::TestEtcd,
};

/// Longest wait for anything: a lease of 3 s, an election, a loaded machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// Polls until `check` gives something.
async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut check: impl FnMut() -> F) -> T {
    let polled = async {
        loop {
            if let Some(t) = check().await {
                return t;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, polled).await.unwrap_or_else(|_| panic!("waited in vain for: {what}"))
}

fn id(s: &str) -> SessionId {
    SessionId::parse(s).expect("an id")
}

/// A running placement service; aborting its task is its crash.
struct Service {
    addr: String,
    task: JoinHandle<()>,
}

async fn placement(kv: Kv, name: &str) -> Service {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("an address").to_string();
    let config = PlacementConfig { node: name.into(), ..PlacementConfig::default() };
    let task =
        tokio::spawn(async move { run_on(config, kv, listener, std::future::pending()).await.expect("placement") });
    Service { addr, task }
}

fn client(services: &[&Service]) -> PlacementClient {
    PlacementClient::new(services.iter().map(|s| s.addr.clone()).collect(), None)
}

fn info(cap: u32) -> NodeInfo {
    NodeInfo { addr: "127.0.0.1:1".into(), kinds: vec!["game".into()], cap, ..NodeInfo::default() }
}

async fn node(kv: &Kv, name: &str, boot: u64, cap: u32) -> NodeLease {
    let lease = NodeLease::spawn(kv.clone(), name, Boot(boot), info(cap));
    lease.registered().await;
    lease
}

async fn placements(kv: &Kv) -> Vec<(Item, Placement)> {
    let page = kv.range(b"/hf/dir/p/", b"/hf/dir/p0", 0, 0).await.expect("range");
    page.items.into_iter().map(|i| (i.clone(), Placement::decode(i.value).expect("a placement"))).collect()
}

async fn stored(kv: &Kv, session: &str) -> Placement {
    let item = kv.get(&keys::session(&id(session))).await.expect("get").0.expect("a placement");
    Placement::decode(item.value).expect("a placement")
}

/// Writes `n` units of one owner past the service.
async fn seed(kv: &Kv, n: usize, owner: &str, boot: u64) {
    let placement = Placement {
        epoch: 1,
        owner: owner.into(),
        boot,
        kind: "game:180+2".into(),
        state: State::Active.into(),
        ..Placement::default()
    };
    let units: Vec<usize> = (0..n).collect();
    for batch in units.chunks(100) {
        let put = |i: &usize| Op::put(keys::session(&id(&format!("g_{i}"))), placement.encode_to_vec());
        kv.txn(vec![], batch.iter().map(put).collect()).await.expect("txn");
    }
}
