//! Placement, two owners and a gateway in one process: an owner's death, seen from clients at the sessions' port.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use holdfast_core::{
    id::{ConnId, Lane, SessionId},
    proto::{CreateSessionRequest, OpId, Pos, client_frame::Op, server_frame::F},
    session::Arrival,
};
use tokio::{runtime::Runtime, sync::oneshot, time::timeout};

use super::*;
use crate::{
    gateway::port::{ClientSpec, Downstream},
    owner::{self, OwnerConfig},
    placement::{self, PlacementConfig},
    transport::outgoing::Outgoing,
    upstream::rpc::placement_service_client::PlacementServiceClient,
};

const SESSIONS: u64 = 40;

#[derive(Default)]
struct Client(Mutex<Vec<F>>);

impl Downstream for Client {
    fn deliver(&self, frame: Outgoing) {
        self.0.lock().unwrap().push(frame.frame().clone());
    }
    fn close(&self, code: u16, reason: &str) {
        panic!("closed {code} {reason}");
    }
}

impl Client {
    async fn until(&self, what: &str, is: impl Fn(&F) -> bool) {
        let found = async {
            while !self.0.lock().unwrap().iter().any(&is) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let found = timeout(Duration::from_secs(12), found).await;
        assert!(found.is_ok(), "{what}: not among {:?}", self.0.lock().unwrap());
    }

    async fn echoed(&self, seq: u64) {
        let own = |op: &Option<OpId>| op.as_ref().is_some_and(|op| op.seq == seq && op.lane.is_empty());
        let is = |f: &F| matches!(f, F::Event(e) if own(&e.op)) || matches!(f, F::Ack(a) if own(&a.op));
        self.until(&format!("op {seq}"), is).await;
    }
}

/// An owner whose process can be killed: its runtime is dropped, which closes its sockets and stops its renewals.
fn owner(name: &str, directory: &Kv, store: &Kv) -> Runtime {
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let config = OwnerConfig::new(name, directory.clone(), store.clone());
    process.spawn(async move { owner::run(config, std::future::pending()).await.unwrap() });
    process
}

fn op(session: &SessionId, seq: u64) -> Op {
    Op {
        session: session.to_string(),
        op: Some(OpId { seq, ..OpId::default() }),
        settled: seq,
        content: 1,
        payload: br#"{"ins":[0,"x"]}"#.as_slice().into(),
        attempt: 1,
        ..Default::default()
    }
}

async fn create(kv: &Kv, sessions: &[SessionId]) {
    let leader = async {
        loop {
            if let Some(item) = kv.get(placement::keys::LEADER.as_bytes()).await.unwrap().0 {
                let leader: holdfast_core::proto::Leader = prost::Message::decode(item.value).unwrap();
                return leader.addr;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let addr = timeout(Duration::from_secs(5), leader).await.unwrap();
    let mut client = PlacementServiceClient::connect(format!("http://{addr}")).await.unwrap();
    for session in sessions {
        let request =
            CreateSessionRequest { session: session.to_string(), kind: "document".into(), prefer_zone: String::new() };
        let mut tries = 0;
        // The first may come before an owner is known.
        while client
            .create_session(request.clone())
            .await
            .map_or(true, |r| r.into_inner().placement.is_none_or(|p| p.owner.is_empty()))
        {
            tries += 1;
            assert!(tries < 100, "{session} is not placed");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_in_flight_survive_an_owner_that_dies() {
    let (directory, store) = (Kv::memory(), Kv::memory());
    let config = PlacementConfig { listen: "127.0.0.1:0".into(), ..PlacementConfig::default() };
    tokio::spawn(placement::run(config, directory.clone(), std::future::pending()));
    let owners = [owner("n1", &directory, &store), owner("n2", &directory, &store)];
    let (tx, rx) = oneshot::channel();
    tokio::spawn(run(super::config(), Vec::new(), directory.clone(), std::future::pending(), |h| drop(tx.send(h))));
    let gateway = rx.await.unwrap();
    let sessions: Vec<_> = (0..SESSIONS).map(|n| SessionId::parse(&format!("doc{n}")).unwrap()).collect();
    create(&directory, &sessions).await;
    let mut clients = Vec::new();
    for (n, session) in (1..).zip(&sessions) {
        let client = Arc::new(Client::default());
        gateway.sessions.register(ConnId(n), client.clone(), "p".into());
        let spec = ClientSpec {
            conn: ConnId(n),
            principal: "p".into(),
            participant: "p".into(),
            role: 1,
            lane: Lane::parse(format!("lane{n:06}").as_bytes()).unwrap(),
            conn_seq: 1,
            n: 1,
            seen: Pos::default(),
            reconnect: false,
        };
        gateway.sessions.attach(session, spec);
        clients.push((ConnId(n), session, client));
    }
    let arrival = || Arrival { at: gateway.clock.now().wall, clock_id: gateway.clock.clock_id(), ..Arrival::default() };
    for (conn, session, client) in &clients {
        client.until("attached", |f| matches!(f, F::Attached(_))).await;
        gateway.sessions.op(session, *conn, op(session, 1), arrival());
        client.echoed(1).await;
    }
    let [first, second] = owners;
    first.shutdown_background();
    let died = Instant::now();
    for (conn, session, _) in &clients {
        gateway.sessions.op(session, *conn, op(session, 2), arrival());
    }
    for (_, _, client) in &clients {
        client.echoed(2).await;
    }
    let took = died.elapsed();
    println!("all {SESSIONS} sessions resumed {took:?} after the death");
    assert_eq!(gateway.sessions.held_ops(), 0);
    assert!(took < Duration::from_secs(6), "{took:?}");
    let text = gateway.metrics().encode();
    println!(
        "{}",
        text.lines().filter(|l| !l.contains("_bucket") && !l.starts_with('#')).collect::<Vec<_>>().join("\n")
    );
    second.shutdown_background();
}
