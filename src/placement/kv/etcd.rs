//! etcd through etcd-client, with its traps closed (design 8.3): lazy connect, one endpoint at a time rotated by us, a
//! timeout on every await, decode limits of 64 MiB, `require_leader` always, no fragments, own progress heartbeat.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use etcd_client::{
    Client, ConnectOptions, Error, GetOptions, KvClient, LeaseClient, Txn, WatchClient, WatchOptions, WatchStream,
};
use tokio::time::{Instant, timeout};

use super::{Batch, Compare, Item, KvError, Op, PROGRESS_EVERY, Page, TxnReply, WATCH_SILENCE_MAX};

mod convert;

use convert::{classify, compare, event, item, op, revision};

/// Largest answer taken: a page of 50,000 placements of ~110 bytes is 5.5 MB, a watch catching up may bring ten.
const DECODE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How to reach a cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// A connection is made within this.
    pub connect_timeout: Duration,
    /// A call other than a range is answered within this.
    pub timeout: Duration,
    /// A page of a range is answered within this.
    pub range_timeout: Duration,
    /// Name and password, if the cluster wants them.
    pub user: Option<(String, String)>,
    /// TLS with this CA and client certificate, PEM; `None` = plain, or the public roots for `https://`.
    pub tls: Option<etcd_client::TlsOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_millis(500),
            timeout: Duration::from_secs(1),
            range_timeout: Duration::from_secs(10),
            user: None,
            tls: None,
        }
    }
}

struct Conn {
    kv: KvClient,
    watch: WatchClient,
    lease: LeaseClient,
}

#[derive(Default)]
struct Current {
    conn: Option<Arc<Conn>>,
    turn: usize,
}

/// A cluster; see [`super::Kv::etcd`].
pub struct Etcd {
    endpoints: Vec<String>,
    options: Options,
    current: Mutex<Current>,
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Etcd").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

impl Etcd {
    pub(super) fn new(endpoints: Vec<String>, options: Options) -> Self {
        Self { endpoints, options, current: Mutex::default() }
    }

    async fn conn(&self) -> Result<Arc<Conn>, KvError> {
        let turn = {
            let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(conn) = &current.conn {
                return Ok(conn.clone());
            }
            current.turn
        };
        let Some(endpoint) = self.endpoints.get(turn % self.endpoints.len().max(1)) else {
            return Err(KvError::Unavailable("no etcd endpoint is configured".into()));
        };
        let mut options =
            ConnectOptions::new().with_connect_timeout(self.options.connect_timeout).with_require_leader(true);
        if let Some((name, password)) = &self.options.user {
            options = options.with_user(name, password).with_auto_token_refresh(true);
        }
        if let Some(tls) = &self.options.tls {
            options = options.with_tls(tls.clone());
        }
        // with a user this logs in, else it returns at once: the connection is lazy
        let connected = timeout(self.options.timeout, Client::connect([endpoint], Some(options))).await;
        let client = match connected {
            Ok(Ok(client)) => client,
            Ok(Err(e)) => return Err(KvError::Unavailable(self.failed(e.to_string()))),
            Err(_) => return Err(KvError::Unavailable(self.failed(format!("{endpoint}: connect timed out")))),
        };
        let conn = Arc::new(Conn {
            kv: client.kv_client().max_decoding_message_size(DECODE_BYTES_MAX),
            watch: client.watch_client().max_decoding_message_size(DECODE_BYTES_MAX),
            lease: client.lease_client(),
        });
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(current.conn.get_or_insert(conn).clone())
    }

    fn failed(&self, text: String) -> String {
        self.rotate();
        text
    }

    /// Turns to the next endpoint with a new connection.
    pub(super) fn rotate(&self) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.conn = None;
        current.turn = current.turn.wrapping_add(1);
    }

    /// Rotates away from `conn`, unless somebody did already.
    fn give_up(&self, conn: &Arc<Conn>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.conn.as_ref().is_some_and(|c| Arc::ptr_eq(c, conn)) {
            current.conn = None;
            current.turn = current.turn.wrapping_add(1);
        }
    }

