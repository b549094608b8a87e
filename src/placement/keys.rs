//! The keys of the directory (design 8.1). Values are the schema's messages.

use holdfast_core::{
    directory::PlacementUnit,
    id::{Boot, SessionId},
};

/// Everything gateways watch.
pub const DIR: &str = "/hf/dir/";
const NODE: &str = "/hf/dir/n/";
const UNIT: &str = "/hf/dir/p/";
const GATEWAY: &str = "/hf/dir/g/";
const LOAD: &str = "/hf/load/";
const JOB: &str = "/hf/job/";

/// The leader of the placement service; its `create_revision` is the fencing token.
pub const LEADER: &str = "/hf/l/placement";

/// `NodeInfo`, under the node's lease.
#[must_use]
pub fn node(name: &str) -> Vec<u8> {
    [NODE, name].concat().into_bytes()
}

/// `Placement`, without a lease.
#[must_use]
pub fn unit(unit: &PlacementUnit) -> Vec<u8> {
    [UNIT, unit.as_str()].concat().into_bytes()
}

/// `Placement` of the unit a session belongs to.
#[must_use]
pub fn session(id: &SessionId) -> Vec<u8> {
    unit(&PlacementUnit::of(id))
}

/// `GatewayInfo`, under the gateway's lease.
#[must_use]
pub fn gateway(name: &str) -> Vec<u8> {
    [GATEWAY, name].concat().into_bytes()
}

/// `NodeLoad`, under the node's lease; outside what gateways watch.
#[must_use]
pub fn load(node: &str) -> Vec<u8> {
    [LOAD, node].concat().into_bytes()
}

/// `RehomeJob` of one life of a node.
#[must_use]
pub fn job(node: &str, boot: Boot) -> Vec<u8> {
    format!("{JOB}{node}-{boot}").into_bytes()
}

/// What a key under [`DIR`] is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirKey {
    /// A node, by name.
    Node(String),
    /// A unit's placement.
    Unit(PlacementUnit),
    /// A gateway, by name.
    Gateway(String),
}

impl DirKey {
    /// Reads a key; `None` for what a newer version may put there.
    #[must_use]
    pub fn parse(key: &[u8]) -> Option<Self> {
        let key = std::str::from_utf8(key).ok()?;
        if let Some(unit) = key.strip_prefix(UNIT) {
            return SessionId::parse(unit).ok().map(|id| Self::Unit(PlacementUnit::of(&id)));
        }
        if let Some(node) = key.strip_prefix(NODE) {
            return Some(Self::Node(node.into()));
        }
        key.strip_prefix(GATEWAY).map(|g| Self::Gateway(g.into()))
    }
}

/// The first key after all that start with `prefix`.
#[must_use]
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// A node's or gateway's name: 1 to 64 bytes of `[A-Za-z0-9._-]`.
#[must_use]
pub fn valid_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_back() {
        let id = SessionId::parse("g_8Kd2").unwrap();
        assert_eq!(session(&id), b"/hf/dir/p/g_8Kd2");
        assert_eq!(DirKey::parse(&session(&id)), Some(DirKey::Unit(PlacementUnit::of(&id))));
        assert_eq!(DirKey::parse(&node("o-1")), Some(DirKey::Node("o-1".into())));
        assert_eq!(DirKey::parse(&gateway("gw-1")), Some(DirKey::Gateway("gw-1".into())));
        assert_eq!(DirKey::parse(b"/hf/dir/x/1"), None);
        assert_eq!(job("o-1", Boot(0xab)), b"/hf/job/o-1-00000000000000ab");
        assert_eq!(prefix_end(b"/hf/dir/"), b"/hf/dir0");
        assert_eq!(prefix_end(&[1, 255]), [2]);
    }
}
