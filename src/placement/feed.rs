//! Everything under `/hf/dir/`, first as a list, then as changes, for as long as the process lives (design 8.3).
//!
//! ```text
//! list (pages pinned to one revision) -> watch from revision + 1 --error--> watch from the last event + 1 --error--> list
//! ```
//! After an error the next endpoint is tried, after a wait with decorrelated jitter.

use std::time::Duration;

use holdfast_core::backoff::Backoff;

use super::{
    keys,
    kv::{Item, Kv, KvError, KvEvent},
};

/// Items of one page: ~110 bytes each, so 2.2 MB; 300,000 entries in 15 pages.
const PAGE_ITEMS: usize = 20_000;

/// Waits between tries.
const RETRY_BASE: Duration = Duration::from_millis(50);
const RETRY_CAP: Duration = Duration::from_secs(1);

/// What [`follow`] tells.
#[derive(Debug)]
pub(crate) enum Feed {
    /// A list begins; what it does not bring is gone.
    ListStarted,
    /// An item of the list.
    Listed(Item),
    /// The list was complete.
    ListDone,
    /// A change.
    Event(KvEvent),
    /// A broken watch goes on without a gap.
    Resumed,
    /// Still alive, and everything up to now was told.
    Progress,
    /// The watch or the list failed.
    Trouble(KvError),
}

/// Follows the directory until it is dropped.
pub(crate) async fn follow(kv: Kv, mut sink: impl FnMut(Feed) + Send) {
    let mut backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
    let mut resume: Option<i64> = None;
    loop {
        let result = match resume {
            Some(rev) => watch(&kv, rev, true, &mut sink).await,
            None => match list(&kv, &mut sink).await {
                Ok(rev) => watch(&kv, rev, false, &mut sink).await,
                Err(e) => End { heard: false, last: None, error: e },
            },
        };
        if result.heard {
            backoff.reset();
        }
        let compacted = matches!(result.error, KvError::Compacted(_));
        resume = if result.heard && !compacted { result.last } else { None };
        sink(Feed::Trouble(result.error));
        if !compacted {
            kv.rotate();
            tokio::time::sleep(backoff.next(rand::random())).await;
        }
    }
}

/// How a watch ended.
struct End {
    /// It spoke at least once.
    heard: bool,
    /// Revision of the last event, or of the list before it.
    last: Option<i64>,
    error: KvError,
}

/// Lists everything; the revision it was read at.
async fn list(kv: &Kv, sink: &mut (impl FnMut(Feed) + Send)) -> Result<i64, KvError> {
    sink(Feed::ListStarted);
    let (mut from, to) = (keys::DIR.as_bytes().to_vec(), keys::prefix_end(keys::DIR.as_bytes()));
    let mut revision = 0;
    loop {
        let page = kv.range(&from, &to, PAGE_ITEMS, revision).await?;
        if revision == 0 {
            revision = page.revision;
        }
        if let Some(last) = page.items.last() {
            from.clone_from(&last.key);
            from.push(0);
        }
        for item in page.items {
            sink(Feed::Listed(item));
        }
        if !page.more {
            sink(Feed::ListDone);
            return Ok(revision);
        }
    }
}

/// Watches from `rev` + 1 until it fails.
async fn watch(kv: &Kv, rev: i64, resumed: bool, sink: &mut (impl FnMut(Feed) + Send)) -> End {
    let to = keys::prefix_end(keys::DIR.as_bytes());
    let mut end = End { heard: false, last: Some(rev), error: KvError::Compacted(0) };
    let mut watch = match kv.watch(keys::DIR.as_bytes(), &to, rev + 1).await {
        Ok(watch) => watch,
        Err(error) => return End { error, ..end },
    };
    loop {
        let batch = match watch.next().await {
            Ok(batch) => batch,
            Err(error) => return End { error, ..end },
        };
        if resumed && !end.heard {
            sink(Feed::Resumed);
        }
        end.heard = true;
        for event in batch.events {
            end.last = Some(match &event {
                KvEvent::Put(item) => item.mod_rev,
                KvEvent::Delete { mod_rev, .. } => *mod_rev,
            });
            sink(Feed::Event(event));
        }
        sink(Feed::Progress);
    }
}
