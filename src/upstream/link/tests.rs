use std::{
    net::SocketAddr,
    sync::{Mutex, atomic::AtomicUsize},
};

use futures_util::future::BoxFuture;
use holdfast_core::proto::{GatewayBatch, OwnerMsg};
use tokio::time::timeout;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status};

use super::*;
use crate::upstream::{
    Nodes,
    dial::{DialError, Target, dial},
    pool::Pool,
    rpc::owner_server::{Owner, OwnerServer},
};

pub(crate) fn shared() -> Arc<Shared> {
    Arc::new(Shared::new(LinkId(1), Boot(7), "n1".into(), Clock::start(), Arc::new(Metrics::new())))
}

const BOOT: Boot = Boot(0xb007);

/// An owner that says hello, then what the test tells it to.
struct TestOwner {
    boot: Boot,
    speaks: bool,
    heard: mpsc::Sender<GatewayBatch>,
}

#[tonic::async_trait]
impl Owner for TestOwner {
    type LinkStream = ReceiverStream<Result<OwnerBatch, Status>>;

    async fn link(&self, request: Request<Streaming<GatewayBatch>>) -> Result<Response<Self::LinkStream>, Status> {
        let (tx, rx) = mpsc::channel(16);
        let hello = owner_msg::Hello { boot: self.boot.0, ..Default::default() };
        let batch = |seq, m| OwnerBatch { msgs: vec![OwnerMsg { m: Some(m) }], seq };
        tx.try_send(Ok(batch(1, owner_msg::M::Hello(hello)))).unwrap();
        let (speaks, heard) = (self.speaks, self.heard.clone());
        let mut inbound = request.into_inner();
        tokio::spawn(async move {
            let mut seq = 1;
            while let Ok(Some(b)) = inbound.message().await {
                for msg in &b.msgs {
                    if let Some(gateway_msg::M::Ping(p)) = &msg.m
                        && speaks
                    {
                        seq += 1;
                        let pong = owner_msg::Pong { n: p.n, now_us: 0, echo_us: p.now_us };
                        tx.send(Ok(batch(seq, owner_msg::M::Pong(pong)))).await.ok();
                    }
                }
                heard.send(b).await.ok();
            }
        });
        Ok(Response::new(ReceiverStream::new(rx)))
    }
}

async fn owner(boot: Boot, speaks: bool) -> (SocketAddr, mpsc::Receiver<GatewayBatch>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (heard, rx) = mpsc::channel(4096);
    let server = tonic::transport::Server::builder().add_service(OwnerServer::new(TestOwner { boot, speaks, heard }));
    let task = tokio::spawn(async move { server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap() });
    (addr, rx, task)
}

/// Counts what a link says.
#[derive(Default)]
struct Heard {
    log: Mutex<Vec<String>>,
    bound: AtomicUsize,
}

impl Heard {
    fn note(&self, what: impl Into<String>) {
        self.log.lock().unwrap().push(what.into());
    }

