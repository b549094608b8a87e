//! How gateways, owners and operators speak to the placement service: to whichever member leads.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use holdfast_core::{
    backoff::Backoff,
    id::{Boot, SessionId},
    proto::{
        CreateSessionRequest, DrainNodeRequest, EndSessionRequest, HandedRequest, Leader, LocateRequest,
        PlacementReply, RehomeJob, ReportEpochRequest, SuspectRequest,
    },
};
use prost::Message as _;
use tokio::time::timeout;
use tonic::{Code, Request, Status, Streaming, transport::Channel};

use super::{keys, kv::Kv, operations::LEADER_METADATA, shared::lock};
use crate::upstream::{
    rpc::placement_service_client::PlacementServiceClient,
    security::{Secured, Security},
};

type Client = PlacementServiceClient<Secured>;

/// One answer: a transaction in etcd and a hop.
const ANSWER_MAX: Duration = Duration::from_secs(2);
const CONNECT_MAX: Duration = Duration::from_millis(500);
/// All tries of one call: a change of leader takes up to 3.5 s.
const TRIES_MAX: usize = 12;
const RETRY_BASE: Duration = Duration::from_millis(50);
const RETRY_CAP: Duration = Duration::from_secs(1);

/// A client of the placement service. Cheap to clone.
#[derive(Clone)]
pub struct PlacementClient(Arc<Inner>, Security);

struct Inner {
    endpoints: Vec<String>,
    directory: Option<Kv>,
    current: Mutex<Current>,
}

#[derive(Default)]
struct Current {
    addr: Option<String>,
    channel: Option<Channel>,
    turn: usize,
}

impl PlacementClient {
    /// `endpoints` are `host:port`s of members; with a `directory` the leader is looked up there first.
    #[must_use]
    pub fn new(endpoints: Vec<String>, directory: Option<Kv>) -> Self {
        Self(Arc::new(Inner { endpoints, directory, current: Mutex::default() }), Security::default())
    }

    /// With what the service wants to be shown.
    #[must_use]
    pub fn secured(mut self, security: &Security) -> Self {
        self.1 = security.clone();
        self
    }

    /// Creates a session or says where it is. `kind` may carry parameters: `game:180+2`.
    ///
    /// # Errors
    /// The last try's status.
    pub async fn create(&self, session: &SessionId, kind: &str) -> Result<PlacementReply, Status> {
        let request =
            CreateSessionRequest { session: session.to_string(), kind: kind.into(), prefer_zone: String::new() };
        self.call(|mut c| {
            let request = request.clone();
            async move { c.create_session(request).await.map(tonic::Response::into_inner) }
        })
        .await
    }

    /// Ends a session.
    ///
    /// # Errors
    /// The last try's status.
    pub async fn end(&self, session: &SessionId) -> Result<PlacementReply, Status> {
        let request = EndSessionRequest { session: session.to_string() };
        self.call(|mut c| {
            let request = request.clone();
            async move { c.end_session(request).await.map(tonic::Response::into_inner) }
        })
        .await
    }

    /// Who owns a session; linearizable.
    ///
    /// # Errors
    /// The last try's status; `NOT_FOUND` = no such session.
    pub async fn locate(&self, session: &SessionId) -> Result<PlacementReply, Status> {
        let request = LocateRequest { session: session.to_string() };
        self.call(|mut c| {
            let request = request.clone();
            async move { c.locate(request).await.map(tonic::Response::into_inner) }
        })
        .await
    }

    /// Tells of a refused connection to a node (or, with `link_alive`, of a live link to it). `true` = acted on.
    ///
    /// # Errors
    /// The last try's status.
    pub async fn suspect(&self, node: &str, boot: Boot, gateway: &str, link_alive: bool) -> Result<bool, Status> {
        let request = SuspectRequest { node: node.into(), boot: boot.0, gateway: gateway.into(), link_alive };
        self.call(|mut c| {
            let request = request.clone();
            async move { c.suspect(request).await.map(|r| r.into_inner().acted) }
        })
        .await
    }

