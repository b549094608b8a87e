//! Records in a key-value store: whole reads at one revision, one conditional transaction per write (design 7.2).
//!
//! Keys, all under `/hfs/<session>/` (see `record.proto`): `h` header, `e/<ver>` entries, `c` checkpoint, `l/<principal>/<lane>`.

use std::{fmt::Write as _, time::Duration};

use bytes::Bytes;
use holdfast_core::{
    id::{Lane, SessionId},
    proto::record::{self, Checkpoint, Entry, Header},
    record::{Loaded, StoreError, WriteSet, Written},
};
use prost::Message;
use tokio::time::timeout;

use crate::placement::kv::{Compare, Item, Kv, KvError, Op};

/// Keys of a record read at once: a tail of 512 and some lanes fit one page; 512 x 16 KiB stays below the decode limit.
const PAGE: usize = 1_000;
/// Read again from the start when the history was compacted under it, this often.
const LOAD_TRIES: usize = 3;

/// The records of all sessions.
#[derive(Clone, Debug)]
pub struct Store {
    kv: Kv,
    timeout: Duration,
}

impl Store {
    /// Records in `kv`; a request not answered within `timeout` has an unknown outcome.
    #[must_use]
    pub fn new(kv: Kv, timeout: Duration) -> Self {
        Self { kv, timeout }
    }

    /// Reads a record, everything at one revision.
    ///
    /// # Errors
    /// What the store said, or that the record is damaged.
    pub async fn load(&self, session: &SessionId) -> Result<Loaded, StoreError> {
        for _ in 0..LOAD_TRIES {
            match timeout(self.timeout, self.read(session)).await {
                Ok(Ok(items)) => return decode(session, items),
                Ok(Err(KvError::Compacted(_))) => {}
                Ok(Err(e)) => return Err(StoreError(e.to_string())),
                Err(_) => return Err(StoreError(format!("no answer within {:?}", self.timeout))),
            }
        }
        Err(StoreError("compacted while it was read".into()))
    }

    async fn read(&self, session: &SessionId) -> Result<Vec<Item>, KvError> {
        let (mut from, to) = (key(session, ""), [PREFIX, session.as_str(), "0"].concat().into_bytes());
        let (mut items, mut revision) = (Vec::new(), 0);
        loop {
            let page = self.kv.range(&from, &to, PAGE, revision).await?;
            if revision == 0 {
                revision = page.revision;
            }
            items.extend(page.items);
            match items.last() {
                Some(last) if page.more => {
                    from.clone_from(&last.key);
                    from.push(0);
                }
                _ => return Ok(items),
            }
        }
    }

    /// Writes, if the header is still at the revision expected.
    pub async fn write(&self, session: &SessionId, set: WriteSet) -> Written {
        let compares = vec![Compare::ModRev(key(session, "h"), set.expect_rev)];
        let ops = operations(session, set);
        match timeout(self.timeout, self.kv.txn(compares, ops)).await {
            Ok(Ok(reply)) if reply.succeeded => Written::Ok { rev: reply.revision },
            Ok(Ok(_)) => Written::Conflict,
            Ok(Err(KvError::Unknown(_))) | Err(_) => Written::Unknown,
            Ok(Err(_)) => Written::Unavailable,
        }
    }

    /// Whether the store answers a linearizable read within `within`.
    pub async fn is_well(&self, within: Duration) -> bool {
        matches!(timeout(within, self.kv.get(PROBE)).await, Ok(Ok(_)))
    }
}

const PREFIX: &str = "/hfs/";
/// No session is named so: `!` is not allowed in ids.
const PROBE: &[u8] = b"/hfs/!";

fn key(session: &SessionId, rest: &str) -> Vec<u8> {
    [PREFIX, session.as_str(), "/", rest].concat().into_bytes()
}

fn entry_key(session: &SessionId, ver: u64) -> Vec<u8> {
    key(session, &format!("e/{ver:016x}"))
}

fn lane_key(session: &SessionId, principal: &str, lane: &Lane) -> Vec<u8> {
    key(session, &format!("l/{}/{lane:?}", hex(principal.as_bytes())))
}

fn operations(session: &SessionId, set: WriteSet) -> Vec<Op> {
    let mut ops = vec![Op::put(key(session, "h"), set.header.encode_to_vec())];
    ops.extend(set.entries.iter().map(|e| Op::put(entry_key(session, e.ver), e.encode_to_vec())));
    ops.extend(set.lanes.iter().map(|(p, lane, v)| Op::put(lane_key(session, p, lane), v.encode_to_vec())));
    ops.extend(set.lanes_evicted.iter().map(|(p, lane)| Op::Delete { key: lane_key(session, p, lane) }));
    ops.extend(set.checkpoint.map(|c| Op::put(key(session, "c"), c.encode_to_vec())));
    ops.extend(set.trim_below.map(|v| Op::DeleteRange { from: entry_key(session, 0), to: entry_key(session, v) }));
    ops
}