    async fn until(&self, what: &str, times: usize) {
        let all = async {
            while self.log.lock().unwrap().iter().filter(|w| *w == what).count() < times {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = timeout(Duration::from_secs(5), all).await;
        assert!(waited.is_ok(), "{what} not heard {times} times: {:?}", self.log.lock().unwrap());
    }
}

impl LinkEvents for Heard {
    fn up<'a>(&'a self, _link: &'a LinkTx) -> BoxFuture<'a, ()> {
        Box::pin(async { self.note("up") })
    }
    fn down<'a>(&'a self, _link: &'a LinkTx) -> BoxFuture<'a, ()> {
        Box::pin(async { self.note("down") })
    }
    fn message(&self, _link: &LinkTx, _msg: owner_msg::M) {
        self.note("message");
    }
    fn refused(&self, node: &Arc<str>, _boot: Boot) {
        self.note(format!("refused {node}"));
    }
    fn bound(&self, _boot: Boot) -> usize {
        self.bound.load(Ordering::Relaxed)
    }
}

struct OneNode(Mutex<Option<(Boot, Arc<str>)>>);

impl Nodes for OneNode {
    fn node(&self, _name: &str) -> Option<(Boot, Arc<str>)> {
        self.0.lock().unwrap().clone()
    }
}

fn config() -> LinkConfig {
    LinkConfig {
        ping_every: Duration::from_millis(40),
        unused_max: Duration::from_millis(200),
        ..LinkConfig::new("gw-1")
    }
}

fn target(addr: &str) -> Target {
    Target { node: "n1".into(), boot: BOOT, addr: addr.into(), link: LinkId(3) }
}

async fn dial_at(addr: &str) -> Result<Link, DialError> {
    dial(&config(), target(addr), &Clock::start(), &Arc::new(Metrics::new())).await
}

#[tokio::test]
async fn the_hello_names_the_boot_that_is_meant() {
    let (addr, mut heard, _task) = owner(BOOT, true).await;
    let link = dial_at(&addr.to_string()).await.unwrap();
    assert_eq!(link.tx.id(), LinkId(3));
    let first = heard.recv().await.unwrap();
    let Some(gateway_msg::M::Hello(hello)) = &first.msgs[0].m else { panic!("{first:?}") };
    assert_eq!((hello.expect_boot, hello.link_seq, first.seq), (BOOT.0, 3, 1));
}

#[tokio::test]
async fn another_life_of_the_node_is_not_talked_to() {
    let (addr, _heard, _task) = owner(Boot(1), true).await;
    assert!(matches!(dial_at(&addr.to_string()).await, Err(DialError::NotTheOne(_))));
}

#[tokio::test]
async fn a_refused_connection_is_told_from_other_failures() {
    let addr = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert!(matches!(dial_at(&addr.to_string()).await, Err(DialError::Refused)));
}

#[tokio::test]
async fn pongs_keep_a_link_and_silence_ends_it() {
    let (addr, _h, _task) = owner(BOOT, true).await;
    let heard = Heard { bound: AtomicUsize::new(1), ..Heard::default() };
    let link = dial_at(&addr.to_string()).await.unwrap();
    let lives = timeout(Duration::from_millis(400), link.run(&config(), &heard)).await;
    assert!(lives.is_err(), "{lives:?}");
    let (addr, _h, _task) = owner(BOOT, false).await;
    let link = dial_at(&addr.to_string()).await.unwrap();
    let end = timeout(Duration::from_millis(400), link.run(&config(), &heard)).await.unwrap();
    assert_eq!(end, End::Silent);
}

#[tokio::test]
async fn a_full_queue_tears_the_link_down_instead_of_blocking() {
    let (addr, _h, _task) = owner(BOOT, true).await;
    let link = dial_at(&addr.to_string()).await.unwrap();
    let tx = link.tx.clone();
    // Nothing of the runtime runs between these, so the queue cannot drain.
    for n in 0..=QUEUE_MSGS as u64 {
        tx.send(gateway_msg::M::Ping(gateway_msg::Ping { n, now_us: 0 }), None);
    }
    let heard = Heard::default();
    assert_eq!(timeout(Duration::from_secs(2), link.run(&config(), &heard)).await.unwrap(), End::Overflow);
}

#[tokio::test]
async fn the_pool_dials_reports_refusals_relinks_and_lets_go() {
    // A process of its own, in effect: shutting the runtime down closes its sockets.
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (addr, _h, _task) = process.spawn(owner(BOOT, true)).await.unwrap();
    let nodes = Arc::new(OneNode(Mutex::new(Some((BOOT, addr.to_string().as_str().into())))));
    let pool = Pool::new(config(), Clock::start(), Arc::new(Metrics::new()), nodes.clone());
    let heard = Arc::new(Heard { bound: AtomicUsize::new(1), ..Heard::default() });
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let running = tokio::spawn({
        let (pool, heard) = (pool.clone(), heard.clone());
        async move { pool.run(heard, stopped).await }
    });
    assert!(pool.connect(BOOT, &"n1".into(), &"".into()).is_none());
    heard.until("up", 1).await;
    assert!(pool.link_alive(BOOT));
    process.shutdown_background();
    heard.until("down", 1).await;
    heard.until("refused n1", 2).await;
    let (addr, _h, _task) = owner(BOOT, true).await;
    *nodes.0.lock().unwrap() = Some((BOOT, addr.to_string().as_str().into()));
    pool.node_changed("n1");
    heard.until("up", 2).await;
    heard.bound.store(0, Ordering::Relaxed);
    heard.until("down", 2).await;
    stop.send(true).unwrap();
    running.await.unwrap();
}
