//! Sessions between a client that records its frames and a link whose queue the test reads.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use holdfast_core::{
    id::{ConnId, Lane},
    proto::{
        Code, OpId, Pos, client_frame,
        gateway_msg::M,
        owner_msg,
        server_frame::{F, status::State},
    },
    session::Arrival,
};
use tokio::{sync::watch, task::JoinHandle, time::timeout};

use super::*;
use crate::upstream::{LinkEvents, Nodes, batch::Queued, dial::LinkConfig};
use crate::{
    gateway::port::{ClientSpec, Downstream, SessionPort as _},
    transport::outgoing::Outgoing,
};

const BOOT: Boot = Boot(0xb007);

#[derive(Default)]
struct Frames(Mutex<Vec<F>>, Mutex<Vec<u16>>);

impl Downstream for Frames {
    fn deliver(&self, frame: Outgoing) {
        self.0.lock().unwrap().push(frame.frame().clone());
    }
    fn close(&self, code: u16, _reason: &str) {
        self.1.lock().unwrap().push(code);
    }
}

impl Frames {
    fn take(&self) -> Vec<F> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    async fn until(&self, is: impl Fn(&F) -> bool) -> F {
        let found = async {
            loop {
                if let Some(f) = self.0.lock().unwrap().iter().find(|f| is(f)) {
                    return f.clone();
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let found = timeout(Duration::from_secs(3), found).await;
        found.unwrap_or_else(|_| panic!("not among {:?}", self.0.lock().unwrap()))
    }
}

/// A directory that fails as often as it is told to.
#[derive(Default)]
struct Fake {
    route: Mutex<Option<Route>>,
    failures: AtomicU64,
    reads: AtomicU64,
}

impl Directory for Fake {
    fn lookup(&self, _session: &SessionId) -> Option<Route> {
        self.route.lock().unwrap().clone()
    }
    fn resolve<'a>(&'a self, _session: &'a SessionId) -> BoxFuture<'a, Result<Option<Route>, String>> {
        Box::pin(async {
            self.reads.fetch_add(1, Ordering::Relaxed);
            let fails = self.failures.load(Ordering::Relaxed) > 0;
            if fails {
                self.failures.fetch_sub(1, Ordering::Relaxed);
                return Err("down".into());
            }
            Ok(self.route.lock().unwrap().clone())
        })
    }
}

struct Nobody;
impl Nodes for Nobody {
    fn node(&self, _name: &str) -> Option<(Boot, Arc<str>)> {
        None
    }
}

struct World {
    sessions: Arc<Sessions>,
    directory: Arc<Fake>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

fn world(held: HeldBudget) -> World {
    let (clock, metrics, directory) = (Clock::start(), Arc::new(Metrics::new()), Arc::new(Fake::default()));
    let pool = Pool::new(LinkConfig::new("gw"), clock.clone(), metrics.clone(), Arc::new(Nobody));
    let suspects = mpsc::channel(SUSPECTS_QUEUED).0;
    let parts = Parts { clock, metrics, pool, directory: directory.clone(), held, suspects };
    let sessions = Arc::new(Sessions::new(parts));
    let (stop, stopped) = watch::channel(false);
    let (s, w) = (sessions.clone(), stopped.clone());
    let timers = tokio::spawn(async move { s.run_timers(w).await });
    let s = sessions.clone();
    let resolver = tokio::spawn(async move { s.run_resolver(stopped).await });
    World { sessions, directory, stop, tasks: vec![timers, resolver] }
}

impl World {
    fn owned(self) -> Self {
        *self.directory.route.lock().unwrap() = Some(route(BOOT, 1));
        self
    }

    fn client(&self, conn: u64, session: &SessionId) -> Arc<Frames> {
        let frames = Arc::new(Frames::default());
        self.sessions.register(ConnId(conn), frames.clone(), "p".into());
        self.sessions.attach(session, spec(conn));
        frames
    }

    fn op(&self, conn: u64, session: &SessionId, seq: u64) {
        let op = client_frame::Op {
            session: session.to_string(),
            op: Some(OpId { seq, ..OpId::default() }),
            payload: b"{}".as_slice().into(),
            attempt: 1,
            ..Default::default()
        };
        self.sessions.op(session, ConnId(conn), op, Arrival::default());
    }

    fn owner(&self, link: &LinkTx, msg: owner_msg::M) {
        self.sessions.message(link, msg);
    }

    /// The owner answers join and attach of a session's only client.
    fn admit(&self, link: &LinkTx, session: &SessionId, att: u32) {
        let head = Some(Pos { epoch: 1, ver: 0 });
        let joined = owner_msg::Joined { session: session.to_string(), head, resume: 3, ..Default::default() };
        self.owner(link, owner_msg::M::Joined(joined));
        let attached = owner_msg::Attached { session: session.to_string(), epoch: 1, att, head, ..Default::default() };
        self.owner(link, owner_msg::M::Attached(attached));
        let state = owner_msg::State { session: session.to_string(), at: head, to_att: att, ..Default::default() };
        self.owner(link, owner_msg::M::State(state));
    }

    async fn end(self) {
        self.stop.send_replace(true);
        for task in self.tasks {
            timeout(Duration::from_secs(1), task).await.unwrap().unwrap();
        }
    }
}

fn id(name: &str) -> SessionId {
    SessionId::parse(name).unwrap()
}

fn lane(conn: u64) -> Lane {
    Lane::parse(format!("lane{conn:06}").as_bytes()).unwrap()
}

fn spec(conn: u64) -> ClientSpec {
    ClientSpec {
        conn: ConnId(conn),
        principal: "p".into(),
        participant: "white".into(),
        role: 1,
        lane: lane(conn),
        conn_seq: 1,
        n: 1,
        seen: Pos::default(),
        reconnect: false,
    }
}

fn route(boot: Boot, epoch: u64) -> Route {
    let (node, addr, kind) = ("n1".into(), "127.0.0.1:9".into(), "document".into());
    Route { epoch, boot, node, addr, kind, ended: false, revision: 5, unowned_from_ms: 0 }
}

fn sent(rx: &mut mpsc::Receiver<Queued>) -> Vec<M> {
    std::iter::from_fn(|| rx.try_recv().ok()).map(|q| q.msg).collect()
}

fn att_of(msgs: &[M]) -> u32 {
    msgs.iter().find_map(|m| if let M::Attach(a) = m { Some(a.att) } else { None }).unwrap()
}

#[tokio::test]
async fn an_op_goes_up_and_its_ack_comes_down() {
    let (w, g) = (world(HeldBudget::default()).owned(), id("g1"));
    let client = w.client(1, &g);
    assert_eq!(w.sessions.bound(BOOT), 1);
    let (link, mut rx) = LinkTx::fake(7, BOOT, 1024);
    w.sessions.up(&link).await;
    let msgs = sent(&mut rx);
    assert!(matches!(&msgs[..], [M::Join(_), M::Attach(_), .., M::ReplayDone(_)]), "{msgs:?}");
    w.admit(&link, &g, att_of(&msgs));
    client.until(|f| matches!(f, F::Attached(_))).await;
    sent(&mut rx);
    w.op(1, &g, 1);
    assert_eq!(w.sessions.held_ops(), 1);
    assert_eq!(w.sessions.held(10)[0].seq, 1);
    let queued = rx.try_recv().unwrap();
    assert!(matches!(queued.msg, M::Op(_)) && queued.since.is_some(), "{queued:?}");
    let op = Some(OpId { lane: lane(1).as_bytes().to_vec().into(), seq: 1 });
    let event = owner_msg::Event {
        session: "g1".into(),
        at: Some(Pos { epoch: 1, ver: 1 }),
        op: op.clone(),
        ..Default::default()
    };
    w.owner(&link, owner_msg::M::Event(event));
    let committed = owner_msg::Committed { session: "g1".into(), epoch: 1, op, ver: 1, ..Default::default() };
    w.owner(&link, owner_msg::M::Committed(committed));
    client.until(|f| matches!(f, F::Event(e) if e.op.is_some())).await;
    assert_eq!(w.sessions.held_ops(), 0);
    w.end().await;
}

#[tokio::test]
async fn a_thousand_held_ops_are_resent_at_once_after_a_link_loss_and_those_who_wait_come_first() {
    let w = world(HeldBudget::default()).owned();
    let (link, mut rx) = LinkTx::fake(1, BOOT, 1 << 16);
    w.sessions.up(&link).await;
    // 2,000 sessions; every tenth will hold 5 ops.
    let all: Vec<_> = (1..=2000u64).map(|n| (n, id(&format!("s{n}")))).collect();
    for (n, s) in &all {
        w.client(*n, s);
    }
    // Bound but not up: the pool of this world has no links, so the test says so itself.
    w.sessions.down(&link).await;
    let (link, mut rx2) = LinkTx::fake(2, BOOT, 1 << 16);
    w.sessions.up(&link).await;
    sent(&mut rx);
    for (n, s) in all.iter().filter(|(n, _)| n % 10 == 0) {
        (1..=5).for_each(|seq| w.op(*n, s, seq));
    }
    assert_eq!(w.sessions.held_ops(), 1000);
    sent(&mut rx2);
    w.sessions.down(&link).await;
    let (link, mut rx3) = LinkTx::fake(3, BOOT, 1 << 16);
    let began = Instant::now();
    w.sessions.up(&link).await;
    let took = began.elapsed();
    let msgs = sent(&mut rx3);
    let last_op = msgs.iter().rposition(|m| matches!(m, M::Op(_))).unwrap();
    let joins_before = msgs[..last_op].iter().filter(|m| matches!(m, M::Join(_))).count();
    let ops = msgs.iter().filter(|m| matches!(m, M::Op(o) if o.attempt == 2)).count();
    assert_eq!((ops, joins_before), (1000, 200));
    assert!(took < Duration::from_millis(800), "{took:?}");
    w.end().await;
}

#[tokio::test]
async fn a_replay_larger_than_the_queue_waits_for_room() {
    let w = world(HeldBudget::default()).owned();
    for n in 1..=100 {
        w.client(n, &id(&format!("s{n}")));
    }
    let (link, mut rx) = LinkTx::fake(1, BOOT, 64);
    let drained = tokio::spawn(async move {
        let mut joins = 0;
        while joins < 100 {
            joins += usize::from(matches!(rx.recv().await.unwrap().msg, M::Join(_)));
            tokio::task::yield_now().await;
        }
    });
    timeout(Duration::from_secs(3), w.sessions.up(&link)).await.unwrap();
    timeout(Duration::from_secs(3), drained).await.unwrap().unwrap();
    w.end().await;
}

#[tokio::test]
async fn what_is_not_there_is_refused_after_a_read_that_is_tried_until_it_works() {
    let (w, g) = (world(HeldBudget::default()), id("none"));
    w.directory.failures.store(2, Ordering::Relaxed);
    let client = w.client(1, &g);
    let f = client.until(|f| matches!(f, F::Detached(_))).await;
    assert!(matches!(f, F::Detached(d) if d.code == i32::from(Code::NoSession)));
    assert_eq!(w.directory.reads.load(Ordering::Relaxed), 3);
    w.end().await;
}

#[tokio::test]
async fn the_timer_tells_a_client_whose_owner_does_not_answer() {
    let (w, g) = (world(HeldBudget::default()).owned(), id("g1"));
    let client = w.client(1, &g);
    let began = Instant::now();
    client.until(|f| matches!(f, F::Status(s) if s.state == i32::from(State::Moving))).await;
    assert!(began.elapsed() < Duration::from_millis(1300), "{:?}", began.elapsed());
    w.end().await;
}

#[tokio::test]
async fn budgets_refuse_new_ops_and_keep_held_ones() {
    let held = HeldBudget { ops_max: 2, ..HeldBudget::default() };
    let (w, g) = (world(held).owned(), id("g1"));
    let client = w.client(1, &g);
    (1..=3).for_each(|seq| w.op(1, &g, seq));
    let nacks: Vec<_> = client.take().into_iter().filter(|f| matches!(f, F::Nack(_))).collect();
    assert!(matches!(&nacks[..], [F::Nack(n)] if n.code == i32::from(Code::Overloaded)), "{nacks:?}");
    assert_eq!(w.sessions.held_ops(), 2);
    w.end().await;
}

#[tokio::test]
async fn an_op_without_an_attachment_is_sent_back() {
    let w = world(HeldBudget::default());
    let client = Arc::new(Frames::default());
    w.sessions.register(ConnId(1), client.clone(), "p".into());
    w.op(1, &id("g1"), 4);
    assert!(matches!(&client.take()[..], [F::Nack(n)] if n.code == i32::from(Code::TryAfterAttach)));
    w.end().await;
}

#[tokio::test]
async fn a_higher_epoch_moves_a_session_to_the_other_link_and_a_stale_frame_is_dropped() {
    let (w, g) = (world(HeldBudget::default()).owned(), id("g1"));
    let client = w.client(1, &g);
    let (old, mut rx) = LinkTx::fake(1, BOOT, 1024);
    w.sessions.up(&old).await;
    let att = att_of(&sent(&mut rx));
    w.admit(&old, &g, att);
    w.op(1, &g, 1);
    w.sessions.route(&g, &route(Boot(2), 2));
    assert_eq!((w.sessions.bound(BOOT), w.sessions.bound(Boot(2))), (0, 1));
    let (new, mut rx2) = LinkTx::fake(2, Boot(2), 1024);
    w.sessions.up(&new).await;
    let resent = sent(&mut rx2);
    let held = resent.iter().find_map(|m| if let M::Op(o) = m { Some(o.clone()) } else { None }).unwrap();
    assert_eq!((held.epoch, held.attempt), (2, 2));
    client.take();
    let zombie = owner_msg::Event { session: "g1".into(), at: Some(Pos { epoch: 1, ver: 1 }), ..Default::default() };
    w.owner(&old, owner_msg::M::Event(zombie));
    assert!(client.take().iter().all(|f| !matches!(f, F::Event(_))));
    assert!(w.sessions.metrics.encode().contains("holdfast_stale_frames_dropped_total 1"));
    w.end().await;
}

#[tokio::test]
async fn a_lost_client_keeps_its_ops_held() {
    let (w, g) = (world(HeldBudget::default()).owned(), id("g1"));
    w.client(1, &g);
    w.op(1, &g, 1);
    w.sessions.unregister(ConnId(1), 2);
    assert_eq!((w.sessions.held_ops(), w.sessions.len()), (1, 1));
    w.end().await;
}
