//! Sessions made through the placement service, and the directory watched beside it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use etcd_client::{Client, EventType, GetOptions, WatchOptions};
use futures_util::StreamExt as _;
use prost::Message as _;
use tonic::codegen::http::uri::PathAndQuery;

use crate::clock::now_us;
use crate::record::Placement;

/// Calls under way at once.
const AT_ONCE: usize = 64;
const PAGE: i64 = 5_000;
const DIR: &str = "/hf/dir/";
const UNITS: &str = "/hf/dir/p/";
const NODES: &str = "/hf/dir/n/";

#[derive(Clone, PartialEq, prost::Message)]
struct CreateSession {
    #[prost(string, tag = "1")]
    session: String,
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Reply {
    #[prost(int64, tag = "5")]
    revision: i64,
}

/// Creates (id, kind) pairs.
pub async fn create(url: &str, sessions: Vec<(String, &'static str)>) -> anyhow::Result<()> {
    let channel = tonic::transport::Endpoint::from_shared(url.to_owned())?.connect().await.context("placement")?;
    let calls = futures_util::stream::iter(sessions).map(|(session, kind)| {
        let channel = channel.clone();
        async move {
            let mut last = None;
            for _ in 0..5 {
                let mut grpc = tonic::client::Grpc::new(channel.clone());
                grpc.ready().await?;
                let codec = tonic_prost::ProstCodec::<CreateSession, Reply>::default();
                let path = PathAndQuery::from_static("/holdfast.v1.PlacementService/CreateSession");
                let message = CreateSession { session: session.clone(), kind: kind.to_owned() };
                match grpc.unary(tonic::Request::new(message), path, codec).await {
                    Ok(_) => return Ok(()),
                    Err(status) => last = Some(status),
                }
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
            Err(last.map_or_else(|| anyhow::anyhow!("not created"), |s| anyhow::anyhow!("CreateSession: {s}")))
        }
    });
    let mut calls = calls.buffer_unordered(AT_ONCE);
    while let Some(done) = calls.next().await {
        done?;
    }
    Ok(())
}

/// One change of placement as the directory's watchers saw it.
#[derive(Clone, Debug)]
pub struct Move {
    pub session: Arc<str>,
    pub epoch: u64,
    pub owner: String,
    pub at_us: u64,
    /// When placement decided it, by its own clock.
    pub decided_us: u64,
}

#[derive(Default)]
struct Seen {
    now: HashMap<Arc<str>, Placement>,
    moves: Vec<Move>,
    gone: Vec<(String, u64)>,
}

/// A bare etcd watcher of `/hf/dir/`: what the directory said and when.
#[derive(Clone)]
pub struct Directory {
    url: String,
    seen: Arc<Mutex<Seen>>,
}

impl Directory {
    /// Lists, then watches until dropped with the runtime. A broken watch lists again.
    pub fn watch(url: &str) -> Self {
        let directory = Directory { url: url.to_owned(), seen: Arc::default() };
        let copy = directory.clone();
        tokio::spawn(async move {
            loop {
                let _ = copy.follow().await;
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        });
        directory
    }

    async fn follow(&self) -> anyhow::Result<()> {
        let mut client = Client::connect([&self.url], None).await?;
        let (units, rev) = list(&mut client).await?;
        units.into_iter().for_each(|(session, placement)| self.put(session, placement));
        let options = WatchOptions::new().with_prefix().with_start_revision(rev + 1);
        let mut stream = client.watch(DIR, Some(options)).await?;
        while let Some(reply) = stream.message().await? {
            anyhow::ensure!(!reply.canceled(), "watch canceled");
            for event in reply.events() {
                let Some(kv) = event.kv() else { continue };
                let key = kv.key_str()?;
                if let (Some(session), EventType::Put) = (key.strip_prefix(UNITS), event.event_type()) {
                    self.put(Arc::from(session), Placement::decode(kv.value())?);
                } else if let (Some(node), EventType::Delete) = (key.strip_prefix(NODES), event.event_type()) {
                    self.lock().gone.push((node.to_owned(), now_us()));
                }
            }
        }
        Ok(())
    }

    fn put(&self, session: Arc<str>, placement: Placement) {
        let mut seen = self.lock();
        let old = seen.now.get(&session);
        if old.is_none_or(|o| o.epoch != placement.epoch || o.owner != placement.owner) {
            let (epoch, owner, decided_us) = (placement.epoch, placement.owner.clone(), placement.moved_at_ms * 1_000);
            seen.moves.push(Move { session: session.clone(), epoch, owner, at_us: now_us(), decided_us });
        }
        seen.now.insert(session, placement);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sessions of each owner now; "" has the parked ones.
    pub fn owners(&self) -> HashMap<String, Vec<Arc<str>>> {
        let mut owners: HashMap<String, Vec<Arc<str>>> = HashMap::new();
        for (session, placement) in &self.lock().now {
            owners.entry(placement.owner.clone()).or_default().push(session.clone());
        }
        owners
    }

    pub fn len(&self) -> usize {
        self.lock().now.len()
    }

    /// Changes seen at or after a time.
    pub fn moves_since(&self, at_us: u64) -> Vec<Move> {
        self.lock().moves.iter().filter(|m| m.at_us >= at_us).cloned().collect()
    }

    /// When the node's key went away, if it did since then.
    pub fn gone_since(&self, node: &str, at_us: u64) -> Option<u64> {
        self.lock().gone.iter().find(|(n, t)| n == node && *t >= at_us).map(|(_, t)| *t)
    }
}

async fn list(client: &mut Client) -> anyhow::Result<(Vec<(Arc<str>, Placement)>, i64)> {
    let (mut from, end) = (UNITS.as_bytes().to_vec(), b"/hf/dir/p0".to_vec());
    let (mut units, mut rev) = (Vec::new(), 0);
    loop {
        let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_revision(rev);
        let page = client.get(from.clone(), Some(options)).await?;
        rev = page.header().map_or(0, etcd_client::ResponseHeader::revision);
        for kv in page.kvs() {
            let session = kv.key_str()?.strip_prefix(UNITS).unwrap_or_default();
            units.push((Arc::from(session), Placement::decode(kv.value())?));
        }
        match page.kvs().last() {
            Some(last) if page.more() => {
                from = last.key().to_vec();
                from.push(0);
            }
            _ => return Ok((units, rev)),
        }
    }
}

/// Whether a node is registered.
pub async fn is_registered(url: &str, node: &str) -> bool {
    let asking = async { Client::connect([url], None).await?.get(format!("{NODES}{node}"), None).await };
    asking.await.is_ok_and(|reply| reply.count() > 0)
}

/// The revision of an etcd now.
pub async fn revision(url: &str) -> anyhow::Result<i64> {
    let mut client = Client::connect([url], None).await?;
    let reply = client.get("/", None).await?;
    Ok(reply.header().map_or(0, etcd_client::ResponseHeader::revision))
}

/// Writes a key some times and compacts: a watch that was away cannot catch up from where it was.
pub async fn compact(url: &str) -> anyhow::Result<()> {
    let mut client = Client::connect([url], None).await?;
    let mut rev = 0;
    for i in 0..50 {
        rev = client.put("/loadtest/compaction", i.to_string(), None).await?.header().map_or(0, |h| h.revision());
    }
    client.compact(rev, None).await?;
    Ok(())
}
