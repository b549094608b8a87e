//! The yardstick for re-homing: an etcd client that does nothing but watch the placements and note when it saw each.
//!
//! It has a thread and a runtime of its own, so that the clients' work in this process does not slow it down.

use std::sync::{Arc, Mutex, PoisonError};

use etcd_client::{Client, EventType, WatchOptions};
use tokio::sync::oneshot;

use crate::clock::now_us;

const UNITS: &str = "/hf/dir/p/";

/// A running watcher; it ends when this is dropped.
pub struct Bare {
    /// (unit, when), in the order seen.
    seen: Arc<Mutex<Vec<(String, u64)>>>,
    _stop: oneshot::Sender<()>,
}

impl Bare {
    /// Returns when the watch stands.
    pub async fn start(url: &str) -> anyhow::Result<Self> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, stands) = oneshot::channel();
        let (url, seen) = (url.to_owned(), Arc::new(Mutex::new(Vec::new())));
        let to = seen.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! { _ = follow(&url, ready, &to) => {}, _ = stopped => {} }
            });
        });
        stands.await?;
        Ok(Bare { seen, _stop: stop })
    }

    /// What was seen so far, oldest first.
    pub fn seen(&self) -> Vec<(String, u64)> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn follow(url: &str, ready: oneshot::Sender<()>, to: &Mutex<Vec<(String, u64)>>) -> anyhow::Result<()> {
    let mut client = Client::connect([url], None).await?;
    let mut stream = client.watch(UNITS, Some(WatchOptions::new().with_prefix())).await?;
    let _waiting = ready.send(());
    while let Some(reply) = stream.message().await? {
        let at_us = now_us();
        let mut seen = to.lock().unwrap_or_else(PoisonError::into_inner);
        for event in reply.events().iter().filter(|e| e.event_type() == EventType::Put) {
            if let Some(key) = event.kv().and_then(|kv| kv.key_str().ok()) {
                seen.push((key.trim_start_matches(UNITS).to_owned(), at_us));
            }
        }
    }
    Ok(())
}
