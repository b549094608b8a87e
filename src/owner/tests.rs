//! An owner over real gRPC, with the directory and the store in memory.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use holdfast_core::{
    id::SessionId,
    message::{encode, op_id},
    proto::{
        Code, Content, GatewayBatch, GatewayMsg, HeldOp, OwnerBatch, Placement, Pos,
        gateway_msg::{self, M, Origin},
        owner_msg::{self, health::Store as Health},
        placement::State,
    },
};
use prost::Message;
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{Counters, OwnerConfig, run_with};
use crate::{
    placement::{
        keys,
        kv::{Kv, Op},
    },
    upstream::rpc::owner_client::OwnerClient,
};

const LANE: &[u8] = b"lanelane";

struct Bed {
    directory: Kv,
    store: Kv,
}

struct Running {
    addr: String,
    boot: u64,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    task: JoinHandle<anyhow::Result<()>>,
    counters: Arc<Counters>,
}

struct Link {
    tx: mpsc::Sender<GatewayBatch>,
    rx: Streaming<OwnerBatch>,
    seq: u64,
    got: std::collections::VecDeque<owner_msg::M>,
}

impl Bed {
    fn new() -> Self {
        Self { directory: Kv::memory(), store: Kv::memory() }
    }

    async fn owner(&self, node: &str) -> Running {
        let mut config = OwnerConfig::new(node, self.directory.clone(), self.store.clone());
        config.drain_max = Duration::from_millis(300);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let counters = Arc::new(Counters::default());
        let task = tokio::spawn(run_with(config, counters.clone(), async move {
            let _asked = stopped.await;
        }));
        for _ in 0..200 {
            if let Some(item) = self.directory.get(&keys::node(node)).await.unwrap().0 {
                let info = holdfast_core::proto::NodeInfo::decode(item.value).unwrap();
                return Running { addr: info.addr, boot: info.boot, stop: Some(stop), task, counters };
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("not registered");
    }

    async fn place(&self, session: &str, epoch: u64, node: &str, boot: u64, kind: &str) {
        let placement = Placement {
            epoch,
            owner: node.into(),
            boot,
            state: State::Active.into(),
            kind: kind.into(),
            ..Placement::default()
        };
        let key = keys::session(&SessionId::parse(session).unwrap());
        self.directory.txn(vec![], vec![Op::put(key, placement.encode_to_vec())]).await.unwrap();
    }
}

impl Running {
    async fn dial(&self) -> Link {
        let mut client = OwnerClient::connect(format!("http://{}", self.addr)).await.unwrap();
        let (tx, rx) = mpsc::channel(64);
        let hello = gateway_msg::Hello {
            version_min: 1,
            version_max: 1,
            gateway_id: "gw".into(),
            boot: 7,
            link_seq: 1,
            expect_boot: self.boot,
            ..Default::default()
        };
        let first = GatewayBatch { msgs: vec![GatewayMsg { m: Some(M::Hello(hello)) }], seq: 1, through_us: 0 };
        tx.send(first).await.unwrap();
        let rx = client.link(ReceiverStream::new(rx)).await.unwrap().into_inner();
        let mut link = Link { tx, rx, seq: 1, got: Default::default() };
        let owner_msg::M::Hello(hello) = link.next().await else { panic!("no hello") };
        assert_eq!((hello.boot, hello.version), (self.boot, 1));
        link
    }
}

impl Link {
    async fn say(&mut self, msgs: Vec<M>) {
        self.seq += 1;
        let msgs = msgs.into_iter().map(|m| GatewayMsg { m: Some(m) }).collect();
        self.tx.send(GatewayBatch { msgs, seq: self.seq, through_us: 0 }).await.unwrap();
    }

    /// The next message that is no ping.
    async fn next(&mut self) -> owner_msg::M {
        loop {
            while let Some(m) = self.got.pop_front() {
                if !matches!(m, owner_msg::M::Ping(_)) {
                    return m;
                }
            }
            let batch =
                timeout(Duration::from_secs(5), self.rx.message()).await.expect("silent").unwrap().expect("over");
            self.got.extend(batch.msgs.into_iter().filter_map(|m| m.m));
        }
    }
}

fn join(session: &str, epoch: u64) -> M {
    M::Join(gateway_msg::Join { session: session.into(), epoch, have: Some(Pos::default()), ..Default::default() })
}

fn op(session: &str, epoch: u64, seq: u64, payload: String) -> M {
    let held = HeldOp {
        session: session.into(),
        op: Some(op_id(LANE, seq)),
        content: Content::Json.into(),
        payload: payload.clone().into(),
        digest: Bytes::copy_from_slice(&seq.to_le_bytes()),
        principal: "p".into(),
        participant: "p".into(),
        client_attempt: 1,
        ..Default::default()
    };
    M::Op(gateway_msg::OpEnvelope {
        epoch,
        held: encode(&held),
        attempt: 1,
        origin: Origin::Live.into(),
        ..Default::default()
    })
}

fn hand(up: bool) -> String {
    format!("{{\"hand\":{up}}}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_op_is_echoed_and_the_next_owner_knows_it() {
    let bed = Bed::new();
    let one = bed.owner("o1").await;
    bed.place("m1", 1, "o1", one.boot, "meeting").await;
    let mut link = one.dial().await;
    link.say(vec![join("m1", 1)]).await;
    let owner_msg::M::Joined(joined) = link.next().await else { panic!("not joined") };
    assert_eq!(joined.head, Some(Pos { epoch: 1, ver: 0 }));
    assert!(matches!(link.next().await, owner_msg::M::State(_)));
    link.say(vec![op("m1", 1, 1, hand(true)), op("m1", 1, 2, hand(false)), op("m1", 1, 4, hand(true))]).await;
    let mut events = 0;
    loop {
        match link.next().await {
            owner_msg::M::Event(e) => events += u64::from(e.at.is_some_and(|at| at.epoch == 1)),
            owner_msg::M::Nack(n) => {
                assert_eq!((n.code(), n.expected_seq), (Code::Gap, 3));
                if events == 2 {
                    break;
                }
            }
            other => panic!("{other:?}"),
        }
        if events == 2 && one.counters.sent.get() >= 5 {
            break;
        }
    }

    // killed without a word; the next one claims and remembers
    one.task.abort();
    let two = bed.owner("o2").await;
    bed.place("m1", 2, "o2", two.boot, "meeting").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut link = two.dial().await;
    link.say(vec![join("m1", 2), op("m1", 2, 2, hand(false))]).await;
    let owner_msg::M::Joined(joined) = link.next().await else { panic!("not joined") };
    assert_eq!(joined.head, Some(Pos { epoch: 2, ver: 2 }));
    assert!(matches!(link.next().await, owner_msg::M::State(_)));
    let owner_msg::M::Committed(committed) = link.next().await else { panic!("not a dup") };
    assert_eq!((committed.epoch, committed.ver, committed.dup), (2, 2, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_faster_than_the_watch_is_answered_when_the_watch_comes() {
    let bed = Bed::new();
    let one = bed.owner("o1").await;
    let mut link = one.dial().await;
    link.say(vec![join("m1", 1), op("m1", 1, 1, hand(true)), join("m2", 1)]).await;
    while one.counters.early_joins.get() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    bed.place("m1", 1, "o1", one.boot, "meeting").await;
    assert!(matches!(link.next().await, owner_msg::M::Joined(_)));
    assert!(matches!(link.next().await, owner_msg::M::State(_)));
    let owner_msg::M::Event(event) = link.next().await else { panic!("not echoed") };
    assert_eq!(event.at, Some(Pos { epoch: 1, ver: 1 }));
    // of the other nobody ever hears here
    let owner_msg::M::NotOwner(no) = link.next().await else { panic!("not refused") };
    assert_eq!((no.session.as_str(), no.your_epoch), ("m2", 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sick_store_is_told_within_a_second_and_recovers() {
    let bed = Bed::new();
    let one = bed.owner("o1").await;
    bed.place("m1", 1, "o1", one.boot, "meeting").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut link = one.dial().await;
    link.say(vec![join("m1", 1)]).await;
    assert!(matches!(link.next().await, owner_msg::M::Joined(_)));
    assert!(matches!(link.next().await, owner_msg::M::State(_)));
    bed.store.freeze();
    let begun = std::time::Instant::now();
    link.say(vec![op("m1", 1, 1, hand(true))]).await;
    let owner_msg::M::Health(health) = link.next().await else { panic!("not told") };
    assert_eq!(health.store(), Health::Down);
    assert!(begun.elapsed() < Duration::from_millis(1_100), "{:?}", begun.elapsed());
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    bed.store.thaw();
    let (mut well, mut settled) = (false, false);
    while !(well && settled) {
        match link.next().await {
            owner_msg::M::Health(h) => well |= h.store() == Health::Ok && !h.sessions.is_empty(),
            owner_msg::M::Nack(n) => {
                assert_eq!(n.code(), Code::StoreUnavailable);
                settled = true;
            }
            owner_msg::M::Event(_) | owner_msg::M::Committed(_) => settled = true,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_sessions_are_claimed_at_once_and_a_drain_hands_them_over() {
    let bed = Bed::new();
    let mut one = bed.owner("o1").await;
    let begun = std::time::Instant::now();
    for n in 0..1_120 {
        bed.place(&format!("m{n}"), 1, "o1", one.boot, "meeting").await;
    }
    while one.counters.writes.get() < 1_120 {
        assert!(begun.elapsed() < Duration::from_secs(5), "{} claimed", one.counters.writes.get());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut link = one.dial().await;
    link.say(vec![join("m7", 1)]).await;
    assert!(matches!(link.next().await, owner_msg::M::Joined(_)));
    assert!(matches!(link.next().await, owner_msg::M::State(_)));
    let _asked = one.stop.take().map(|s| s.send(()));
    assert!(matches!(link.next().await, owner_msg::M::Draining(_)));
    assert!(timeout(Duration::from_secs(5), one.task).await.unwrap().unwrap().is_ok());
    assert!(bed.directory.get(&keys::node("o1")).await.unwrap().0.is_none(), "the lease was revoked");
}
