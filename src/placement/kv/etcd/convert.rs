//! Between our types and etcd-client's.

use std::error::Error as _;

use bytes::Bytes;
use etcd_client::{Compare as EtcdCompare, CompareOp, DeleteOptions, Error, EventType, PutOptions, TxnOp};

use super::super::{Compare, Item, KvError, KvEvent, Op};

pub(super) fn event(e: &etcd_client::Event) -> Option<KvEvent> {
    let kv = e.kv()?;
    Some(match e.event_type() {
        EventType::Put => KvEvent::Put(item(kv.clone())),
        EventType::Delete => KvEvent::Delete { key: kv.key().to_vec(), mod_rev: kv.mod_revision() },
    })
}

pub(super) fn item(kv: etcd_client::KeyValue) -> Item {
    let (create_rev, mod_rev, lease) = (kv.create_revision(), kv.mod_revision(), kv.lease());
    let (key, value) = kv.into_key_value();
    Item { key, value: Bytes::from(value), create_rev, mod_rev, lease }
}

pub(super) fn revision(header: Option<&etcd_client::ResponseHeader>) -> i64 {
    header.map_or(0, etcd_client::ResponseHeader::revision)
}

pub(super) fn compare(c: Compare) -> EtcdCompare {
    match c {
        Compare::ModRev(key, rev) => EtcdCompare::mod_revision(key, CompareOp::Equal, rev),
        Compare::CreateRev(key, rev) => EtcdCompare::create_revision(key, CompareOp::Equal, rev),
    }
}

pub(super) fn op(o: Op) -> TxnOp {
    match o {
        Op::Put { key, value, lease } => TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease))),
        Op::Delete { key } => TxnOp::delete(key, None),
        Op::DeleteRange { from, to } => TxnOp::delete(from, Some(DeleteOptions::new().with_range(to))),
    }
}

/// Refusals that etcd makes before it proposes anything to the cluster.
const REFUSED: [&str; 4] = ["no leader", "too many requests", "no space", "too many operations"];

/// What an error means for a write: only what surely was not applied is `Unavailable`.
pub(super) fn classify(e: &Error) -> KvError {
    let Error::GRpcStatus(status) = e else { return KvError::Unknown(e.to_string()) };
    let text = status.message();
    if text.contains("lease not found") {
        return KvError::LeaseGone;
    }
    if text.contains("has been compacted") {
        return KvError::Compacted(0);
    }
    let mut source = status.source();
    let mut unconnected = false;
    while let Some(cause) = source {
        unconnected |= cause.is::<tonic::ConnectError>();
        source = cause.source();
    }
    let text = format!("{:?}: {text}", status.code());
    if unconnected || REFUSED.iter().any(|r| text.contains(r)) {
        KvError::Unavailable(text)
    } else {
        KvError::Unknown(text)
    }
}