fn decode(session: &SessionId, items: Vec<Item>) -> Result<Loaded, StoreError> {
    let mut loaded = Loaded::default();
    let skip = key(session, "").len();
    for item in items {
        let name = String::from_utf8_lossy(item.key.get(skip..).unwrap_or_default()).into_owned();
        let bad = |what: &dyn std::fmt::Display| StoreError(format!("{session}: key {name}: {what}"));
        let value: Bytes = item.value;
        match name.split('/').collect::<Vec<_>>()[..] {
            ["h"] => {
                loaded.rev = item.mod_rev;
                loaded.header = Some(Header::decode(value).map_err(|e| bad(&e))?);
            }
            ["c"] => loaded.checkpoint = Some(Checkpoint::decode(value).map_err(|e| bad(&e))?),
            ["e", _] => loaded.entries.push(Entry::decode(value).map_err(|e| bad(&e))?),
            ["l", principal, lane] => {
                let principal = unhex(principal).and_then(|b| String::from_utf8(b).ok());
                let lane = unhex(lane).and_then(|b| Lane::any(&b).ok());
                let (Some(principal), Some(lane)) = (principal, lane) else { return Err(bad(&"not a lane")) };
                loaded.lanes.push((principal, lane, record::Lane::decode(value).map_err(|e| bad(&e))?));
            }
            _ => {}
        }
    }
    Ok(loaded)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

fn unhex(s: &str) -> Option<Vec<u8>> {
    s.len().is_multiple_of(2).then_some(())?;
    (0..s.len()).step_by(2).map(|i| u8::from_str_radix(s.get(i..i + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> SessionId {
        SessionId::parse("g~1").unwrap()
    }

    fn set(expect_rev: i64, vers: std::ops::RangeInclusive<u64>) -> WriteSet {
        let entries = vers.clone().map(|ver| Entry { ver, epoch: 1, ..Entry::default() }).collect();
        let header = Header { epoch: 1, ver: *vers.end(), tail_from: 1, ..Header::default() };
        WriteSet { expect_rev, header, entries, ..WriteSet::default() }
    }

    #[tokio::test]
    async fn what_is_written_is_loaded_and_an_old_revision_writes_nothing() {
        let store = Store::new(Kv::memory(), Duration::from_secs(1));
        let id = session();
        assert_eq!(store.load(&id).await.unwrap(), Loaded::default());
        let lane = Lane::any(b"lanelane").unwrap();
        let told = record::Lane { last_decided: 3, outcomes: vec![] };
        let mut first = set(0, 1..=3);
        first.lanes = vec![("p/ü".into(), lane, told.clone())];
        first.checkpoint = Some(Checkpoint { ver: 3, state: Bytes::from_static(b"s"), epoch: 1 });
        let Written::Ok { rev } = store.write(&id, first.clone()).await else { panic!("not written") };
        assert_eq!(store.write(&id, set(0, 4..=4)).await, Written::Conflict);
        let loaded = store.load(&id).await.unwrap();
        assert_eq!((loaded.rev, loaded.entries.len(), loaded.checkpoint), (rev, 3, first.checkpoint));
        assert_eq!(loaded.lanes, [("p/ü".to_owned(), lane, told)]);
        let mut second = set(rev, 4..=4);
        second.trim_below = Some(3);
        second.lanes_evicted = vec![("p/ü".into(), lane)];
        assert!(matches!(store.write(&id, second).await, Written::Ok { .. }));
        let loaded = store.load(&id).await.unwrap();
        assert_eq!(loaded.entries.iter().map(|e| e.ver).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(loaded.lanes, []);
    }

    #[tokio::test]
    async fn a_silent_store_is_an_unknown_write_and_no_load() {
        let kv = Kv::memory();
        let store = Store::new(kv.clone(), Duration::from_millis(20));
        kv.freeze();
        assert_eq!(store.write(&session(), set(0, 1..=1)).await, Written::Unknown);
        assert!(store.load(&session()).await.is_err());
        assert!(!store.is_well(Duration::from_millis(20)).await);
        kv.thaw();
        assert!(store.is_well(Duration::from_millis(500)).await);
    }
}
