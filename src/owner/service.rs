//! `Owner.Link`: hello, then the two halves of the stream (design 7.1).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::{DashMap, Entry};
use holdfast_core::{
    id::LinkId,
    proto::{GatewayBatch, GatewayMsg, gateway_msg, owner_msg},
};
use tokio::time::timeout;
use tonic::{Request, Response, Status, Streaming};

use super::{
    link::{self, Batches, DEAD_AFTER, LinkTx, PING_EVERY},
    sessions::Sessions,
};
use crate::upstream::{rpc::owner_server::Owner, security::Security};

/// Versions of the link spoken here.
const VERSION: u32 = 1;
/// From the stream to the gateway's hello.
const HELLO_MAX: Duration = Duration::from_secs(3);
/// Unsettled ops per link, told in hello.
const MAX_INFLIGHT: u32 = 4_096;
/// Largest batch a gateway may send.
pub(super) const RECEIVE_MAX: usize = 4 << 20;

/// The gRPC service.
pub(super) struct Service {
    sessions: Arc<Sessions>,
    security: Security,
    next_link: AtomicU64,
    /// Newest link of each gateway: its boot, `link_seq` and our id.
    gateways: DashMap<String, (u64, u64, LinkId)>,
}

impl Service {
    pub fn new(sessions: Arc<Sessions>, security: Security) -> Self {
        Self { sessions, security, next_link: AtomicU64::new(1), gateways: DashMap::new() }
    }

    fn accept(&self, hello: &gateway_msg::Hello) -> Result<(LinkTx, Batches), Status> {
        let config = self.sessions.config();
        if hello.version_min > VERSION || hello.version_max < VERSION {
            let (min, max) = (hello.version_min, hello.version_max);
            return Err(Status::failed_precondition(format!("version {VERSION} is spoken here, not {min}..={max}")));
        }
        if hello.expect_boot != 0 && hello.expect_boot != config.boot.0 {
            return Err(Status::failed_precondition(format!("another boot: this is {}", config.boot)));
        }
        let (tx, batches) = LinkTx::new(LinkId(self.next_link.fetch_add(1, Ordering::Relaxed)));
        let old = self.newest(hello, tx.id)?;
        if let Some(old) = old.and_then(|id| self.sessions.links.get(&id).map(|l| l.clone())) {
            tracing::info!(gateway = hello.gateway_id, link = old.id.0, "replaced by a newer link");
            old.close();
        }
        tx.send(owner_msg::M::Hello(owner_msg::Hello {
            version: VERSION,
            owner_id: config.node.clone(),
            boot: config.boot.0,
            now_us: self.sessions.clock.now().wall.0,
            max_inflight: MAX_INFLIGHT,
            max_batch_bytes: u32::try_from(RECEIVE_MAX).unwrap_or(u32::MAX),
            features: vec![],
            ping_ms: u32::try_from(PING_EVERY.as_millis()).unwrap_or(1_000),
            dead_ms: u32::try_from(DEAD_AFTER.as_millis()).unwrap_or(3_000),
        }));
        tracing::info!(gateway = hello.gateway_id, link = tx.id.0, "a gateway's link is up");
        Ok((tx, batches))
    }
}

impl Service {
    /// Makes a link its gateway's newest; the one it replaces. Hellos of two dials may overtake each other: of one life of a
    /// gateway the higher `link_seq` stays.
    fn newest(&self, hello: &gateway_msg::Hello, id: LinkId) -> Result<Option<LinkId>, Status> {
        let mine = (hello.boot, hello.link_seq, id);
        match self.gateways.entry(hello.gateway_id.clone()) {
            Entry::Occupied(known) if known.get().0 == hello.boot && known.get().1 > hello.link_seq => {
                Err(Status::aborted(format!("link {} is newer than {}", known.get().1, hello.link_seq)))
            }
            Entry::Occupied(mut known) => Ok(Some(known.insert(mine).2)),
            Entry::Vacant(none) => {
                none.insert(mine);
                Ok(None)
            }
        }
    }
}

#[tonic::async_trait]
impl Owner for Service {
    type LinkStream = Batches;

    async fn link(&self, request: Request<Streaming<GatewayBatch>>) -> Result<Response<Batches>, Status> {
        self.security.check(request.metadata())?;
        let mut inbound = request.into_inner();
        let first =
            timeout(HELLO_MAX, inbound.message()).await.map_err(|_| Status::deadline_exceeded("no hello"))??;
        let mut msgs = first.map(|b| b.msgs).unwrap_or_default().into_iter();
        let Some(GatewayMsg { m: Some(gateway_msg::M::Hello(hello)) }) = msgs.next() else {
            return Err(Status::invalid_argument("the first message is hello"));
        };
        let (tx, batches) = self.accept(&hello)?;
        self.sessions.links.insert(tx.id, tx.clone());
        // ends with the stream, or when `Sessions` closes the link
        tokio::spawn(link::read(tx, msgs.collect(), inbound, self.sessions.clone()));
        Ok(Response::new(batches))
    }
}
