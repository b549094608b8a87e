//! The placement service: election, the warm table, the leader's loop and the gRPC front (`holdfast.proto`, part 3).

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use anyhow::Context as _;
use futures_util::{Stream, StreamExt as _};
use holdfast_core::{
    id::Boot,
    proto::{
        CreateSessionRequest, DrainNodeRequest, EndSessionRequest, HandedReply, HandedRequest, Leader, LocateRequest,
        PlacementReply, RehomeJob, ReportEpochRequest, SuspectReply, SuspectRequest,
    },
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, transport::server::TcpIncoming};

use super::{
    config::PlacementConfig,
    feed::follow,
    keys,
    kv::Kv,
    leader::{Role, campaign},
    operations::{self, session},
    rehome,
    shared::Shared,
    suspect,
};
use crate::upstream::rpc::placement_service_server::{PlacementService, PlacementServiceServer};

/// How often a drain tells its progress.
const DRAIN_TELLS_EVERY: Duration = Duration::from_millis(200);

/// Binds `config.listen` and runs until `shutdown`; then gives up leadership, so that another takes over at once.
///
/// # Errors
/// The address cannot be bound, or a part of the service ended by itself.
pub async fn run(config: PlacementConfig, kv: Kv, shutdown: impl Future<Output = ()> + Send) -> anyhow::Result<()> {
    let listener =
        TcpListener::bind(&config.listen).await.with_context(|| format!("listen = \"{}\"", config.listen))?;
    run_on(config, kv, listener, shutdown).await
}

/// As [`run`], on a listener that is bound already.
///
/// # Errors
/// A part of the service ended by itself.
pub async fn run_on(
    config: PlacementConfig,
    kv: Kv,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send,
) -> anyhow::Result<()> {
    let bound = listener.local_addr()?.to_string();
    let addr = if config.advertise.is_empty() { bound } else { config.advertise.clone() };
    let me = Leader { id: config.node.clone(), addr, boot: rand::random::<u64>().max(1) };
    let (role_tx, role) = watch::channel(Role::Follower(None));
    let (stop_tx, stop) = watch::channel(false);
    let (mut server, guard) = (config.link.server()?, config.link.guard());
    let shared = Shared::new(kv.clone(), config, role);
    // every task's end is noticed; dropping the set ends the rest
    let mut tasks = JoinSet::new();
    let feed = shared.clone();
    tasks.spawn(follow(kv.clone(), move |f| feed.handle(f)));
    tasks.spawn(rehome::run(shared.clone()));
    let election = tokio::spawn(campaign(kv, me, role_tx, stop.clone()));
    let server = server
        .add_service(PlacementServiceServer::with_interceptor(Front(shared), guard))
        .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)));
    let result = tokio::select! {
        () = shutdown => Ok(()),
        ended = server => ended.context("the placement server failed"),
        _ = tasks.join_next() => Err(anyhow::anyhow!("a part of placement ended by itself")),
    };
    stop_tx.send_replace(true);
    let _revoked = tokio::time::timeout(Duration::from_secs(2), election).await;
    result
}

struct Front(Arc<Shared>);

type Progress = Pin<Box<dyn Stream<Item = Result<RehomeJob, Status>> + Send>>;

#[tonic::async_trait]
impl PlacementService for Front {
    async fn create_session(&self, r: Request<CreateSessionRequest>) -> Result<Response<PlacementReply>, Status> {
        let r = r.into_inner();
        operations::create(&self.0, &session(&r.session)?, &r.kind, &r.prefer_zone).await.map(Response::new)
    }

    async fn end_session(&self, r: Request<EndSessionRequest>) -> Result<Response<PlacementReply>, Status> {
        operations::end(&self.0, &session(&r.into_inner().session)?).await.map(Response::new)
    }

    // any member can answer: it reads etcd
    async fn locate(&self, r: Request<LocateRequest>) -> Result<Response<PlacementReply>, Status> {
        operations::locate(&self.0, &session(&r.into_inner().session)?).await.map(Response::new)
    }

    async fn suspect(&self, r: Request<SuspectRequest>) -> Result<Response<SuspectReply>, Status> {
        operations::term(&self.0)?;
        let acted = suspect::suspect(&self.0, r.into_inner()).await;
        Ok(Response::new(SuspectReply { acted }))
    }

    type DrainNodeStream = Progress;

    async fn drain_node(&self, r: Request<DrainNodeRequest>) -> Result<Response<Progress>, Status> {
        let r = r.into_inner();
        if !keys::valid_name(&r.node) {
            return Err(Status::invalid_argument("node: 1 to 64 of A-Z a-z 0-9 . _ -"));
        }
        let owner = operations::mark_draining(&self.0, &r.node).await?;
        let (tx, rx) = mpsc::channel(16);
        // ends when the drain is over or nobody listens any more
        tokio::spawn(tell_drain(self.0.clone(), owner, tx));
        Ok(Response::new(ReceiverStream::new(rx).boxed()))
    }

    async fn handed(&self, r: Request<HandedRequest>) -> Result<Response<HandedReply>, Status> {
        let r = r.into_inner();
        let from = (r.node.as_str().into(), Boot(r.boot));
        operations::handed(&self.0, &session(&r.session)?, from).await?;
        Ok(Response::new(HandedReply {}))
    }

    async fn report_epoch(&self, r: Request<ReportEpochRequest>) -> Result<Response<PlacementReply>, Status> {
        let r = r.into_inner();
        operations::report_epoch(&self.0, &session(&r.session)?, r.record_epoch).await.map(Response::new)
    }
}

async fn tell_drain(shared: Arc<Shared>, owner: super::table::Owner, tx: mpsc::Sender<Result<RehomeJob, Status>>) {
    let started_at_ms = shared.now_ms();
    let total = shared.table().owned_count(&owner);
    loop {
        let left = shared.table().owned_count(&owner);
        let job = RehomeJob {
            total: u32::try_from(total.max(left)).unwrap_or(u32::MAX),
            done: u32::try_from(total.max(left) - left).unwrap_or(u32::MAX),
            started_at_ms,
            ..RehomeJob::default()
        };
        if tx.send(Ok(job)).await.is_err() || left == 0 {
            return;
        }
        tokio::time::sleep(DRAIN_TELLS_EVERY).await;
    }
}
