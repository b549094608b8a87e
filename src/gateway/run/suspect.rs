//! The fast path of design 8.2: a node's own address refuses, so placement is told at once.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use holdfast_core::{
    id::Boot,
    proto::{Leader, SuspectRequest},
};
use prost::Message as _;
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};

use crate::{
    metrics::Metrics,
    placement::{keys, kv::Kv},
    upstream::{pool::Pool, rpc::placement_service_client::PlacementServiceClient, security::Security},
};

/// Connecting to one placement service, and its answer: it probes twice, 100 ms apart.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Reports refused nodes, one at a time; the pool throttles them per node, and the queue is bounded.
pub(super) struct Reporter {
    /// This gateway.
    pub gateway: String,
    /// Placement services to try; empty = the leader that the directory names.
    pub placement: Vec<String>,
    pub security: Security,
    pub directory: Kv,
    pub pool: Pool,
    pub metrics: Arc<Metrics>,
    /// Reports to be made.
    pub refused: mpsc::Receiver<(Arc<str>, Boot)>,
}

impl Reporter {
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                biased;
                _ = stop.changed() => return,
                next = self.refused.recv() => match next {
                    Some((node, boot)) => self.report(&node, boot).await,
                    None => return,
                },
            }
        }
    }

    async fn report(&self, node: &Arc<str>, boot: Boot) {
        let request = SuspectRequest {
            node: node.to_string(),
            boot: boot.0,
            gateway: self.gateway.clone(),
            link_alive: self.pool.link_alive(boot),
        };
        self.metrics.suspect();
        let services = match self.services().await {
            Ok(services) => services,
            Err(error) => return tracing::debug!(%node, %error, "nobody to report a refused node to"),
        };
        for service in services {
            match timeout(ANSWER_TIMEOUT, suspect(&self.security, &service, request.clone())).await {
                Ok(Ok(acted)) => return tracing::info!(%node, %boot, acted, "reported a node that refuses connections"),
                Ok(Err(error)) => tracing::debug!(service, %error, "a placement service did not take a report"),
                Err(_) => tracing::debug!(service, "a placement service did not answer a report"),
            }
        }
    }

    async fn services(&self) -> anyhow::Result<Vec<String>> {
        if !self.placement.is_empty() {
            return Ok(self.placement.clone());
        }
        let (item, _) = self.directory.get(keys::LEADER.as_bytes()).await?;
        let leader = Leader::decode(item.context("no leader")?.value)?;
        Ok(vec![leader.addr])
    }
}

async fn suspect(security: &Security, service: &str, request: SuspectRequest) -> anyhow::Result<bool> {
    let channel = security.endpoint(service)?.connect_timeout(CONNECT_TIMEOUT).connect().await?;
    let mut client = PlacementServiceClient::with_interceptor(channel, security.clone());
    Ok(client.suspect(request).await?.into_inner().acted)
}
