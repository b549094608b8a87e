//! From an address to an established link: connect, hello, the boot checked (design 7.1).

use std::{error::Error, io, sync::Arc, time::Duration};

use holdfast_core::{
    id::{Boot, LinkId},
    proto::{gateway_msg, owner_msg},
};
use tokio::{sync::mpsc, time::timeout};
use tonic::{Code, Request, Status, transport::Channel};

use super::{
    batch::Batches,
    link::{Link, LinkTx, PING_EVERY, QUEUE_MSGS, Shared},
    rpc::owner_client::OwnerClient,
    security::Security,
};
use crate::{clock::Clock, metrics::Metrics};

/// Until the TCP connection stands.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// From the connection to the owner's hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(3);
/// HTTP/2 windows (measured, design 17).
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Largest batch taken: a snapshot of a document is the largest message, 1 MiB with room.
const RECEIVE_MAX: usize = 16 << 20;
/// Protocol versions of the link.
const VERSION: u32 = 1;

/// Who dials, and how.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// This gateway's stable name.
    pub gateway_id: String,
    /// Token and certificates.
    pub security: Security,
    /// Silence that ends a link is three of these; [`PING_EVERY`] but in tests.
    pub ping_every: Duration,
    /// A link no session is bound to is closed after this long; 60 s but in tests.
    pub unused_max: Duration,
}

impl LinkConfig {
    /// The defaults.
    #[must_use]
    pub fn new(gateway_id: &str) -> Self {
        Self {
            gateway_id: gateway_id.into(),
            security: Security::default(),
            ping_every: PING_EVERY,
            unused_max: Duration::from_secs(60),
        }
    }
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Nothing listens at the node's own address: its process is gone.
    #[error("refused")]
    Refused,
    /// Another life of the node answers, or the owner found us mistaken: the directory will say more.
    #[error("another boot, or no common version: {0}")]
    NotTheOne(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

/// Whom to dial.
#[derive(Clone, Debug)]
pub struct Target {
    /// The node's name.
    pub node: Arc<str>,
    /// The life of it that is meant.
    pub boot: Boot,
    /// `host:port`.
    pub addr: Arc<str>,
    /// Id of the link to be.
    pub link: LinkId,
}

/// Connects, says hello and checks the answer.
///
/// # Errors
/// See [`DialError`]; ends within about 4 s.
pub async fn dial(
    config: &LinkConfig,
    target: Target,
    clock: &Clock,
    metrics: &Arc<Metrics>,
) -> Result<Link, DialError> {
    let channel = connect(config, &target.addr).await?;
    let (queue, rx) = mpsc::channel(QUEUE_MSGS);
    let shared = Arc::new(Shared::new(target.link, target.boot, target.node, clock.clone(), metrics.clone()));
    let tx = LinkTx { shared: shared.clone(), queue };
    tx.send(gateway_msg::M::Hello(hello(config, &shared)), None);
    let mut request = Request::new(Batches::new(rx, shared));
    config.security.sign(request.metadata_mut());
    let mut client = OwnerClient::new(channel).max_decoding_message_size(RECEIVE_MAX);
    let greeting = async {
        let mut inbound = client.link(request).await.map_err(|s| refused(&s))?.into_inner();
        let first = inbound.message().await.map_err(|s| refused(&s))?;
        let first = first.ok_or_else(|| DialError::Failed("the stream ended before a hello".into()))?;
        Ok((inbound, first))
    };
    let (inbound, first) =
        timeout(HELLO_TIMEOUT, greeting).await.map_err(|_| DialError::Failed("no hello within 3 s".into()))??;
    let seq = first.seq;
    let mut msgs = first.msgs.into_iter().filter_map(|m| m.m);
    match msgs.next() {
        Some(owner_msg::M::Hello(h)) if h.boot == target.boot.0 => {}
        Some(owner_msg::M::Hello(h)) => {
            return Err(DialError::NotTheOne(format!("boot {} answers, {} was meant", Boot(h.boot), target.boot)));
        }
        _ => return Err(DialError::Failed("the first message is not a hello".into())),
    }
    Ok(Link { tx, inbound, early: msgs.collect(), seq })
}

async fn connect(config: &LinkConfig, addr: &str) -> Result<Channel, DialError> {
    let endpoint = config
        .security
        .endpoint(addr)
        .map_err(|e| DialError::Failed(format!("address {addr}: {e}")))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    // The timeout of the endpoint covers TCP only; a listener that never speaks HTTP/2 is cut off here.
    match timeout(CONNECT_TIMEOUT * 2, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(e)) if is_refused(&e) => Err(DialError::Refused),
        Ok(Err(e)) => Err(DialError::Failed(format!("{e:?}"))),
        Err(_) => Err(DialError::Failed("connecting took too long".into())),
    }
}

fn is_refused(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(e) = cause {
        if e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
            return true;
        }
        cause = e.source();
    }
    false
}

fn refused(status: &Status) -> DialError {
    match status.code() {
        Code::FailedPrecondition => DialError::NotTheOne(status.message().into()),
        _ => DialError::Failed(status.to_string()),
    }
}

fn hello(config: &LinkConfig, link: &Shared) -> gateway_msg::Hello {
    gateway_msg::Hello {
        version_min: VERSION,
        version_max: VERSION,
        gateway_id: config.gateway_id.clone(),
        boot: link.clock.boot().0,
        // Link ids only grow, so they order the dials of this boot.
        link_seq: link.id.0,
        expect_boot: link.boot.0,
        clock_id: link.clock.clock_id(),
        now_us: link.clock.now().wall.0,
        features: Vec::new(),
        max_batch_bytes: u32::try_from(RECEIVE_MAX).unwrap_or(u32::MAX),
    }
}