    /// An owner has finished with a session in a drain.
    ///
    /// # Errors
    /// The last try's status.
    pub async fn handed(&self, session: &SessionId, ver: u64, node: &str, boot: Boot) -> Result<(), Status> {
        let request = HandedRequest { session: session.to_string(), ver, node: node.into(), boot: boot.0 };
        self.call(|mut c| {
            let request = request.clone();
            async move { c.handed(request).await.map(|_| ()) }
        })
        .await
    }

    /// A record's epoch is ahead of the directory's: only after a linearizable read showed it.
    ///
    /// # Errors
    /// The last try's status.
    pub async fn report_epoch(
        &self,
        session: &SessionId,
        record_epoch: u64,
        node: &str,
        boot: Boot,
    ) -> Result<PlacementReply, Status> {
        let request =
            ReportEpochRequest { session: session.to_string(), record_epoch, node: node.into(), boot: boot.0 };
        self.call(|mut c| {
            let request = request.clone();
            async move { c.report_epoch(request).await.map(tonic::Response::into_inner) }
        })
        .await
    }

    /// Drains a node; its progress as a stream.
    ///
    /// # Errors
    /// The last try's status.
    pub async fn drain_node(&self, node: &str, sessions_per_s: u32) -> Result<Streaming<RehomeJob>, Status> {
        let request = DrainNodeRequest { node: node.into(), sessions_per_s };
        self.call(|mut c| {
            let request = request.clone();
            async move { c.drain_node(Request::new(request)).await.map(tonic::Response::into_inner) }
        })
        .await
    }

    /// Calls the leader; on trouble finds it again, with backoff. Every call of this service is idempotent.
    async fn call<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let mut backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
        let mut last = Status::unavailable("no placement service is configured");
        for _ in 0..TRIES_MAX {
            if let Some(client) = self.client().await {
                match timeout(ANSWER_MAX, call(client)).await {
                    Ok(Ok(reply)) => return Ok(reply),
                    Ok(Err(status)) if final_word(status.code()) => return Err(status),
                    Ok(Err(status)) => {
                        self.0.turn(leader_of(&status));
                        last = status;
                    }
                    Err(_) => {
                        self.0.turn(None);
                        last = Status::deadline_exceeded("no answer from the placement service");
                    }
                }
            }
            tokio::time::sleep(backoff.next(rand::random())).await;
        }
        Err(last)
    }

    async fn client(&self) -> Option<Client> {
        if let Some(channel) = &lock(&self.0.current).channel {
            return Some(PlacementServiceClient::with_interceptor(channel.clone(), self.1.clone()));
        }
        let named = lock(&self.0.current).addr.take();
        let looked_up = match (&named, &self.0.directory) {
            (None, Some(kv)) => leader_in(kv).await,
            _ => None,
        };
        let mut current = lock(&self.0.current);
        let addr = named.or(looked_up).or_else(|| {
            let n = self.0.endpoints.len().max(1);
            self.0.endpoints.get(current.turn % n).cloned()
        })?;
        let channel = self.1.endpoint(&addr).ok()?.connect_timeout(CONNECT_MAX).connect_lazy();
        current.channel = Some(channel.clone());
        Some(PlacementServiceClient::with_interceptor(channel, self.1.clone()))
    }
}

impl Inner {
    /// Forgets the connection; next time the named leader, or the next endpoint.
    fn turn(&self, leader: Option<String>) {
        let mut current = lock(&self.current);
        current.channel = None;
        current.turn = current.turn.wrapping_add(1);
        current.addr = leader;
    }
}

async fn leader_in(kv: &Kv) -> Option<String> {
    let (item, _) = kv.get(keys::LEADER.as_bytes()).await.ok()?;
    Leader::decode(item?.value).ok().map(|l| l.addr).filter(|a| !a.is_empty())
}

fn leader_of(status: &Status) -> Option<String> {
    let addr = status.metadata().get(LEADER_METADATA)?.to_str().ok()?;
    (!addr.is_empty()).then(|| addr.to_owned())
}

/// Codes that another member would answer with as well.
fn final_word(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument | Code::NotFound | Code::AlreadyExists | Code::Unauthenticated | Code::PermissionDenied
    )
}