    /// One call with its timeout; any trouble of the connection turns to the next endpoint.
    async fn call<T, F>(&self, within: Duration, call: impl FnOnce(Arc<Conn>) -> F) -> Result<T, KvError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let conn = self.conn().await?;
        let result = match timeout(within, call(conn.clone())).await {
            Ok(result) => result.map_err(|e| classify(&e)),
            Err(_) => Err(KvError::Unknown(format!("no answer within {} ms", within.as_millis()))),
        };
        if matches!(result, Err(KvError::Unavailable(_) | KvError::Unknown(_))) {
            self.give_up(&conn);
        }
        result
    }

    pub(super) async fn get(&self, key: &[u8]) -> Result<(Option<Item>, i64), KvError> {
        let mut reply = self.call(self.options.timeout, |c| async move { c.kv.clone().get(key, None).await }).await?;
        let revision = revision(reply.header());
        Ok((reply.take_kvs().into_iter().next().map(item), revision))
    }

    pub(super) async fn range(&self, from: &[u8], to: &[u8], limit: usize, at_rev: i64) -> Result<Page, KvError> {
        let options =
            GetOptions::new().with_range(to).with_limit(i64::try_from(limit).unwrap_or(i64::MAX)).with_revision(at_rev);
        let call = |c: Arc<Conn>| async move { c.kv.clone().get(from, Some(options)).await };
        let mut reply = self.call(self.options.range_timeout, call).await?;
        let (revision, more) = (revision(reply.header()), reply.more());
        Ok(Page { items: reply.take_kvs().into_iter().map(item).collect(), more, revision })
    }

    pub(super) async fn txn(&self, compares: Vec<Compare>, ops: Vec<Op>) -> Result<TxnReply, KvError> {
        let when: Vec<_> = compares.into_iter().map(compare).collect();
        let then: Vec<_> = ops.into_iter().map(op).collect();
        let txn = Txn::new().when(when).and_then(then);
        let reply = self.call(self.options.timeout, |c| async move { c.kv.clone().txn(txn).await }).await?;
        Ok(TxnReply { succeeded: reply.succeeded(), revision: revision(reply.header()) })
    }

    pub(super) async fn grant(&self, ttl: Duration) -> Result<i64, KvError> {
        let seconds = i64::try_from(ttl.as_secs().max(1)).unwrap_or(i64::MAX);
        let call = |c: Arc<Conn>| async move { c.lease.clone().grant(seconds, None).await };
        Ok(self.call(self.options.timeout, call).await?.id())
    }

    pub(super) async fn keep_alive(&self, lease: i64) -> Result<Duration, KvError> {
        let call = |c: Arc<Conn>| async move {
            let (mut keeper, mut answers) = match c.lease.clone().keep_alive(lease).await {
                // the first answer's TTL was 0
                Err(Error::LeaseKeepAliveError(_)) => return Ok(0),
                other => other?,
            };
            keeper.keep_alive().await?;
            Ok(answers.message().await?.map_or(0, |a| a.ttl()))
        };
        self.call(self.options.timeout, call).await.map(seconds).or_else(gone)
    }

    pub(super) async fn time_to_live(&self, lease: i64) -> Result<Duration, KvError> {
        let call = |c: Arc<Conn>| async move { c.lease.clone().time_to_live(lease, None).await };
        self.call(self.options.timeout, call).await.map(|r| seconds(r.ttl())).or_else(gone)
    }

    pub(super) async fn revoke(&self, lease: i64) -> Result<(), KvError> {
        let call = |c: Arc<Conn>| async move { c.lease.clone().revoke(lease).await };
        match self.call(self.options.timeout, call).await {
            Ok(_) | Err(KvError::LeaseGone) => Ok(()),
            Err(e) => Err(e),
        }
    }

    pub(super) async fn watch(&self, from: &[u8], to: &[u8], start_rev: i64) -> Result<EtcdWatch, KvError> {
        let options = WatchOptions::new().with_range(to).with_start_revision(start_rev);
        let call = |c: Arc<Conn>| async move { c.watch.clone().watch(from, Some(options)).await };
        let stream = self.call(self.options.timeout, call).await?;
        let now = Instant::now();
        Ok(EtcdWatch { stream, start_rev, heard: now, asked: now })
    }
}

fn gone(e: KvError) -> Result<Duration, KvError> {
    if e == KvError::LeaseGone { Ok(Duration::ZERO) } else { Err(e) }
}

fn seconds(s: i64) -> Duration {
    Duration::from_secs(u64::try_from(s).unwrap_or(0))
}

/// A watch on a cluster; see [`super::Watch::next`].
pub struct EtcdWatch {
    stream: WatchStream,
    start_rev: i64,
    heard: Instant,
    asked: Instant,
}

impl std::fmt::Debug for EtcdWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdWatch").field("start_rev", &self.start_rev).finish_non_exhaustive()
    }
}

impl EtcdWatch {
    pub(super) async fn next(&mut self) -> Result<Batch, KvError> {
        loop {
            let now = Instant::now();
            if now >= self.heard + WATCH_SILENCE_MAX {
                return Err(KvError::Unknown("the watch was silent for 3 s".into()));
            }
            if now >= self.asked + PROGRESS_EVERY {
                self.asked = now;
                // the queue to the server is bounded: a full one is silence, found above
                let _full = timeout(Duration::from_millis(1), self.stream.request_progress()).await;
            }
            let until = (self.asked + PROGRESS_EVERY).min(self.heard + WATCH_SILENCE_MAX);
            let response = match tokio::time::timeout_at(until, self.stream.message()).await {
                Err(_) => continue,
                Ok(Err(e)) => return Err(classify(&e)),
                Ok(Ok(None)) => return Err(KvError::Unknown("the watch ended".into())),
                Ok(Ok(Some(response))) => response,
            };
            self.heard = Instant::now();
            if response.compact_revision() > 0 {
                return Err(KvError::Compacted(response.compact_revision()));
            }
            let revision = revision(response.header());
            if response.canceled() {
                return Err(KvError::Unknown(format!("the watch was canceled: {}", response.cancel_reason())));
            }
            if response.created() && self.start_rev > 0 && revision < self.start_rev - 1 {
                return Err(KvError::Unknown(format!("the member lags: at {revision}, wanted {}", self.start_rev)));
            }
            let events = response.events().iter().filter_map(event).collect();
            return Ok(Batch { events, revision });
        }
    }
}
