//! The verifier's own decoder of what owners store (`/hfs/<session>/…`) and of what placement writes (`/hf/dir/…`).
//!
//! Written by hand from the schemas and sharing no code with the server: a bug in the server's types must not hide from
//! its judge. Only the fields that judging needs are declared; prost skips the others.

use bytes::Bytes;

/// `/hfs/<session>/h`: one per session; every write is conditional on it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Header {
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    #[prost(uint64, tag = "2")]
    pub ver: u64,
    #[prost(string, tag = "3")]
    pub kind: String,
    #[prost(uint64, tag = "6")]
    pub checkpoint_ver: u64,
    #[prost(uint64, tag = "7")]
    pub tail_from: u64,
    #[prost(uint64, tag = "8")]
    pub claimed_at_us: u64,
    #[prost(uint64, tag = "9")]
    pub outage_us: u64,
    #[prost(bool, tag = "10")]
    pub closed: bool,
}

/// `/hfs/<session>/e/<ver>`: one durable event.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Entry {
    #[prost(uint64, tag = "1")]
    pub ver: u64,
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    #[prost(bytes = "bytes", tag = "3")]
    pub lane: Bytes,
    #[prost(uint64, tag = "4")]
    pub seq: u64,
    #[prost(string, tag = "5")]
    pub principal: String,
    #[prost(bytes = "bytes", tag = "8")]
    pub payload: Bytes,
    #[prost(uint64, tag = "9")]
    pub at_us: u64,
    #[prost(bytes = "bytes", tag = "11")]
    pub stamp: Bytes,
    #[prost(bool, tag = "14")]
    pub op_end: bool,
    /// The attempt, of the gateway's envelope, that won. Above 1: the op was resent to an owner.
    #[prost(uint32, tag = "15")]
    pub attempt: u32,
    /// The owner's audit facts, JSON.
    #[prost(string, tag = "16")]
    pub facts: String,
}

/// `/hfs/<session>/l/<principal>/<lane>`: what was decided of one sender.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Lane {
    #[prost(uint64, tag = "1")]
    pub last_decided: u64,
    #[prost(message, repeated, tag = "2")]
    pub outcomes: Vec<Outcome>,
}

/// One decision. `code` 0 = committed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Outcome {
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    #[prost(uint64, tag = "2")]
    pub ver: u64,
    #[prost(uint32, tag = "3")]
    pub code: u32,
}

/// The stamp of an op, as the entry carries it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Stamp {
    #[prost(uint64, tag = "1")]
    pub arrived_at_us: u64,
    #[prost(uint64, tag = "2")]
    pub sent_at_us: u64,
    #[prost(uint64, tag = "3")]
    pub sent_ver: u64,
    #[prost(uint32, tag = "4")]
    pub srtt_us: u32,
    #[prost(fixed64, tag = "9")]
    pub clock_id: u64,
    #[prost(uint32, tag = "10")]
    pub err_us: u32,
}

/// The readable part of a sealed receipt: the 16 bytes after it are its HMAC.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StampReceipt {
    #[prost(bytes = "bytes", tag = "3")]
    pub stamp: Bytes,
}

/// `/hf/dir/p/<session>`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Placement {
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    /// Empty: parked, nobody has room.
    #[prost(string, tag = "2")]
    pub owner: String,
    #[prost(fixed64, tag = "3")]
    pub boot: u64,
    /// Placement's clock when it decided, ms: before the commit.
    #[prost(uint64, tag = "5")]
    pub moved_at_ms: u64,
}
